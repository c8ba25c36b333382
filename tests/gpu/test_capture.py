"""Calls inside a CUDA graph capture: a cold one is refused before anything forbidden, a warm one replays (B43)."""

from __future__ import annotations

import cupy
import pytest

from cuplate import CachePolicy, CaptureError, cache
from cuplate.cache import set_policy
from tests.bindings import first


def test_a_cold_call_in_a_capture_is_refused_and_leaves_the_capture_whole() -> None:
    """Nothing is compiled or loaded in a capture; the error says to call once before."""
    first.saxpy.cache_clear()
    x = cupy.ones(64, cupy.float32)
    out = cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(CaptureError, match="capture"):
            first.saxpy(2.0, x, x, out=out)
        graph = stream.end_capture()
    del graph
    assert bool((first.saxpy(2.0, x, x) == 3).all())


def test_a_warm_call_is_captured_and_replays_with_changed_inputs_after_its_eviction() -> None:
    """A captured kernel is never unloaded, whatever the memory tier lets go: the graph still points at it."""
    x = cupy.arange(1000, dtype=cupy.float32)
    y, out = cupy.ones_like(x), cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        first.saxpy(2.0, x, y, out=out)
        stream.synchronize()
        stream.begin_capture()
        first.saxpy(2.0, x, y, out=out)
        graph = stream.end_capture()
    before = set_policy(CachePolicy(memory_kernels=1))
    try:
        m = cupy.ones((32, 32), cupy.float32)
        for other in (first.transpose, first.softmax, first.stencil):  # they push saxpy out
            other(m)
    finally:
        set_policy(before)
    first.saxpy.cache_clear()
    cache.clear(disk=False)
    x[:] = 5
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert bool((out == 11).all())
