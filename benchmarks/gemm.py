"""Device time of relu(a @ b + bias) in float32, every contender in one process, shuffled anew in each round.

Random normal data, several sets of it by turns; every contender is compared with float64 before it is timed. TF32 is
off everywhere. `_addmm_activation` is cuBLASLt's own fused bias and ReLU, the fair opponent; `torch.mm` is its product
alone, and CuPy the product and two passes over it.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

from measuring import Goal, Result, print_rows, ratio, read_options, skip_without_gpu, start, summary, time_events

from cuplate.kernels import matmul_epilogue

OURS = "cuplate"
SEED = "cuplate, tile=16"
LT = "torch _addmm_activation (cuBLASLt)"
MM = "torch mm alone (cuBLAS)"
CUPY = "cupy maximum(a @ b + bias, 0)"
SETS = 3
WARM_S = 0.8  # under load, before the first round: clocks and temperature settle
Call = Callable[[], Any]


def main() -> int:
    options = read_options(
        __doc__,
        ("--sizes", {"type": int, "nargs": "+", "default": None, "help": "edges (default 4096 8192, quick 1024)"}),
        ("--rounds", {"type": int, "default": None, "help": "rounds (default 25, quick 5)"}),
    )
    result = start("gemm", options)
    cupy = skip_without_gpu(result)
    if cupy is None:
        return result.finish(options)
    try:
        import torch
    except ImportError as error:
        result.skipped = f"needs torch, for its cuBLAS: {error}"
        print(f"Nothing was measured: this benchmark {result.skipped}.")
        return result.finish(options)
    for size in options.sizes or ([1024] if options.quick else [4096, 8192]):
        product(result, cupy, torch, size, options.rounds or (5 if options.quick else 25))
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


if __name__ == "__main__":
    sys.exit(main())
