"""How large the cache has to be for a program: its look-ups recorded, replayed against every policy and size.

Compiles a few variants of a shipped kernel again and again, as a program with phases does, and launches nothing, so it
runs anywhere. What it prints at the end can be pasted into an environment or a pyproject.toml.

    python examples/tune_cache.py --rounds 3
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import cuplate
from cuplate.kernels import matmul_epilogue


def main() -> int:
    options = read_options()
    with tempfile.TemporaryDirectory() as directory, cuplate.configure(directory=directory):
        with cuplate.cache.record() as recording:  # record("program.trace") writes a file; CUPLATE_TRACE does so too
            work(options.rounds)
        tuning = recording.tune()
    print(tuning)
    print("\nin pyproject.toml", *tuning.project(), sep="\n")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(tuning.to_json())
    return 0


def work(rounds: int) -> None:
    """Each architecture in its turn, and once something that nobody asks for again."""
    matmul_epilogue.compile("float32", tile=32, relu=True, arch="sm_75")
    for _ in range(rounds):
        for arch in ("sm_80", "sm_90"):
            for tile in (16, 32):
                matmul_epilogue.compile("float32", tile=tile, relu=True, arch=arch)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often the program does its work")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
