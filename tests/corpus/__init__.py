"""Small kernels over everything that the CPU backend runs, each with inputs, a reference and a bound on its error.

`cases` lists them, `runner` runs and compares them, ``python -m tests.corpus.run`` stores what a GPU gave and prints
the table of docs/agreement.md.
"""
