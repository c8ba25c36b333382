"""Host cost of one warm call, every contender in one process, shuffled anew in each round.

The kernel is relu(a @ b + bias) on 32 x 32 float32 matrices, tile 16: the device finishes it faster than any host can
launch it, so what is measured is the host. Then the same for empty kernels with 1, 5 and 19 arguments.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float32
from measuring import Goal, Result, print_rows, ratio, read_options, skip_without_gpu, start, summary, time_bursts

from cuplate import Array, Inline, i32, specialize
from cuplate.kernels import matmul_epilogue

SIZE = 32
FLOOR = "cuda.core launch, all prepared"
OURS_OUT = "cuplate, out= given"
OURS_VARIED = "cuplate, out= given, new array objects each time"
OURS = "cuplate, allocates"
OURS_TORCH_OUT = "cuplate, torch arrays, out= given"
OURS_TORCH = "cuplate, torch arrays, allocates"
RAW = "cupy.RawKernel + cupy.empty, by hand"
RAW_PREPARED = "cupy.RawKernel + cupy.empty, scalars prepared"
TRITON = "triton.jit + torch.empty, as its tutorial calls it"
TRITON_BARE = "triton.jit + torch.empty, no strides, grid prepared"
FUSED = "torch _addmm_activation"
Call = Callable[[], Any]


def main() -> int:
    options = read_options(
        __doc__,
        ("--rounds", {"type": int, "default": None, "help": "bursts of each contender (default 61, quick 9)"}),
        ("--calls", {"type": int, "default": 300, "help": "calls in a burst (default 300)"}),
    )
    result = start("dispatch", options)
    cupy = skip_without_gpu(result)
    if cupy is None:
        return result.finish(options)
    rounds = options.rounds or (9 if options.quick else 61)
    matmul(result, cupy, rounds, options.calls)
    sweep(result, cupy, rounds, options.calls)
    return result.finish(options)


# matmul + bias + relu -------------------------------------------------------------------------------------------------


def matmul(result: Result, cupy: Any, rounds: int, calls: int) -> None:
    """All rows of the matrix product, and the goals."""
    draw = cupy.random.default_rng(0).standard_normal
    a, b = (draw((SIZE, SIZE), dtype=cupy.float32) for _ in range(2))
    bias = draw(SIZE, dtype=cupy.float32)
    contenders = {**ours(cupy, a, b, bias), **raw_kernels(cupy, a, b, bias)}
    verify(cupy, contenders, a, b, bias)
    for make in (torch_arrays, triton_and_torch, numba_cuda):
        try:
            more = make(cupy, a, b, bias)
            verify(cupy, more, a, b, bias)
            contenders.update(more)
        except Exception as error:  # an optional library: absent, or at odds with this driver
            result.note(f"not run: {make.__name__}: {type(error).__name__}: {error}")
    times = time_bursts(contenders, cupy.cuda.runtime.deviceSynchronize, rounds=rounds, calls=calls)
    rows = [summary(name, values, "us") for name, values in times.items()]
    for row in rows:
        row["over_floor"] = round(ratio(times[row["name"]], times[FLOOR]).of_medians, 4)
    print_rows(rows)
    result.rows += rows
    judge(result, times)


def judge(result: Result, times: dict[str, list[float]]) -> None:
    """The goals; each is held to the worse of the ratio of medians and the median of the rounds' ratios."""
    wanted = [
        (OURS_OUT, FLOOR, 1.5, False),
        (OURS_OUT, FLOOR, 1.25, True),
        (OURS_VARIED, FLOOR, 1.5, True),
        (OURS, RAW, 1.0, False),
        (OURS, RAW_PREPARED, 1.0, True),
        (OURS, TRITON, 1 / 3, False),
        (OURS, TRITON_BARE, 1 / 3, True),
        (OURS_TORCH_OUT, FLOOR, 1.5, True),
        (OURS_TORCH, TRITON, 0.5, False),
        (OURS_TORCH, TRITON, 0.42, True),
        (OURS_TORCH, FUSED, 0.75, False),
    ]
    for mine, theirs, limit, stretch in wanted:
        if mine not in times or theirs not in times:
            result.note(f"not judged: {mine} / {theirs}")
            continue
        found = ratio(times[mine], times[theirs])
        name = f"{mine} / {theirs}"
        result.goals.append(Goal(name, found.worse, round(limit, 4), stretch))
        told = f"{name}: of medians {found.of_medians:.3f}, median of rounds {found.median_of_rounds:.3f}"
        if told not in result.notes:  # a pair may have two limits
            result.note(told)


def ours(cupy: Any, a: Any, b: Any, bias: Any) -> dict[str, Call]:
    """The bare launch of our own cubin, and our two calls."""
    out = cupy.empty((SIZE, SIZE), dtype=cupy.float32)
    report = matmul_epilogue.inspect(a, b, bias, relu=True)
    # The kernel's own order: the arrays, the output, the sizes. `verify` would find a mistake here.
    bare = prepared_launch(report, (*(x.data.ptr for x in (a, b, bias, out)), SIZE, SIZE, SIZE))
    bare.__dict__["out"] = out
    given = cupy.empty((SIZE, SIZE), dtype=cupy.float32)

    def with_out() -> Any:
        return matmul_epilogue(a, b, bias, relu=True, out=given)

    # The calls above and below are told by their objects. Here are more objects than are remembered.
    inputs = itertools.cycle([a[:] for _ in range(3000)])

    def varied() -> Any:
        return matmul_epilogue(next(inputs), b, bias, relu=True, out=given)

    def allocates() -> Any:
        return matmul_epilogue(a, b, bias, relu=True)

    return {FLOOR: bare, OURS_OUT: with_out, OURS_VARIED: varied, OURS: allocates}


def prepared_launch(report: Any, arguments: tuple[int, ...]) -> Call:
    """``cuda.core.launch`` of a report's cubin with nothing left to prepare."""
    from cuda.core import LEGACY_DEFAULT_STREAM, Device, LaunchConfig, ObjectCode, launch

    Device(0).set_current()
    code = ObjectCode.from_cubin(report.cubin.code)
    kernel = code.get_kernel(report.cubin.entry)
    config = LaunchConfig(grid=report.grid.grid, block=report.grid.block, shmem_size=report.grid.shared_memory_bytes)
    stream = LEGACY_DEFAULT_STREAM  # CuPy's current stream, unless told otherwise

    def bare() -> None:
        launch(stream, config, kernel, *arguments)

    bare.__dict__["code"] = code
    return bare


def raw_kernels(cupy: Any, a: Any, b: Any, bias: Any) -> dict[str, Call]:
    """The same source through ``cupy.RawKernel``, as people write it."""
    report = matmul_epilogue.inspect(a, b, bias, relu=True)
    assert report.grid is not None
    raw = cupy.RawKernel(report.source, "matmul_epilogue")
    grid, block = report.grid.grid, report.grid.block
    out = cupy.empty((SIZE, SIZE), dtype=cupy.float32)
    sizes = (np.int32(SIZE),) * 3
    prepared = (a, b, bias, out, *sizes)
    n = SIZE

    def by_hand() -> Any:
        c = cupy.empty((n, n), dtype=cupy.float32)
        raw(grid, block, (a, b, bias, c, np.int32(n), np.int32(n), np.int32(n)))
        return c

    def scalars_prepared() -> Any:
        c = cupy.empty((n, n), dtype=cupy.float32)
        raw(grid, block, (a, b, bias, c, *sizes))
        return c

    def all_prepared() -> Any:
        raw(grid, block, prepared)
        return out

    return {RAW: by_hand, RAW_PREPARED: scalars_prepared, "cupy.RawKernel, all prepared": all_prepared}


def torch_arrays(cupy: Any, a: Any, b: Any, bias: Any) -> dict[str, Call]:
    """Our calls with torch's tensors."""
    import torch

    ta, tb, tbias = (torch.from_dlpack(x) for x in (a, b, bias))
    given = torch.empty((SIZE, SIZE), dtype=torch.float32, device="cuda")

    def with_out() -> Any:
        return matmul_epilogue(ta, tb, tbias, relu=True, out=given)

    def allocates() -> Any:
        return matmul_epilogue(ta, tb, tbias, relu=True)

    return {OURS_TORCH_OUT: with_out, OURS_TORCH: allocates}


def triton_and_torch(cupy: Any, a: Any, b: Any, bias: Any) -> dict[str, Call]:
    """The same product in Triton, with and without its output, and torch's one fused call."""
    import torch
    from triton_matmul import launch, matmul_like_the_tutorial

    ta, tb, tbias = (torch.from_dlpack(x) for x in (a, b, bias))
    given = torch.empty((SIZE, SIZE), dtype=torch.float32, device="cuda")
    grid = ((SIZE + 31) // 32, (SIZE + 31) // 32)
    sizes = (SIZE, SIZE, SIZE)

    def triton_out() -> Any:
        launch(ta, tb, tbias, given, grid, sizes)
        return given

    def triton_allocates() -> Any:
        c = torch.empty((SIZE, SIZE), dtype=torch.float32, device="cuda")
        launch(ta, tb, tbias, c, grid, sizes)
        return c

    def fused() -> Any:
        return torch._addmm_activation(tbias, ta, tb)

    def unfused() -> Any:
        return torch.relu(torch.addmm(tbias, ta, tb))

    return {
        "triton.jit, output given": triton_out,
        TRITON: lambda: matmul_like_the_tutorial(ta, tb, tbias),
        TRITON_BARE: triton_allocates,
        FUSED: fused,
        "torch relu(addmm)": unfused,
    }


def numba_cuda(cupy: Any, a: Any, b: Any, bias: Any) -> dict[str, Call]:
    """One thread an element in numba-cuda, device arrays and launch configuration prepared."""
    from numba import config, cuda

    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

    @cuda.jit
    def product(a, b, bias, out):  # type: ignore[no-untyped-def]
        column, row = cuda.grid(2)
        if row < out.shape[0] and column < out.shape[1]:
            value = bias[column]
            for k in range(a.shape[1]):
                value += a[row, k] * b[k, column]
            out[row, column] = max(value, np.float32(0))

    out = cupy.empty((SIZE, SIZE), dtype=cupy.float32)
    arrays = [cuda.as_cuda_array(x) for x in (a, b, bias, out)]
    configured = product[(2, 2), (16, 16)]

    def call() -> Any:
        configured(*arrays)
        return out

    return {"numba.cuda.jit, output given": call}


def verify(cupy: Any, contenders: dict[str, Call], a: Any, b: Any, bias: Any) -> None:
    """Nobody is timed whose result is wrong."""
    want = np.maximum(a.get().astype(np.float64) @ b.get().astype(np.float64) + bias.get(), 0)
    for name, call in contenders.items():
        given = getattr(call, "__dict__", {}).get("out")
        if given is not None:
            given.fill(cupy.nan)
        found = call()
        cupy.cuda.runtime.deviceSynchronize()
        found = given if found is None else found
        assert found is not None, f"{name} returns nothing and was given no out="
        got = found.get() if hasattr(found, "get") else found.cpu().numpy()
        error = float(np.abs(got - want).max())
        if not error <= 1e-3:  # a NaN neither
            raise RuntimeError(f"{name}: the result is wrong by {error}")


# empty kernels --------------------------------------------------------------------------------------------------------


def sweep(result: Result, cupy: Any, rounds: int, calls: int) -> None:
    """Empty kernels with 1, 5 and 19 arguments: all arrays, or one array and scalars; against a bare launch."""
    contenders: dict[str, Call] = {}
    pairs = [(1, 1), (5, 5), (19, 19), (5, 1), (19, 1)]
    for count, arrays in pairs:
        kind = f"{count} argument{'s' * (count > 1)} ({arrays} array{'s' * (arrays > 1)})"
        function = empty_kernel(count, arrays)
        values = [cupy.zeros(1, dtype=cupy.float32) if i < arrays else i for i in range(count)]
        report = function.inspect(*values)
        bare = prepared_launch(report, tuple(getattr(getattr(v, "data", None), "ptr", v) for v in values))
        contenders[f"cuda.core, {kind}"] = bare
        contenders[f"cuplate, {kind}"] = bind(function, values)
    times = time_bursts(contenders, cupy.cuda.runtime.deviceSynchronize, rounds=rounds, calls=calls)
    rows = [summary(name, values, "us") for name, values in times.items()]
    for row in rows:
        if row["name"].startswith("cuplate"):
            bare_times = times[row["name"].replace("cuplate", "cuda.core", 1)]
            row["over_bare_launch"] = round(ratio(times[row["name"]], bare_times).of_medians, 4)
    print_rows(rows)
    for row in rows:
        if "over_bare_launch" in row:
            result.note(f"{row['name']}: {row['over_bare_launch']:.2f} x the bare launch")
    result.rows += rows


def empty_kernel(count: int, arrays: int) -> Any:
    """A kernel that does nothing, of `count` arguments, the first `arrays` of them arrays."""
    names = [f"x{i}" for i in range(count)]
    namespace: dict[str, Any] = {}
    exec(f"def empty({', '.join(names)}):\n    raise NotImplementedError", namespace)
    function = namespace["empty"]
    kinds = {n: Float32[Array, "N"] if i < arrays else i32 for i, n in enumerate(names)}
    function.__annotations__ = {**kinds, "return": None}
    template = Inline('extern "C" __global__ void {{ kernel }}({{ args }}) {}')
    return specialize(template, mutates="x0", static="N", block=32)(function)


def bind(function: Any, values: list[Any]) -> Call:
    """The call written out, as people write it: unpacking a list would cost a little of its own."""
    names = [f"x{i}" for i in range(len(values))]
    namespace = {"function": function, **dict(zip(names, values, strict=True))}
    exec(f"def call():\n    function({', '.join(names)})", namespace)
    call: Call = namespace["call"]
    return call


if __name__ == "__main__":
    sys.exit(main())
