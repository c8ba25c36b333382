"""Run the GPU suite, or a part of it, under compute-sanitizer, and count what it finds.

    python tests/gpu/sanitize.py                              # memcheck, racecheck, initcheck over tests/gpu
    python tests/gpu/sanitize.py --jobs 12 --limit-s 300      # tests dealt out to twelve processes of each tool
    python tests/gpu/sanitize.py --tool racecheck -- tests/gpu/test_kernels.py -k matmul

Each tool gets processes of its own, as two tools cannot watch one launch. Left out are tests that start processes of
their own (the sanitizer would not see them), that make a fault on purpose, that need a clock or more memory than the
tools leave, or that count references (the tools keep the frames of launches); what they launch, others launch too.
Errors that the driver returns from calls are not counted: asking for one parameter too many is how a kernel's
parameters are counted. What a process that had to be stopped has found counts.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck")
WHERE = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
SKIPPED = (
    "test_memory.py", "test_asynchrony", "test_streams", "test_devices", "test_example", "interpreter_may_end",
    "may_fork", "in_flight", "each_element_around", "2_gib", "would_wrap", "past_the_32_bit", "broadcast_views",
    "cooperative_grid", "threads_call_while", "processes", "test_sanitizer", "test_bundle", "test_shared",
    "test_tune", "array_like_any_other",
)  # fmt: skip
# A line that begins a finding; the place follows it. Lines of host frames and of hints begin otherwise.
_FOUND = re.compile(r"^========= +((?:Error|Warning|Invalid|Uninitialized|Race|Potential)\b.*)", re.MULTILINE)
_PLACE = re.compile(r"\bat (?:void )?([\w:<>]+)")


def find() -> str | None:
    """The sanitizer's command, where there is one."""
    found = shutil.which("compute-sanitizer")
    return found or next((path for path in WHERE if os.path.exists(path)), None)


def command(tool: str, log: Path, *rest: str) -> list[str]:
    """What runs `rest` under one tool."""
    program = find()
    assert program is not None
    more = ["--report-api-errors", "no"] if tool == "memcheck" else []
    return [program, "--tool", tool, *more, "--print-limit", "1000", "--log-file", str(log), *rest]


def collect(tests: Sequence[str]) -> list[str]:
    """The names of the tests that run under a tool."""
    words = " and ".join(f"not {name}" for name in SKIPPED)
    pytest = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-k", words, *tests]
    done = subprocess.run(pytest, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "::" in line]


class Part:
    """Some of the tests in one process under a tool."""

    def __init__(self, tool: str, number: int, names: Sequence[str], folder: Path) -> None:
        self.log, self.told = folder / f"{tool}.{number}.log", folder / f"{tool}.{number}.out"
        listed = folder / f"{tool}.{number}.tests"
        listed.write_text("\n".join(names))
        pytest = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", f"@{listed}"]
        with self.told.open("w") as out:
            self.process = subprocess.Popen(
                command(tool, self.log, *pytest), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, until: float) -> bool:
        """Whether it has ended by itself."""
        try:
            self.process.wait(max(0.1, until - time.monotonic()))
            return True
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # the sanitizer, and what it runs
            self.process.wait()
            return False


def found_in(text: str) -> Iterable[str]:
    """Each finding of a log: what, and in which kernel."""
    for match in _FOUND.finditer(text):
        place = _PLACE.search(text, match.end(), match.end() + 300)
        what = re.sub(r"0x[0-9a-f]+", "...", " ".join(match.group(1).split()))
        yield f"{what} at {place.group(1)}" if place and " at " not in what else what


def run(tool: str, tests: Sequence[str], limit_s: int, jobs: int, folder: Path) -> int:
    """0 if every test ran and passed, and nothing was found."""
    names = collect(tests)
    until = time.monotonic() + limit_s
    parts = [Part(tool, n, names[n::jobs], folder) for n in range(min(jobs, len(names)))]
    ended = [part.wait(until) for part in parts]
    outputs = [part.told.read_text(errors="replace") for part in parts]
    states = Counter(state for text in outputs for state in re.findall(r" (PASSED|FAILED|ERROR|SKIPPED)\b", text))
    found = Counter(f for part in parts if part.log.exists() for f in found_in(part.log.read_text(errors="replace")))
    failed = sorted({line for text in outputs for line in re.findall(r"^(?:FAILED|ERROR) .*", text, re.MULTILINE)})
    counted = ", ".join(f"{count} {state.lower()}" for state, count in sorted(states.items()))
    print(
        f"{tool}: {sum(found.values())} findings; of {len(names)} tests {counted or 'none ran'};"
        f" {len(ended) - sum(ended)} of {len(parts)} processes stopped after {limit_s} s",
        *(f"  {count:6} x {what}" for what, count in found.most_common(20)),
        *(f"  {line:.200}" for line in failed),
        sep="\n",
        flush=True,
    )
    return int(bool(found) or not all(ended) or any(part.process.returncode for part in parts) or not names)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every tool ran, every test passed and nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="default: all three, one after the other")
    parser.add_argument("--limit-s", type=int, default=600, help="of each tool (default 600)")
    parser.add_argument("--jobs", type=int, default=1, help="processes of a tool at a time (default 1)")
    parser.add_argument("--keep", type=Path, help="a folder for the logs")
    parser.add_argument("tests", nargs="*", help="of pytest, default tests/gpu")
    options = parser.parse_args(arguments)
    if find() is None:
        print("no compute-sanitizer was found; it comes with the CUDA toolkit")
        return 2
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        tests = options.tests or ["tests/gpu"]
        states = [run(tool, tests, options.limit_s, options.jobs, folder) for tool in options.tool or TOOLS]
        return max(states)


if __name__ == "__main__":
    sys.exit(main())
