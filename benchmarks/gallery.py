"""The steps of examples/gallery, device time in one process beside cuBLAS, shuffled in each round; and their plot.

Random normal data, several sets of it by turns, TF32 off; every step is compared with float64 over a poisoned output
before it is timed. The peer is `torch.mm` in the dtype of the step. docs/gallery.svg is drawn where matplotlib is, from
what a run wrote:

    python benchmarks/gallery.py --output results/gallery.json
    python benchmarks/gallery.py --draw results/gallery.json docs/gallery.svg
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import (
    Goal,
    Result,
    print_rows,
    ratio,
    read_options,
    skip_without_gpu,
    skip_without_torch,
    start,
    summary,
    time_events,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "gallery"))
from steps import STEPS

PEER = "torch mm (cuBLAS)"
SETS = 3
WARM_S = 0.8  # under load, before the first round: clocks and temperature settle
ERROR = {"float32": 1e-5, "bfloat16": 2.5e-3}  # a rounding to bfloat16 is at 1.7e-3
Call = Callable[[], Any]


def main() -> int:
    options = read_options(
        __doc__,
        ("--size", {"type": int, "default": None, "help": "edge (default 4096, quick 1024)"}),
        ("--rounds", {"type": int, "default": None, "help": "rounds (default 15, quick 5)"}),
        ("--draw", {"type": Path, "nargs": 2, "metavar": ("JSON", "SVG"), "help": "draw what a run wrote"}),
    )
    if options.draw:
        found, plot = options.draw
        draw(json.loads(found.read_text()), plot)
        return 0
    result = start("gallery", options)
    if skip_without_gpu(result) is None:
        return result.finish(options)
    torch = skip_without_torch(result, "bfloat16 and its cuBLAS")
    if torch is None:
        return result.finish(options)
    torch.backends.cuda.matmul.allow_tf32 = False
    size, rounds = options.size or (1024 if options.quick else 4096), options.rounds or (5 if options.quick else 15)
    times: dict[str, list[float]] = {}
    for dtype in dict.fromkeys(step.dtype for step in STEPS):
        times |= measure(result, torch, dtype, size, rounds)
    for earlier, later in itertools.pairwise(STEPS):
        mine, before = (times[step.function.__name__] for step in (later, earlier))
        name = f"{size}^3: {later.function.__name__} / {earlier.function.__name__}"
        result.goals.append(Goal(name, ratio(mine, before).worse, 1.0))
    return result.finish(options)


def measure(result: Result, torch: Any, dtype: str, size: int, rounds: int) -> dict[str, list[float]]:
    """All rows of one dtype."""
    steps = {step.function.__name__: step for step in STEPS if step.dtype == dtype}
    calls = prepare(torch, dtype, size)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        calls[PEER]()
        torch.cuda.synchronize()
    times = time_events(calls, lambda: torch.cuda.Event(enable_timing=True), rounds=rounds, calls=1)
    rows = []
    for name, values in times.items():
        row = summary(f"{size}^3 {dtype}: {name}", values, "ms")
        row |= {"tflops": round(2e-9 * size**3 / row["median"], 2), "dtype": dtype, "size": size}
        row["of_peer"] = round(1 / ratio(values, times[PEER]).of_medians, 4)
        if name in steps:
            row["step"], row["idea"] = STEPS.index(steps[name]) + 1, steps[name].idea
        rows.append(row)
    print_rows(rows)
    for row in rows:
        result.note(f"{row['name']}: {row['tflops']} TFLOP/s, {row['of_peer']:.3f} of cuBLAS")
    result.rows += rows
    return times


def prepare(torch: Any, dtype: str, size: int) -> dict[str, Call]:
    """The steps of one dtype and their peer on the same arrays, each compared with float64."""
    kind = getattr(torch, dtype)
    sets = [tuple(torch.randn(size, size, device="cuda").to(kind) for _ in range(2)) for _ in range(SETS)]
    out = torch.empty(size, size, device="cuda", dtype=kind)
    turns = itertools.cycle(range(SETS))

    def of(function: Callable[..., Any]) -> Call:
        return lambda: function(*sets[next(turns)], out=out)

    calls = {step.function.__name__: of(step.function) for step in STEPS if step.dtype == dtype}
    calls[PEER] = of(torch.mm)
    for name, call in calls.items():
        for a, b in sets:  # all of them: whole turns of the cycle
            out.fill_(float("nan"))
            wanted = a.double() @ b.double()
            error = float((call().double() - wanted).norm() / wanted.norm())
            if not error < ERROR[dtype]:  # TF32 would be at 3e-4; NaN too is wrong
                raise AssertionError(f"{name} at {size}^3 in {dtype}: relative error {error}")
    return calls


def draw(found: dict[str, Any], plot: Path) -> None:
    """TFLOP/s of each step as a bar, cuBLAS as a line; a panel for each dtype, since their scales are far apart.

    Prints the figures as the page's table has them.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "gallery", "font.family": "sans-serif"}
    from matplotlib import pyplot

    steps = [row for row in found["rows"] if "step" in row]
    groups = {
        dtype: [row for row in steps if row["dtype"] == dtype] for dtype in dict.fromkeys(r["dtype"] for r in steps)
    }
    heights = [len(rows) + 0.6 for rows in groups.values()]
    figure, panels = pyplot.subplots(len(groups), figsize=(8, 0.42 * sum(heights) + 1.4), height_ratios=heights)
    for panel, (dtype, rows) in zip(panels, groups.items(), strict=True):
        peer = next(row for row in found["rows"] if row["dtype"] == dtype and "step" not in row)
        panel.barh([f"{row['idea']}  {row['step']}" for row in rows], [row["tflops"] for row in rows], color="#4878a8")
        for place, row in enumerate(rows):
            panel.text(row["tflops"], place, f" {row['tflops']:.3g}", va="center", color="#222222")
        panel.axvline(peer["tflops"], color="#b04030", linestyle="--")
        panel.text(peer["tflops"], -0.75, f"cuBLAS {peer['tflops']:.3g} ", ha="right", color="#b04030")
        panel.set_xlim(0, 1.12 * max(row["tflops"] for row in [*rows, peer]))
        panel.set_ylim(len(rows) - 0.5, -1.1)
        panel.set_title(f"{dtype}, {peer['size']} cubed", loc="left", fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(f"TFLOP/s ({found['machine']['gpu'].partition(',')[0]}, {found['machine']['date'][:10]})")
    figure.tight_layout()
    figure.savefig(plot, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
