"""What memory bounds: the shipped kernels against the copy bandwidth of the same run, CuPy, torch and Triton.

Device time by events, contenders shuffled in each round, random normal data. Each contender is compared with float64
before it is timed, ours into outputs full of NaN. A share is the time in which the device copies (or, for reductions,
reads) as many bytes, over the time that the kernel takes.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float32
from measuring import Goal, Ratio, Result, ratio, read_options, skip_without_gpu, start, summary, time_events

from cuplate import Array, Inline, specialize
from cuplate.kernels import (
    fused_elementwise,
    histogram,
    inclusive_scan,
    layer_norm,
    rms_norm,
    row_argmax,
    row_reduce,
    softmax,
    transpose,
)

ELEMENTS = 2**26
COLUMNS = (1024, 2048, 4096, 8192, 16384)
OURS = "cuplate"
COPY = "copy"
READ = "read"
UNFUSED = "CuPy, five kernels"
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One problem: contenders that answer it, and what each answer is compared with.

    Attributes
    ----------
    name : str
    calls : dict of str to callable
        Contenders; `OURS` is one of them.
    floor : str, callable
        What moves as many bytes and does nothing else.
    wanted : callable
        From an answer to (what of it is compared, the same in float64).
    tolerance : float
        Of an element, relative to the largest.
    """

    name: str
    calls: dict[str, Call]
    floor: tuple[str, Call]
    wanted: Callable[[Any], tuple[Any, Any]]
    tolerance: float


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} packs = N / 4, stride = ({{ index_t }})gridDim.x * blockDim.x;
    unsigned int seen = 0;
    #pragma unroll 8
    for ({{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += stride) {
        const uint4 pack = ((const uint4*)x)[i];
        seen |= pack.x & pack.y & pack.z & pack.w;
    }
    if (seen == 1u) *out = 1;  // never, but the compiler does not know
}
"""),
    grid="sm_count * 8",
    block=256,
)
def read_all(x: Float32[Array, " N"], *, out: Float32[Array, ""] | None = None) -> Float32[Array, ""]:
    """Nothing of use: the time of reading x."""
    raise NotImplementedError


def main() -> int:
    options = read_options(
        __doc__,
        ("--rounds", {"type": int, "default": None, "help": "default 25, quick 5"}),
        ("--eager", {"action": "store_true", "help": "leave torch.compile out, which takes a minute"}),
    )
    result = start("memory_bound", options)
    cupy = skip_without_gpu(result)
    if cupy is None:
        return result.finish(options)
    bench = Bench(result, cupy, options.rounds or (5 if options.quick else 25), compiled=not options.eager)
    columns = COLUMNS[3:4] if options.quick else COLUMNS
    for make in (softmaxes, layer_norms, rms_norms):
        bench.shares("M1", [case for c in columns for case in make(bench, c)], 0.90, 0.95)
    bench.shares("M2", reductions(bench), 0.92, 0.96)
    bench.shares("M3", [transposes(bench)], 0.88, 0.93)
    bench.shares("M4", [scans(bench, 28)], 0.85, 0.92)
    for power in (22, 24):  # tiles of another size
        case = scans(bench, power)
        times = bench.run(case)
        for peer in times.keys() - {OURS, COPY}:
            found = ratio(times[OURS], times[peer])
            result.goals.append(Goal(f"{case.name}: {OURS} / {peer}", found.worse, 1.0, stretch=True))
    chain(bench)
    bench.shares("", [histograms(bench, skewed) for skewed in (False, True)])
    return result.finish(options)


class Bench:
    """CuPy, torch where it is, and what was found."""

    def __init__(self, result: Result, cupy: Any, rounds: int, *, compiled: bool) -> None:
        self.result, self.cupy, self.rounds, self.compiled = result, cupy, rounds, compiled
        self.torch: Any = None
        with suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch

            self.torch = torch if torch.cuda.is_available() else None
        if self.torch is None:
            result.note("not run: torch is not here, or sees no GPU")
        self.normal = cupy.random.default_rng(0).standard_normal

    def torch_calls(self, name: str, f: Callable[..., Any], *arrays: Any, compiled: bool = True) -> dict[str, Call]:
        """`f` over tensors that share the arrays' memory, eager and compiled."""
        if self.torch is None:
            return {}
        tensors = [self.torch.as_tensor(a, device="cuda") for a in arrays]
        calls: dict[str, Call] = {f"torch {name}": lambda: f(*tensors)}
        if compiled and self.compiled:
            try:
                made = self.torch.compile(f, dynamic=False)
                made(*tensors)
                calls["torch.compile"] = lambda: made(*tensors)
            except Exception as error:  # it wants a host compiler, and a Triton that fits
                self.result.note(f"not run: torch.compile of {name}: {type(error).__name__}: {error!s:.200}")
        return calls

    def triton_call(self, name: str, *arrays: Any, eps: float | None = None) -> dict[str, Call]:
        """A kernel of `triton_rows` over the arrays and an output of its own."""
        if self.torch is None or importlib.util.find_spec("triton") is None:
            return {}
        try:
            import triton_rows

            tensors = [self.torch.as_tensor(a, device="cuda") for a in arrays]
            kernel, out = getattr(triton_rows, name), self.torch.empty_like(tensors[0])
            triton_rows.launch(kernel, *tensors, out, eps=eps)
            return {"Triton": lambda: triton_rows.launch(kernel, *tensors, out, eps=eps)}
        except Exception as error:  # it wants a host compiler
            self.result.note(f"not run: Triton {name}: {type(error).__name__}: {error!s:.200}")
            return {}

    def shares(self, goal: str, cases: list[Case], limit: float = 0, stretch: float = 0) -> None:
        """Time each case; with a goal, hold the worst of them to it."""
        found: list[tuple[Ratio, Case]] = []
        for case in cases:
            times = self.run(case)
            over = ratio(times[OURS], times[case.floor[0]])
            found.append((over, case))
            self.result.note(f"{case.name}: {100 / over.worse:.1f} % of the {case.floor[0]} bandwidth")
        if goal:
            over, case = max(found, key=lambda pair: pair[0].worse)
            name = f"{goal}: {case.name} / {case.floor[0]} of as many bytes"
            self.result.goals += [Goal(name, over.worse, round(1 / limit, 3))]
            self.result.goals += [Goal(name, over.worse, round(1 / stretch, 3), stretch=True)]

    def run(self, case: Case) -> dict[str, list[float]]:
        """Milliseconds of each contender by round, wrong ones left out (a wrong one of ours raises)."""
        calls = {}
        for name, call in case.calls.items():
            got, wanted = case.wanted(self.cupy.asarray(call()))
            error = float(abs(got.astype(self.cupy.float64) - wanted).max() / abs(wanted).max())
            if error <= case.tolerance:
                calls[name] = call
            elif name == OURS:
                raise AssertionError(f"{case.name}: {name} is off by {error:.3g}")
            else:
                self.result.note(f"not timed: {case.name}: {name} is off by {error:.3g}")
        calls[case.floor[0]] = case.floor[1]
        times = self.time(calls)
        width = max(map(len, calls))
        for name, values in times.items():
            row = summary(f"{case.name}: {name}", values, "ms")
            self.result.rows.append(row)
            over = statistics.median(values) / statistics.median(times[case.floor[0]])
            print(f"{case.name:<28} {name:<{width}} {row['median']:9.4f} ms  {100 / over:6.1f} %")
        return times

    def time(self, calls: Mapping[str, Call]) -> dict[str, list[float]]:
        """Device time of one call: a round is queued as a whole, so that the device never waits for the host."""
        times = time_events(calls, lambda: Mark(self.cupy.cuda), rounds=self.rounds + 2, calls=4)
        return {name: found[2:] for name, found in times.items()}  # caches and clocks


class Mark:
    """An event of CuPy's, as `time_events` asks for it."""

    def __init__(self, cuda: Any) -> None:
        self.cuda, self.event = cuda, cuda.Event()
        self.record, self.synchronize = self.event.record, self.event.synchronize

    def elapsed_time(self, later: Mark) -> float:
        """Milliseconds to a later one."""
        return float(self.cuda.get_elapsed_time(self.event, later.event))


# the cases ------------------------------------------------------------------------------------------------------------


def rows_of(bench: Bench, columns: int) -> tuple[Any, Any]:
    """Random rows, and an output full of NaN."""
    gc.collect()
    bench.cupy.get_default_memory_pool().free_all_blocks()
    x = bench.normal((ELEMENTS // columns, columns), dtype=bench.cupy.float32)
    return x, bench.cupy.full_like(x, bench.cupy.nan)


def copying(bench: Bench, x: Any) -> tuple[str, Call]:
    """A copy of x by the driver."""
    to, copy = bench.cupy.empty_like(x), bench.cupy.cuda.runtime.memcpyAsync
    return COPY, lambda: copy(to.data.ptr, x.data.ptr, x.nbytes, 3, 0)


def some(x: Any) -> Any:
    """Every 61st row, in float64."""
    return x[::61].astype("float64")


def softmaxes(bench: Bench, columns: int) -> list[Case]:
    x, out = rows_of(bench, columns)
    calls = {OURS: lambda: softmax(x, out=out)}
    if bench.torch is not None:
        f = bench.torch.nn.functional.softmax
        calls |= bench.torch_calls("softmax", lambda t: f(t, dim=-1), x, compiled=columns == 8192)
        calls |= bench.triton_call("softmax_rows", x)

    def wanted(got: Any) -> tuple[Any, Any]:
        e = bench.cupy.exp(some(x) - some(x).max(axis=1, keepdims=True))
        return got[::61], e / e.sum(axis=1, keepdims=True)

    return [Case(f"softmax, rows of {columns}", calls, copying(bench, x), wanted, 2e-6)]


def layer_norms(bench: Bench, columns: int) -> list[Case]:
    x, out = rows_of(bench, columns)
    w, b = (bench.normal(columns, dtype=bench.cupy.float32) for _ in range(2))
    calls = {OURS: lambda: layer_norm(x, w, b, out=out)}
    if bench.torch is not None:
        f = bench.torch.nn.functional.layer_norm
        g = lambda t, w, b: f(t, (columns,), w, b)  # noqa: E731
        calls |= bench.torch_calls("layer_norm", g, x, w, b, compiled=columns == 8192)
        calls |= bench.triton_call("layer_norm_rows", x, w, b, eps=1e-5)

    def wanted(got: Any) -> tuple[Any, Any]:
        y = some(x) - some(x).mean(axis=1, keepdims=True)
        return got[::61], y / bench.cupy.sqrt((y * y).mean(axis=1, keepdims=True) + 1e-5) * w + b

    return [Case(f"layer_norm, rows of {columns}", calls, copying(bench, x), wanted, 2e-6)]


def rms_norms(bench: Bench, columns: int) -> list[Case]:
    x, out = rows_of(bench, columns)
    w = bench.normal(columns, dtype=bench.cupy.float32)
    calls = {OURS: lambda: rms_norm(x, w, out=out)}
    if bench.torch is not None:
        f = getattr(bench.torch.nn.functional, "rms_norm", None)
        if f is not None:
            g = lambda t, w: f(t, (columns,), w, 1e-6)  # noqa: E731
            calls |= bench.torch_calls("rms_norm", g, x, w, compiled=columns == 8192)
        calls |= bench.triton_call("rms_norm_rows", x, w, eps=1e-6)

    def wanted(got: Any) -> tuple[Any, Any]:
        y = some(x)
        return got[::61], y / bench.cupy.sqrt((y * y).mean(axis=1, keepdims=True) + 1e-6) * w

    return [Case(f"rms_norm, rows of {columns}", calls, copying(bench, x), wanted, 2e-6)]


def reductions(bench: Bench) -> list[Case]:
    """Sums and largest elements of rows; what they are held to is reading."""
    cupy, torch = bench.cupy, bench.torch
    x, _ = rows_of(bench, 8192)
    seen, flat = cupy.empty((), cupy.float32), x.reshape(-1)
    floor = (READ, lambda: read_all(flat, out=seen))
    out, places = cupy.full(len(x), cupy.nan, cupy.float32), cupy.full(len(x), -7, cupy.int64)

    def log_sum(y: Any) -> Any:
        return cupy.log(cupy.exp(y).sum(axis=1))

    plans: list[tuple[str, Call, Callable[..., Any] | None, Callable[..., Any] | None, Callable[..., Any]]] = [
        ("sum", lambda: row_reduce(x, op="sum", out=out), lambda a: a.sum(axis=1), lambda t: t.sum(1),
         lambda y: y.sum(axis=1)),
        ("max", lambda: row_reduce(x, op="max", out=out), lambda a: a.max(axis=1), lambda t: t.amax(1),
         lambda y: y.max(axis=1)),
        ("argmax", lambda: row_argmax(x, out=places), lambda a: a.argmax(axis=1), lambda t: t.argmax(1),
         lambda y: y.argmax(axis=1)),
        ("logsumexp", lambda: row_reduce(x, op="logsumexp", out=out), None, lambda t: torch.logsumexp(t, 1), log_sum),
    ]  # fmt: skip
    cases = []
    for name, ours, theirs, torchs, reference in plans:
        calls = {OURS: ours}
        if theirs is not None:
            calls["CuPy"] = functools.partial(theirs, x)
        if torch is not None and torchs is not None:
            calls |= bench.torch_calls(name, torchs, x, compiled=name == "sum")
        wanted = lambda got, reference=reference: (got[::61], reference(some(x)))  # noqa: E731
        cases.append(Case(f"row {name}, rows of 8192", calls, floor, wanted, 2e-6))
    return cases


def transposes(bench: Bench) -> Case:
    x, _ = rows_of(bench, 8192)
    out = bench.cupy.full(x.shape[::-1], bench.cupy.nan, x.dtype)
    calls = {OURS: lambda: transpose(x, out=out), "CuPy": lambda: bench.cupy.ascontiguousarray(x.T)}
    calls |= bench.torch_calls("transpose", lambda t: t.t().contiguous(), x)
    return Case("transpose 8192 x 8192", calls, copying(bench, x), lambda got: (got, x.T), 0)


def scans(bench: Bench, power: int) -> Case:
    bench.cupy.get_default_memory_pool().free_all_blocks()
    x = bench.normal(2**power, dtype=bench.cupy.float32)
    out = bench.cupy.full_like(x, bench.cupy.nan)
    calls = {OURS: lambda: inclusive_scan(x, out=out), "CuPy": lambda: bench.cupy.cumsum(x)}
    calls |= bench.torch_calls("cumsum", lambda t: t.cumsum(0), x, compiled=False)
    whole = bench.cupy.cumsum(x.astype("float64"))
    return Case(f"inclusive_scan 2^{power}", calls, copying(bench, x), lambda got: (got, whole), 1e-4)


def chain(bench: Bench) -> None:
    """Five elementwise operations in one kernel, and M5."""
    cupy, torch = bench.cupy, bench.torch
    x, out = rows_of(bench, 8192)
    r = bench.normal(x.shape, dtype=cupy.float32)
    s, b = (bench.normal(8192, dtype=cupy.float32) for _ in range(2))
    gelu = cupy.ElementwiseKernel(
        "float32 x", "float32 y", "y = x * 0.5f * (1 + tanhf(0.797884561f * (x + 0.044715f * x * x * x)))", "gelu"
    )

    def formula(x: Any, s: Any, b: Any, r: Any, tanh: Any, clip: Any) -> Any:
        y = x * s + b
        return clip(y * 0.5 * (1 + tanh(0.7978845608 * (y + 0.044715 * y * y * y))) + r)

    def chained(x: Any, s: Any, b: Any, r: Any) -> Any:  # cupy.fuse gives its kernel the function's name
        return formula(x, s, b, r, cupy.tanh, lambda y: cupy.clip(y, -2, 2))

    fused = cupy.fuse(chained)
    calls: dict[str, Call] = {
        OURS: lambda: fused_elementwise(x, s, b, r, activation="gelu_tanh", low=-2.0, high=2.0, out=out),
        UNFUSED: lambda: cupy.clip(gelu(x * s + b) + r, -2, 2),
        "cupy.fuse": lambda: fused(x, s, b, r),
    }
    if torch is not None:

        def whole(x: Any, s: Any, b: Any, r: Any) -> Any:
            return torch.clamp(torch.nn.functional.gelu(x * s + b, approximate="tanh") + r, -2, 2)

        calls |= bench.torch_calls("eager", whole, x, s, b, r)

    def wanted(got: Any) -> tuple[Any, Any]:
        return got[::61], formula(some(x), s, b, some(r), cupy.tanh, lambda y: cupy.clip(y, -2, 2))

    floor = copying(bench, x)
    times = bench.run(Case("gelu(x * s + b) + r, clipped", calls, floor, wanted, 4e-6))
    over = ratio(times[OURS], times[UNFUSED])
    half = ratio(times[OURS], [1.5 * t for t in times[COPY]])
    bench.result.note(f"chain: {1 / over.worse:.2f} times as fast as {UNFUSED}, {100 / half.worse:.1f} % of the copy "
                      "bandwidth (three arrays, not two)")  # fmt: skip
    for limit, stretch in ((3.5, False), (3.7, True)):
        bench.result.goals.append(Goal(f"M5: chain / {UNFUSED}", over.worse, round(1 / limit, 4), stretch))


def histograms(bench: Bench, skewed: bool) -> Case:
    """Bytes, all kinds or nearly all alike: the second is what makes atomics wait for each other."""
    cupy = bench.cupy
    rows_of(bench, 8192)
    x = cupy.random.default_rng(0).integers(0, 256, 2**28, dtype=cupy.uint8)
    if skewed:
        x = cupy.where(x < 250, cupy.uint8(7), x)
    words = x.view(cupy.float32)
    seen, out = cupy.empty((), cupy.float32), cupy.full(256, -1, cupy.int64)
    counted = cupy.stack([(x == v).sum() for v in range(256)]).astype("float64")
    calls = {OURS: lambda: histogram(x, out=out), "CuPy bincount": lambda: cupy.bincount(x, minlength=256)}
    calls |= bench.torch_calls("bincount", lambda t: t.bincount(minlength=256), x, compiled=False)
    name = f"histogram of 2^28 bytes, {'skewed' if skewed else 'uniform'}"
    return Case(name, calls, (READ, lambda: read_all(words, out=seen)), lambda got: (got, counted), 0)


if __name__ == "__main__":
    sys.exit(main())
