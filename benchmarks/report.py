"""Write RESULTS.md from what `all.py` left in a folder: python benchmarks/report.py results > benchmarks/RESULTS.md"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ORDER = (
    "dispatch",
    "gemm",
    "gemm_sweep",
    "gallery",
    "memory_bound",
    "checks",
    "cold_start",
    "import_time",
    "memory",
    "store",
    "shared",
    "bundle",
    "fleet",
    "scale",
    "cpu",
    "autotune",
)
HEAD = """\
# Results

The last run of `python benchmarks/all.py --output results`, written by `python benchmarks/report.py results`. Only the
ratios compare between machines; a goal is held to the worse of its two readings (see [README.md](README.md)). A stretch
goal is one that nobody promised.
"""


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = {name: Path(sys.argv[1], f"{name}.json") for name in ORDER}
    results = [json.loads(path.read_text()) for path in found.values() if path.is_file()]
    print(HEAD)
    for title, key in (("machine", "system"), ("GPU", "gpu"), ("Python", "python"), ("versions", "versions")):
        print(f"- {title}: {'; '.join(dict.fromkeys(r['machine'][key] for r in results))}")
    print(f"- date: {min(r['machine']['date'] for r in results)[:10]}\n\n## Goals\n")
    print("| goal | limit | found | verdict |\n| --- | --- | --- | --- |")
    for result in results:
        for goal in result["goals"]:
            print(goal_row(goal))
    for result in results:
        where = result["machine"]
        print(f"\n## {result['benchmark']}.py\n")
        print(f"{where['date'][:10]}, {where['system']}, Python {where['python']}, GPU: {where['gpu']}.\n")
        print("| row | unit | median | min | quartiles |\n| --- | --- | --- | --- | --- |")
        for row in [row for row in result["rows"] if "median" in row]:  # the others are in the notes
            print(figure_row(row))
        for note in result["notes"]:
            print(f"\n- {note}", end="")
        print()
    return 0


def goal_row(goal: dict[str, Any]) -> str:
    """One goal, and whether it was met."""
    name = goal["name"] + (" (stretch)" if goal["stretch"] and "(stretch)" not in goal["name"] else "")
    return f"| {name} | {goal['limit']:g} | {goal['value']:.3f} | {'met' if goal['passed'] else 'missed'} |"


def figure_row(row: dict[str, Any]) -> str:
    """One measured row; a row without quartiles is a difference, and has a median only."""
    figures = [f"{row[key]:.3f}" if key in row else "" for key in ("median", "min", "q1", "q3")]
    return f"| {row['name']} | {row.get('unit', '')} | {figures[0]} | {figures[1]} | {figures[2]} to {figures[3]} |"


if __name__ == "__main__":
    sys.exit(main())
