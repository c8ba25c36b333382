"""What runs a compiled kernel: `protocol.py` says what a backend offers, each folder is one backend."""
