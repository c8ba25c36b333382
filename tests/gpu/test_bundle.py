"""From a run on a GPU to a bundle that the next run needs and nothing else: by the keys that a device asks for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, Inline, Options, cache, specialize
from cuplate.build import build
from cuplate.kernels import matmul_epilogue, softmax, transpose

cupy = pytest.importorskip("cupy")


@specialize(
    Inline(
        'extern "C" __global__ void {{ kernel }}({{ args }}) {\n'
        "    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < N) out[i] = x[i] + {{ 4 if x.aligned(16) else 1 }};\n}"
    ),
    options=Options(arch_specific=True),
    block="32 * min(sm_count, 4)",
)
def of_this_product(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """Of an architecture's own features, an alignment, and the number of multiprocessors."""
    raise NotImplementedError


def calls() -> list[Callable[[], Any]]:
    """Of all that an entry may say, each twice with other sizes."""
    a, b = cupy.ones((70, 30), cupy.float32), cupy.ones((30, 50), cupy.float32)
    large = cupy.ones((2048, 2048), cupy.float32)
    return [
        lambda: matmul_epilogue(a, b, cupy.ones(50, cupy.float32), relu=True),
        lambda: matmul_epilogue(large, large, large[0]),
        lambda: matmul_epilogue(a, b, cupy.ones(50, cupy.float32), tile=32),
        lambda: softmax(cupy.ones((9, 300), cupy.float32)),
        lambda: softmax(cupy.ones((7, 301), cupy.float32)[:, 1:].copy()),
        lambda: transpose(a),
        lambda: of_this_product(cupy.zeros(100, cupy.float32)),
        lambda: of_this_product(cupy.zeros(101, cupy.float32)[1:]),
    ]


@pytest.mark.parametrize("late", [False, True])
def test_a_frozen_run_needs_nothing_but_what_was_recorded(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded from the first call or from the plans in memory, built, and run again: no compile, the same results."""
    functions = (matmul_epilogue, softmax, transpose, of_this_product)
    monkeypatch.setattr(import_module("cuplate.record"), "live_walks", lambda: [f.reload.__self__ for f in functions])
    for function in functions:
        function.cache_clear()
    wanted = [call() for call in calls()] if late else []
    with cuplate.record(tmp_path / "run.json"):
        wanted = [call() for call in calls()]
    number = cupy.cuda.Device().compute_capability
    built = build(tmp_path / "run.json", [f"sm_{number}"], tmp_path / "kernels.cuplate")
    assert built.exported is not None, str(built.warmed)
    for function in functions:
        function.cache_clear()
    cache.clear()
    before = cache.stats(all_threads=True).compile.compiles
    with cuplate.configure(disk=False, frozen=True, layers=[tmp_path / "kernels.cuplate"]):
        again = [call() for call in calls()]
    assert cache.stats(all_threads=True).compile.compiles == before
    assert all(bool((a == b).all()) for a, b in zip(wanted, again, strict=True))
    assert sys.getsizeof((tmp_path / "run.json").read_text()) < 10_000
