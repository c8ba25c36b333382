"""``python -m cuplate`` is the command ``cuplate``."""

from cuplate.cli import main

if __name__ == "__main__":
    main()
