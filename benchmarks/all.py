"""Every benchmark, one after the other, each in a process of its own.

python benchmarks/all.py --output results
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NAMES = (
    "import_time",
    "dispatch",
    "gemm",
    "gemm_sweep",
    "gallery",
    "memory_bound",
    "checks",
    "cold_start",
    "store",
    "shared",
    "bundle",
    "fleet",
    "scale",
    "memory",
    "cpu",
    "autotune",
)
TIMEOUT_S = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="one JSON and one log for each")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="not all of them")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed, too")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    failed = [name for name in options.only if not run(name, options.output, options.quick)]
    missed = tell(options.only, options.output)
    if failed:
        print(f"did not finish: {', '.join(failed)}")
    return int(bool(failed) or (options.strict and missed > 0))


def run(name: str, folder: Path, quick: bool) -> bool:
    """One benchmark; its output goes to the terminal and to a log."""
    json_file = folder / f"{name}.json"
    json_file.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / f"{name}.py"), "--output", str(json_file), *(["--quick"] if quick else [])]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False
        )
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        text, status = (said.decode() if isinstance(said, bytes) else said) + f"\nstopped after {TIMEOUT_S} s\n", -1
    (folder / f"{name}.log").write_text(text)
    print(f"{text}\n-- {name}: exit status {status}, {time.perf_counter() - begin:.1f} s\n", flush=True)
    return status == 0 and json_file.exists()


def tell(names: tuple[str, ...], folder: Path) -> int:
    """All goals on one page; the number of missed ones, stretch goals aside."""
    print("== goals")
    missed = 0
    for name in names:
        file = folder / f"{name}.json"
        found: dict[str, Any] = {"goals": [], "skipped": "it did not finish"}
        if file.exists():
            found = json.loads(file.read_text())
        if found["skipped"]:
            print(f"----  {name}: {found['skipped']}")
        for goal in found["goals"]:
            missed += not goal["passed"] and not goal["stretch"]
            verdict = "PASS" if goal["passed"] else "FAIL"
            kind = " (stretch)" if goal["stretch"] else ""
            print(f"{verdict}  {goal['value']:10.3f} <= {goal['limit']:<8g} {goal['name']}{kind}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
