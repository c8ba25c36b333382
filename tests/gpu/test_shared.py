"""A kernel that another node compiled, from the shared tier to the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, Inline, cache, specialize
from tests.servers import Served

TEXT = """extern "C" __global__ void {{ kernel }}({{ args }})
{
    {{ index_t }} i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = {{ factor }} * x[i];
}
"""


def scaled() -> Callable[..., Any]:
    """A function as a process that has just started has it."""

    @specialize(Inline(TEXT), grid="cdiv(N, 128)", block=128)
    def scale(x: Float32[Array, " N"], *, factor: int = 2) -> Float32[Array, " N"]:
        return factor * x

    return scale


def test_a_kernel_of_another_node_runs(served: Served, tmp_path: Path) -> None:
    """Compiled on one, loaded and launched on the other, whose disk has it from then on."""
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(1000, dtype=cupy.float32)
    found = []
    for name in ("a", "b", "b"):
        with cuplate.configure(shared=served.url, secret=b"a secret of the test", directory=tmp_path / name):
            cache.clear(memory=True, disk=False)
            function: Any = scaled()
            assert bool((function(x) == 2 * x).all())
            info = function.cache_info()
            found.append((info.compiles, info.shared_hits, info.disk_hits))
            tier = cache.shared_tier()
            assert tier is not None and tier.flush(30)
    assert found == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    tier.server.close()
