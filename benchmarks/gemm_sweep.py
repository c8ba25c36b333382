"""relu(a @ b + bias) over many shapes, in bfloat16 and float32, against cuBLASLt's fused epilogue.

In bfloat16 cuBLASLt has two contenders: the algorithm that its heuristics name first, by torch, and the fastest of the
eight that they name, timed here for each shape, by nvmath-python where that is installed; and of some shapes what
`tune()` finds is timed. In float32 (TF32 off) the other contender is cuBLAS and a pass for ReLU, `relu(addmm)`; there
`b` is row-major, and column-major as a layer of a model has its weights.

Each contender's calls lie in a CUDA graph of its own, so that no launch is waited for; inputs take turns, several times
the L2 cache of them, so that weights come from memory. `_addmm_activation` runs twice under two names: their difference
is the noise. All are compared with float64 over a poisoned output before they are timed.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
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

from cuplate.kernels import matmul_epilogue, matmul_wgmma_split_tuned, matmul_wgmma_tuned

OURS, LT = "cuplate", "torch _addmm_activation (cuBLASLt)"
AGAIN = f"{LT}, again"
UNFUSED = "torch relu(addmm)"
SEARCHED = "nvmath (cuBLASLt, the fastest of its algorithms)"
TUNED = {"cuplate, tuned": matmul_wgmma_tuned, "cuplate, split and tuned": matmul_wgmma_split_tuned}
# N and K of layers of models of 7 to 70 billion parameters; M tokens.
LAYERS = [(4096, 4096), (12288, 4096), (11008, 4096), (4096, 11008), (28672, 8192), (8192, 28672), (10240, 8192)]
SHAPES = [
    *((n, n, n) for n in (512, 768, 1024, 1536, 2048, 4096, 8192)),
    (8192, 8192, 512), (1024, 1024, 4096), (256, 8192, 4096), (512, 4096, 4096), (2048, 512, 2048),
    *((m, n, k) for m in (1024, 2048, 4096) for n, k in LAYERS if (m, n, k) != (4096,) * 3),
]  # fmt: skip
FEW = [(m, n, k) for m in (1, 16, 64, 128) for n, k in LAYERS[:5:2]]  # weights are what is read: bound by memory
# Layers and batches in float32, from a few rows on; each row-major and column-major.
FLOATS = [
    *((n, n, n) for n in (128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 2048)),
    (16, 4096, 4096), (64, 4096, 4096), (128, 4096, 1024), (128, 512, 2048), (256, 256, 4096), (256, 1024, 1024),
    (512, 2048, 512), (512, 512, 64), (1024, 1024, 256), (2000, 1000, 500), (784, 512, 1024), (1000, 100, 2000),
]  # fmt: skip
TO_TUNE = [(4096, 4096, 4096), (1024, 11008, 4096), (1024, 1024, 1024), (512, 512, 512), (64, 11008, 4096)]
INPUT_BYTES = 160e6
WARM_S = 0.1
SEARCH_ROUNDS = 5
# From here on the power limit moves the clocks from round to round: more rounds, so that all meet the same ones.
LONG_FLOP, LONG_ROUNDS = 2e11, 25


def main() -> int:
    options = read_options(
        __doc__,
        ("--rounds", {"type": int, "default": None, "help": "rounds (default 9, quick 3)"}),
        ("--dtype", {"choices": ("float32", "bfloat16"), "default": None, "help": "one of the two alone"}),
    )
    result = start("gemm_sweep", options)
    if skip_without_gpu(result) is None:
        return result.finish(options)
    torch = skip_without_torch(result, "its cuBLAS")
    if torch is None:
        return result.finish(options)
    rounds = options.rounds or (3 if options.quick else 9)
    if options.dtype != "float32":
        short(result, torch, rounds, quick=options.quick)
    if options.dtype != "bfloat16":
        floats(result, torch, rounds, quick=options.quick)
    return result.finish(options)


def short(result: Result, torch: Any, rounds: int, *, quick: bool) -> None:
    """G2: bfloat16."""
    tunes = torch.cuda.get_device_capability() == (9, 0)
    tuned = []
    for what, shapes in (("shapes", SHAPES), ("shapes of few rows", FEW)):
        ratios, searched = [], []
        for shape in shapes[:: 6 if quick else 1]:
            names = (LT, AGAIN, OURS, *(TUNED if tunes and shape in TO_TUNE else ()))
            long = 2 * math.prod(shape) >= LONG_FLOP and not quick
            times = measure(result, torch, shape, max(rounds, LONG_ROUNDS) if long else rounds, names)
            ratios.append(ratio(times[OURS], times[LT]).worse)
            if SEARCHED in times:
                searched.append(ratio(times[OURS], times[SEARCHED]).worse)
            found = [ratio(times[name], times[OURS]).worse for name in names if name in TUNED]
            tuned += [min(found)] if found else []
        judge(result, f"{len(ratios)} {what}: {OURS} / {LT}", ratios, 1.03, 0.97)
        if searched:
            judge(result, f"{len(searched)} {what}: {OURS} / {SEARCHED}", searched, 1.0, 0.97)
    if tuned:
        judge(result, f"{len(tuned)} shapes: the better one of those that are tuned / {OURS}", tuned, 1.0, 0.97)


def floats(result: Result, torch: Any, rounds: int, *, quick: bool) -> None:
    """float32, both orders of `b`."""
    for order in ("row-major", "column-major"):
        every = [
            measure(result, torch, shape, rounds, (LT, UNFUSED, OURS), order) for shape in FLOATS[:: 6 if quick else 1]
        ]
        for peer in (LT, UNFUSED):
            ratios = [ratio(times[OURS], times[peer]).worse for times in every]
            judge(result, f"{len(ratios)} shapes in float32, b {order}: {OURS} / {peer}", ratios, 1.0, 0.8)


def judge(result: Result, name: str, ratios: Sequence[float], mean: float, worst: float) -> None:
    """The geometric mean, and the worst of all; limits are speed-ups. G2 is that of bfloat16."""
    found = math.exp(statistics.fmean(map(math.log, ratios)))
    result.goals.append(Goal(f"{name}, geometric mean", found, round(1 / mean, 4), True))
    result.goals.append(Goal(f"{name}, the worst", max(ratios), round(1 / worst, 4), True))


def measure(
    result: Result,
    torch: Any,
    shape: tuple[int, int, int],
    rounds: int,
    names: Sequence[str],
    float32: str | None = None,
) -> dict[str, list[float]]:
    """All rows of one shape, milliseconds of one call; in float32 if the order of `b` is given, else in bfloat16."""
    m, n, k = shape
    dtype = torch.float32 if float32 else torch.bfloat16
    by_columns = float32 == "column-major"
    torch.backends.cuda.matmul.allow_tf32 = False
    count = max(2, min(12, math.ceil(INPUT_BYTES / (dtype.itemsize * (m * k + k * n)))))
    shapes = ((m, k), (n, k) if by_columns else (k, n), (n,))
    sets = [tuple(torch.randn(s, device="cuda").to(dtype) for s in shapes) for _ in range(count)]
    sets = [(a, b.T if by_columns else b, bias) for a, b, bias in sets]
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    activation = torch.ops.aten._addmm_activation.out

    def lt(a: Any, b: Any, bias: Any) -> Any:
        return activation(bias, a, b, use_gelu=False, out=out)

    def unfused(a: Any, b: Any, bias: Any) -> Any:
        return torch.addmm(bias, a, b, out=out).relu_()

    def ours(function: Any) -> Callable[[Any, Any, Any], Any]:
        return lambda a, b, bias: function(a, b, bias, relu=True, out=out)

    known = {LT: lt, AGAIN: lt, UNFUSED: unfused, OURS: ours(matmul_epilogue)}
    known |= {name: ours(f) for name, f in TUNED.items()}
    contenders = {name: known[name] for name in names}
    candidates: dict[str, Callable[[Any, Any, Any], Any]] = {}
    try:
        candidates = {} if float32 else algorithms(sets)
    except Exception as reason:  # an optional library: absent, or at odds with this driver
        result.note(f"not run at {shape}: nvmath: {type(reason).__name__}: {reason}")
    a, b, bias = sets[0]
    wanted = (a.double() @ b.double() + bias.double()).clamp_min(0)
    for name, call in (contenders | candidates).items():
        out.fill_(float("nan"))
        error = float((call(*sets[0]).double() - wanted).norm() / wanted.norm())
        if not error < (1e-5 if float32 else 2.5e-3):  # a rounding to bfloat16 is at 1.7e-3; NaN too is wrong
            raise AssertionError(f"{name} at {shape}: relative error {error}")
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        for inputs in sets:
            lt(*inputs)
        torch.cuda.synchronize()
    calls = max(count, min(24, int(1e12 / (2 * m * n * k))))

    def recorded(call: Callable[[Any, Any, Any], Any]) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for inputs in itertools.islice(itertools.cycle(sets), calls):
                call(*inputs)
        return graph.replay

    event = lambda: torch.cuda.Event(enable_timing=True)  # noqa: E731
    graphs = {name: recorded(call) for name, call in contenders.items()}
    if candidates:
        tried = time_events({n: recorded(call) for n, call in candidates.items()}, event, rounds=SEARCH_ROUNDS, calls=1)
        graphs[SEARCHED] = recorded(candidates[min(tried, key=lambda n: statistics.median(tried[n]))])
    times = time_events(graphs, event, rounds=rounds, calls=1)
    times = {name: [value / calls for value in values] for name, values in times.items()}
    variant = matmul_epilogue.inspect(a, b, bias, relu=True).variant
    rows = []
    for name, values in times.items():
        chosen = f" ({variant})" if name == OURS else ""
        what = f"{m} x {n} x {k}{f' float32 {float32}' if float32 else ''}"
        row = summary(f"{what}: {name}{chosen}", values, "ms")
        rows.append(row | {"tflops": round(2e-9 * m * n * k / row["median"], 1)})
    print_rows(rows)
    result.rows += rows
    return times


def algorithms(sets: Sequence[tuple[Any, Any, Any]]) -> dict[str, Callable[[Any, Any, Any], Any]]:
    """What cuBLASLt's heuristics name for this product, by nvmath-python.

    It adds a bias to rows, so the product is written transposed: all of it has columns in order, as cuBLASLt wants.
    """
    from nvmath.linalg.advanced import Matmul, MatmulEpilog

    planned = {}
    for a, b, bias in sets:
        product = Matmul(b.T, a.T)
        product.plan(epilog=MatmulEpilog.RELU_BIAS, epilog_inputs={"bias": bias})
        product.execute()  # its workspace is allocated here, and not while a graph is recorded
        planned[a.data_ptr()] = product

    def of(index: int) -> Callable[[Any, Any, Any], Any]:
        def call(a: Any, _b: Any, _bias: Any) -> Any:
            product = planned[a.data_ptr()]
            return product.execute(algorithm=product.algorithms[index]).T

        return call

    return {f"algorithm {i}": of(i) for i in range(min(len(p.algorithms) for p in planned.values()))}


if __name__ == "__main__":
    sys.exit(main())
