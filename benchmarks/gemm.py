"""Device time of relu(a @ b + bias) in float32 and bfloat16, every contender in one process, shuffled in each round.

Random normal data, several sets of it by turns; every contender is compared with float64 before it is timed. TF32 is
off everywhere. `_addmm_activation` is cuBLASLt's own fused bias and ReLU, the fair opponent; `torch.mm` is its product
alone, and CuPy the product and two passes over it. What is timed is `matmul_epilogue`, which chooses its kernel, and
`matmul_mma` and `matmul_mma_tma` by their names; in float32 its `precision` too, with the errors of all. Every epilogue
is timed against the plain product.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable
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

from cuplate.kernels import matmul_epilogue, matmul_mma, matmul_mma_tma

OURS = "cuplate"
SEED = "cuplate, tile=16"
LT = "torch _addmm_activation (cuBLASLt)"
MM = "torch mm alone (cuBLAS)"
CUPY = "cupy maximum(a @ b + bias, 0)"
SETS = 3
WARM_S = 0.8  # under load, before the first round: clocks and temperature settle
Call = Callable[[], Any]

# How many times as fast as cuBLAS in float32, and the relative error in 1e-6.
SPLIT: dict[Any, tuple[float, float]] = {"bf16x3": (5.0, 8.0), "bf16x6": (2.3, 2.0)}

MMA, TMA, PLAIN = "cuplate mma", "cuplate mma tma", "cuplate, no epilogue"
AGAIN, UNFUSED = f"{LT}, again", "torch relu(addmm)"
# M, N, K and what the fused product of cuBLASLt takes, at most and at best, for ours.
TENSOR = {
    (8192, 8192, 8192): (1.0, 1 / 1.05),
    (4096, 4096, 4096): (1.0, 1 / 1.05),
    (2048, 2048, 2048): (1.0, 1 / 1.03),
    (8192, 8192, 512): (1.0, 1 / 1.3),
}


def main() -> int:
    options = read_options(
        __doc__,
        ("--sizes", {"type": int, "nargs": "+", "default": None, "help": "edges (default 4096 8192, quick 1024)"}),
        ("--rounds", {"type": int, "default": None, "help": "rounds (default 25, quick 5)"}),
        ("--dtype", {"choices": ("float32", "bfloat16"), "default": None, "help": "one of the two alone"}),
    )
    result = start("gemm", options)
    cupy = skip_without_gpu(result)
    if cupy is None:
        return result.finish(options)
    torch = skip_without_torch(result, "its cuBLAS")
    if torch is None:
        return result.finish(options)
    rounds = options.rounds or (5 if options.quick else 25)
    if options.dtype != "bfloat16":
        for size in options.sizes or ([1024] if options.quick else [4096, 8192]):
            product(result, cupy, torch, size, rounds)
            split_product(result, torch, size, rounds)
    if options.dtype != "float32":
        cubes = {(n, n, n): (1.0, 1.0) for n in options.sizes or ([1024] if options.quick else [])}
        for shape, goals in (cubes or TENSOR).items():
            tensor_product(result, torch, shape, goals, rounds)
        for shape in [(n, n, n) for n in options.sizes] if options.sizes else [(1024,) * 3] if options.quick else TAXED:
            taxes(result, torch, shape, rounds)
    return result.finish(options)


def product(result: Result, cupy: Any, torch: Any, size: int, rounds: int) -> None:
    """All rows of one size, and its goals."""
    torch.backends.cuda.matmul.allow_tf32 = False
    contenders, compare = prepare(cupy, torch, size)
    for name, call in contenders.items():
        compare(name, call)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        for _ in range(4):
            contenders[OURS]()
        cupy.cuda.get_current_stream().synchronize()
    event = lambda: torch.cuda.Event(enable_timing=True)  # noqa: E731
    times = time_events(contenders, event, rounds=rounds, calls=max(1, (8192 // size) ** 2 // 2))
    rows = []
    for name, values in times.items():
        row = summary(f"{size}^3: {name}", values, "ms")
        row["tflops"] = round(2e-9 * size**3 / row["median"], 2)
        rows.append(row)
    print_rows(rows)
    for row in rows:
        result.note(f"{row['name']}: {row['tflops']} TFLOP/s")
    result.rows += rows
    judge(result, times, size)


def prepare(cupy: Any, torch: Any, size: int) -> tuple[dict[str, Call], Callable[[str, Call], None]]:
    """The contenders on the same arrays, and a comparison of one call with float64."""
    draw = cupy.random.default_rng(size).standard_normal
    shapes = ((size, size), (size, size), (size,))
    sets = [tuple(draw(shape, dtype=cupy.float32) for shape in shapes) for _ in range(SETS)]
    out = cupy.empty((size, size), cupy.float32)
    t_sets, t_out = [tuple(map(torch.from_dlpack, s)) for s in sets], torch.from_dlpack(out)
    activation = torch.ops.aten._addmm_activation.out
    product_only = torch.empty_like(t_out)
    turns = {name: itertools.cycle(range(SETS)) for name in (OURS, SEED, LT, MM, CUPY)}

    def ours() -> Any:
        return matmul_epilogue(*sets[next(turns[OURS])], relu=True, out=out)

    def seed() -> Any:
        return matmul_epilogue(*sets[next(turns[SEED])], relu=True, tile=16, out=out)

    def lt() -> Any:
        a, b, bias = t_sets[next(turns[LT])]
        return activation(bias, a, b, use_gelu=False, out=t_out)

    def mm() -> Any:
        a, b, _ = t_sets[next(turns[MM])]
        return torch.mm(a, b, out=product_only)

    def unfused() -> Any:
        a, b, bias = sets[next(turns[CUPY])]
        return cupy.maximum(a @ b + bias, 0)

    def compare(name: str, call: Call) -> None:
        """Each set once, over an output that was poisoned, with what float64 says."""
        for a, b, bias in t_sets:
            t_out.fill_(float("nan"))
            product_only.fill_(float("nan"))
            got = torch.as_tensor(call(), device="cuda").double()
            wanted = a.double() @ b.double()
            wanted = wanted if name == MM else (wanted + bias.double()).clamp_min(0)
            error = float((got - wanted).norm() / wanted.norm())
            if not error < 1e-5:  # TF32 would be at 3e-4; NaN too is wrong
                raise AssertionError(f"{name} at {size}^3: relative error {error}")

    calls: dict[str, Call] = {OURS: ours, LT: lt, MM: mm, CUPY: unfused}
    return calls | ({SEED: seed} if size <= 4096 else {}), compare


def judge(result: Result, times: dict[str, list[float]], size: int) -> None:
    """G5 against the fused peer, G9 against the seed's kernel; the product alone and CuPy are told."""
    wanted = [(LT, 1.0, False), (LT, 1 / 1.02, True), (MM, 1.0, True), (CUPY, 1.0, False), (SEED, 1 / 6, False)]
    for peer, limit, stretch in wanted:
        if peer in times:
            found = ratio(times[OURS], times[peer])
            result.goals.append(Goal(f"{size}^3 float32: {OURS} / {peer}", found.worse, round(limit, 4), stretch))


def split_product(result: Result, torch: Any, size: int, rounds: int) -> None:
    """G6 and G7: float32 by products of bfloat16, split included, against cuBLAS; the error of all is told."""
    if torch.cuda.get_device_capability() != (9, 0):
        return
    sets = [tuple(torch.randn(size, size, device="cuda") for _ in range(2)) for _ in range(SETS)]
    out, turns = torch.empty(size, size, device="cuda"), itertools.cycle(range(SETS))

    def of(call: Callable[[Any, Any], Any]) -> Call:
        return lambda: call(*sets[next(turns)])

    contenders = {
        MM: of(lambda a, b: torch.mm(a, b, out=out)),
        f"{MM}, again": of(lambda a, b: torch.mm(a, b, out=out)),
        **{f"cuplate {p}": of(functools.partial(matmul_epilogue, precision=p, out=out)) for p in SPLIT},
    }
    with contextlib.suppress(ImportError):
        from triton_matmul import tf32x3

        contenders["Triton tf32x3"] = of(lambda a, b: tf32x3(a, b, out))
    errors = dict.fromkeys(contenders, 0.0)
    for name, call in contenders.items():
        for a, b in sets:
            out.fill_(float("nan"))
            wanted = a.double() @ b.double()
            errors[name] = max(errors[name], float((call().double() - wanted).norm() / wanted.norm()))
    event = lambda: torch.cuda.Event(enable_timing=True)  # noqa: E731
    times = time_events(contenders, event, rounds=rounds, calls=max(1, (8192 // size) ** 2 // 2))
    rows = []
    for name, values in times.items():
        row = summary(f"{size}^3 float32 by sums: {name}", values, "ms")
        row["tflops"], row["error"] = round(2e-9 * size**3 / row["median"], 2), errors[name]
        rows.append(row)
    print_rows(rows)
    for row in rows:
        result.note(f"{row['name']}: {row['tflops']} TFLOP/s, relative error {row['error']:.2g}")
    result.rows += rows
    for precision, (speed, error) in SPLIT.items():
        name = f"{size}^3 float32: cuplate {precision}"
        found = ratio(times[f"cuplate {precision}"], times[MM])
        # Stated for 8192^3: smaller products are split in the same time for fewer sums.
        result.goals.append(Goal(f"{name} / {MM}", found.worse, round(1 / speed, 4), size < 8192))
        result.goals.append(Goal(f"{name}, relative error in 1e-6", errors[f"cuplate {precision}"] * 1e6, error))


def prepare_tensor(torch: Any, shape: tuple[int, int, int]) -> dict[str, Call]:
    """The contenders in bfloat16, each compared with float64 over a poisoned output."""
    m, n, k = shape
    bf16 = torch.bfloat16
    sets = [tuple(torch.randn(s, device="cuda").to(bf16) for s in ((m, k), (k, n), (n,))) for _ in range(SETS)]
    out = torch.empty(m, n, device="cuda", dtype=bf16)
    activation = torch.ops.aten._addmm_activation.out
    turns = itertools.cycle(range(SETS))

    def of(call: Callable[[Any, Any, Any], Any]) -> Call:
        return lambda: call(*sets[next(turns)])

    calls = {
        LT: of(lambda a, b, bias: activation(bias, a, b, use_gelu=False, out=out)),
        AGAIN: of(lambda a, b, bias: activation(bias, a, b, use_gelu=False, out=out)),
        MM: of(lambda a, b, bias: torch.mm(a, b, out=out)),
        UNFUSED: of(lambda a, b, bias: torch.relu(torch.addmm(bias, a, b))),
        MMA: of(lambda a, b, bias: matmul_mma(a, b, bias, relu=True, out=out)),
    }
    if torch.cuda.get_device_capability() >= (9, 0):
        calls[TMA] = of(lambda a, b, bias: matmul_mma_tma(a, b, bias, relu=True, out=out))
    calls[OURS] = of(lambda a, b, bias: matmul_epilogue(a, b, bias, relu=True, out=out))
    calls[PLAIN] = of(lambda a, b, bias: matmul_epilogue(a, b, out=out))
    plain = (MM, PLAIN)
    for name, call in calls.items():
        for i in range(SETS):
            a, b, bias = sets[i]
            while next(turns) != (i - 1) % SETS:
                pass
            out.fill_(float("nan"))
            got = call().double()
            wanted = a.double() @ b.double()
            wanted = wanted if name in plain else (wanted + bias.double()).clamp_min(0)
            error = float((got - wanted).norm() / wanted.norm())
            if not error < 2.5e-3:  # a rounding to bfloat16 is at 1.7e-3; NaN too is wrong
                raise AssertionError(f"{name} at {shape}: relative error {error}")
    return calls


def timed(torch: Any, contenders: dict[str, Call], shape: tuple[int, int, int], rounds: int) -> dict[str, list[float]]:
    """Times of all, once the device is warm; several calls in one where one is short."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        for _ in range(4):
            next(iter(contenders.values()))()
        torch.cuda.synchronize()
    event = lambda: torch.cuda.Event(enable_timing=True)  # noqa: E731
    return time_events(contenders, event, rounds=rounds, calls=max(1, min(200, int(1e12 / (2 * math.prod(shape))))))


def time_tensor(result: Result, torch: Any, shape: tuple[int, int, int], rounds: int) -> dict[str, list[float]]:
    """All rows of one shape."""
    m, n, k = shape
    times = timed(torch, prepare_tensor(torch, shape), shape, rounds)
    rows = []
    for name, values in times.items():
        row = summary(f"{m} x {n} x {k} bfloat16: {name}", values, "ms")
        row["tflops"] = round(2e-9 * m * n * k / row["median"], 1)
        rows.append(row)
    print_rows(rows)
    for row in rows:
        result.note(f"{row['name']}: {row['tflops']} TFLOP/s")
    result.rows += rows
    return times


def tensor_product(
    result: Result, torch: Any, shape: tuple[int, int, int], goals: tuple[float, float], rounds: int
) -> None:
    """One shape and its goals: G1 to G3 against the fused peer, G8 for mma.sync."""
    times = time_tensor(result, torch, shape, rounds)
    name = " x ".join(map(str, shape)) + " bfloat16"
    wanted = [(ours, LT, 1 / part, part > 0.56) for ours in (MMA, TMA) if ours in times for part in (0.56, 0.62)]
    if torch.cuda.get_device_capability() == (9, 0):
        wanted += [(OURS, LT, goals[0], False), (OURS, LT, goals[1], True), (OURS, UNFUSED, 1.0, False)]
    for ours, peer, limit, stretch in wanted:
        found = ratio(times[ours], times[peer])
        result.goals.append(Goal(f"{name}: {ours} / {peer}", found.worse, round(limit, 4), stretch))


# every epilogue -------------------------------------------------------------------------------------------------------

GLU = "x * __fdividef(1, 1 + __expf(-x)) * residual"
# What is given of bias, residual, row_scale and column_scale (by its first letter), and the compile-time values.
EPILOGUES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("", {}),
    "plain, again": ("", {}),
    "bias": ("b", {}),
    "bias, relu": ("b", {"relu": True}),
    "bias, gelu": ("b", {"epilogue": "gelu"}),
    "bias, gelu_tanh": ("b", {"epilogue": "gelu_tanh"}),
    "bias, silu": ("b", {"epilogue": "silu"}),
    "scale, limits": ("", {"scale": 0.5, "low": -20.0, "high": 20.0}),
    "row_scale": ("r", {}),
    "column_scale": ("c", {}),
    "both scales": ("rc", {}),
    "residual": ("e", {}),
    "bias, relu, residual": ("be", {"relu": True}),
    "an expression": ("", {"expression": "x / (1 + fabsf(x))"}),
    "an expression of the residual": ("e", {"expression": GLU}),
    "all": ("berc", {"epilogue": "silu", "scale": 0.5, "high": 20.0}),
}
GELU, RELU = f"{LT}, bias, gelu", f"{LT}, bias, relu"
TAXED = ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 512))


def taxes(result: Result, torch: Any, shape: tuple[int, int, int], rounds: int) -> None:
    """G4: what each epilogue takes, over the product without one."""
    m, n, k = shape
    bf16 = torch.bfloat16
    a, b, bias, residual = (torch.randn(s, device="cuda").to(bf16) for s in ((m, k), (k, n), (n,), (m, n)))
    rows, columns = torch.rand(m, device="cuda") + 0.5, torch.rand(n, device="cuda") + 0.5
    out = torch.empty(m, n, device="cuda", dtype=bf16)
    arrays = {
        "b": ("bias", bias),
        "e": ("residual", residual),
        "r": ("row_scale", rows),
        "c": ("column_scale", columns),
    }
    product = a.double() @ b.double()

    def of(given: str, values: dict[str, Any]) -> Call:
        operands = dict(arrays[letter] for letter in given)
        return lambda: matmul_epilogue(a, b, **operands, **values, out=out)

    def finished(given: str, values: dict[str, Any]) -> Any:
        x = product * values.get("scale", 1.0)
        x = x * rows[:, None] if "r" in given else x
        x = x * columns if "c" in given else x
        x = x + bias if "b" in given else x
        f, nn = "relu" if values.get("relu") else values.get("epilogue", "identity"), torch.nn.functional
        if "expression" in values:
            return nn.silu(x) * residual if "e" in given else x / (1 + x.abs())
        tanh = lambda v: nn.gelu(v, approximate="tanh")  # noqa: E731
        known = {"identity": lambda v: v, "relu": torch.relu, "silu": nn.silu, "gelu": nn.gelu, "gelu_tanh": tanh}
        x = known[f](x) + (residual if "e" in given else 0)
        return x.clamp(values.get("low", -math.inf), values.get("high", math.inf))

    contenders = {name: of(*epilogue) for name, epilogue in EPILOGUES.items()}
    activation = torch.ops.aten._addmm_activation.out
    peers: dict[str, Call] = {
        GELU: lambda: activation(bias, a, b, use_gelu=True, out=out),
        RELU: lambda: activation(bias, a, b, use_gelu=False, out=out),
    }
    for name, call in contenders.items():
        out.fill_(float("nan"))
        wanted = finished(*EPILOGUES[name])
        error = float((call().double() - wanted).norm() / wanted.norm())
        if not error < 2.5e-3:  # a rounding to bfloat16 is at 1.7e-3; NaN too is wrong
            raise AssertionError(f"{name} at {shape}: relative error {error}")
    times = timed(torch, contenders | peers, shape, rounds)
    name = " x ".join(map(str, shape)) + " bfloat16"
    shown = [summary(f"{name}: {what}", values, "ms") for what, values in times.items()]
    print_rows(shown)
    result.rows += shown
    for what in EPILOGUES:
        if what != "plain":
            found = ratio(times[what], times["plain"])
            if shape == TAXED[0]:
                result.goals.append(Goal(f"{name}: {what} / plain", found.worse, 1.01, True))
            else:
                result.note(f"{name}: {what} / plain: {found.worse:.3f}")
    for ours, peer in (("bias, gelu_tanh", GELU), ("bias, relu", RELU)):
        result.goals.append(Goal(f"{name}: {ours} / {peer}", ratio(times[ours], times[peer]).worse, 1.0))


if __name__ == "__main__":
    sys.exit(main())
