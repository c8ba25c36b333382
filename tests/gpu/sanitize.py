"""Run the GPU suite, or a part of it, under compute-sanitizer, and count what it finds.

    python tests/gpu/sanitize.py                              # memcheck, racecheck, initcheck over tests/gpu
    python tests/gpu/sanitize.py --tool racecheck -- tests/gpu/test_kernels.py -k matmul

Each tool gets a process of its own, as two tools cannot watch one launch. Left out are tests that start processes of
their own (the sanitizer would not see them), that make a fault on purpose, or that need a clock or more memory than the
tools leave; what they launch, others launch too. Errors that the driver returns from calls are not counted: asking for
one parameter too many is how a kernel's parameters are counted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck")
WHERE = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
SKIPPED = (
    "test_memory", "test_asynchrony", "test_streams", "test_devices", "test_example", "interpreter_may_end",
    "may_fork", "in_flight", "each_element_around", "2_gib", "would_wrap", "past_the_32_bit", "broadcast_views",
    "cooperative_grid", "threads_call_while",
)  # fmt: skip
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK|LEAK) SUMMARY: (.*)")
_FOUND = re.compile(
    r"=========\s+((?:Error|Warning|Invalid|Uninitialized|Race reported)[^\n]*(?:\n=========\s+at [^\n+]*)?)"
)


def find() -> str | None:
    """The sanitizer's command, where there is one."""
    found = shutil.which("compute-sanitizer")
    return found or next((path for path in WHERE if os.path.exists(path)), None)


def command(tool: str, log: Path, *rest: str) -> list[str]:
    """What runs `rest` under one tool."""
    program = find()
    assert program is not None
    more = ["--report-api-errors", "no"] if tool == "memcheck" else []
    return [program, "--tool", tool, *more, "--print-limit", "100", "--log-file", str(log), *rest]


def run(tool: str, tests: Sequence[str], limit_s: int) -> tuple[int, str]:
    """Exit status of pytest, and one line: tests run, and what the tool counted."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        words = " and ".join(f"not {name}" for name in SKIPPED)
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", words, *tests]
        try:
            done = subprocess.run(
                command(tool, log, *pytest), cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
            )
            said = done.stdout.strip().splitlines()
            status, tail = done.returncode, [*said[-1:], *(line[:200] for line in said if line.startswith("FAILED "))]
            if status and not log.exists():
                tail.append(done.stderr[-500:])
        except subprocess.TimeoutExpired as stopped:
            status, tail = 124, [f"stopped after {limit_s} s: {(stopped.stdout or b'')[-200:]!r}"]
        text = log.read_text(errors="replace") if log.exists() else ""
    summary = _SUMMARY.findall(text)
    found = Counter(" ".join(each.replace("=", " ").split()) for each in _FOUND.findall(text))
    lines = [
        f"{tool:10} {summary[-1] if summary else 'no summary'}; pytest: {tail[0] if tail else 'nothing'}",
        *tail[1:],
    ]
    return status, "\n".join([*lines, *(f"{count:6} x {what}" for what, count in found.most_common(20))])


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every tool ran, every test passed and nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="default: all three, one after the other")
    parser.add_argument("--limit-s", type=int, default=600, help="of each tool (default 600)")
    parser.add_argument("tests", nargs="*", help="of pytest, default tests/gpu")
    options = parser.parse_args(arguments)
    if find() is None:
        print("no compute-sanitizer was found; it comes with the CUDA toolkit")
        return 2
    worst = 0
    for tool in options.tool or TOOLS:
        status, told = run(tool, options.tests or ["tests/gpu"], options.limit_s)
        print(told, flush=True)
        worst = max(worst, status, int(" 0 errors" not in f" {told}" and " 0 hazards" not in f" {told}"))
    return worst


if __name__ == "__main__":
    sys.exit(main())
