"""The shipped functions on a GPU, against float64 NumPy."""

from __future__ import annotations

import shutil
import threading
from typing import Any

import cupy
import numpy as np
import pytest

import cuplate
from cuplate import cache
from cuplate.kernels import matmul_epilogue

SHAPES = [(1, 1, 1), (64, 64, 64), (1000, 300, 500), (17, 33, 31), (257, 1, 15), (0, 5, 7), (5, 0, 7), (5, 7, 0)]


def inputs(m: int, k: int, n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Random normal data."""
    rng = np.random.default_rng(seed)
    shapes = ((m, k), (k, n), (n,))
    return tuple(cupy.asarray(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes)  # type: ignore[return-value]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tile", [16, 32])
@pytest.mark.parametrize("relu", [False, True])
def test_matmul_epilogue_against_float64(shape: tuple[int, int, int], tile: Any, relu: bool) -> None:
    """Any shape, also empty and with nothing to sum; cold, warm and with a given output; within the stated bound."""
    a, b, bias = inputs(*shape)
    wide = [x.get().astype(np.float64) for x in (a, b, bias)]
    wanted = matmul_epilogue.reference(*wide, relu=relu)
    bound = (shape[1] + 2) * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(wide[2])) + 1e-30
    out = cupy.full((shape[0], shape[2]), cupy.nan, cupy.float32)
    for got in (*(matmul_epilogue(a, b, bias, tile=tile, relu=relu) for _ in range(2)),
                matmul_epilogue(a, b, bias, tile=tile, relu=relu, out=out)):  # fmt: skip
        assert got.shape == wanted.shape and got.dtype == np.float32
        assert (np.abs(got.get() - wanted) <= bound).all()
    assert matmul_epilogue(a, b, bias, tile=tile, relu=relu, out=out) is out


def test_the_two_spellings_of_relu_share_one_loaded_kernel() -> None:
    """One compile or disk hit, one load."""
    a, b, bias = inputs(40, 30, 50)
    matmul_epilogue.cache_clear()
    loads: list[cuplate.events.Event] = []
    with cuplate.subscribe(loads.append, "load"):
        first = matmul_epilogue(a, b, bias, relu=True)
        second = matmul_epilogue(a, b, bias, epilogue="relu")
    assert len(loads) == 1
    assert bool((first == second).all())


def test_it_goes_on_when_the_cache_directory_is_deleted() -> None:
    """Warm calls open no file; a new variant compiles, although its store has vanished."""
    a, b, bias = inputs(64, 64, 64)
    matmul_epilogue(a, b, bias)
    directory = cache.info().directory
    assert directory is not None
    shutil.rmtree(directory, ignore_errors=True)
    for tile in (16, 16, 32, 32):
        assert bool(cupy.allclose(matmul_epilogue(a, b, bias, tile=tile), a @ b + bias, atol=1e-3))


def test_sass_shows_the_machine_code_where_a_disassembler_is() -> None:
    """The receipt's SASS names the kernel and its multiply-adds; the receipt has the device's architecture."""
    report = matmul_epilogue.inspect(*inputs(64, 64, 64), relu=True)
    assert report.arch in str(report) and report.grid is not None
    assert "matmul_epilogue" in report.ptx
    if shutil.which("nvdisasm") is None and shutil.which("cuobjdump") is None:
        pytest.skip("neither nvdisasm nor cuobjdump")
    assert report.sass is not None and "FFMA" in report.sass


def test_a_thread_without_a_context_can_call_cold_and_warm() -> None:
    """With ``out=`` given CuPy does nothing in the thread before the launch; the context is ours to make."""
    a, b, bias = inputs(48, 48, 48)
    wanted = cupy.maximum(a @ b + bias, 0)
    cupy.cuda.get_current_stream().synchronize()
    matmul_epilogue.cache_clear()
    for _ in range(3):  # the first is cold
        out = cupy.zeros((48, 48), cupy.float32)
        thread = threading.Thread(target=matmul_epilogue, args=(a, b, bias), kwargs={"relu": True, "out": out})
        thread.start()
        thread.join()
        assert bool(cupy.allclose(out, wanted, atol=1e-3))


def test_the_same_objects_again_with_new_contents_are_computed_again() -> None:
    """Buffers that are written in place and passed on, with and without `out=`; a shape changed in place is seen."""
    a, b, bias = inputs(24, 16, 8)
    out = cupy.empty((24, 8), cupy.float32)
    for step in range(6):
        a[...] = step
        b[...] = 1 + step
        wanted = 16.0 * step * (1 + step) + bias.get()[None, :]
        made = matmul_epilogue(a, b, bias)
        assert matmul_epilogue(a, b, bias, out=out) is out and made is not out
        np.testing.assert_allclose(out.get(), np.broadcast_to(wanted, (24, 8)), rtol=1e-6)
        assert (made == out).all() and made.data.ptr != out.data.ptr
    a.shape = (16, 24)
    with pytest.raises(cuplate.ShapeError):
        matmul_epilogue(a, b, bias, out=out)
    a.shape = (24, 16)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a[...] = 0
        made = matmul_epilogue(a, b, bias)
        stream.synchronize()
        np.testing.assert_array_equal(made.get(), np.broadcast_to(bias.get(), (24, 8)))


def test_an_output_is_an_array_like_any_other_of_cupy() -> None:
    """It is made below CuPy's layer for subclasses: same type, own memory from the pool, freed with it."""
    from cuplate.backend import owners

    a, b, bias = inputs(24, 16, 8)
    outs = [matmul_epilogue(a, b, bias) for _ in range(4)]
    plain = cupy.empty((24, 8), cupy.float32)
    for out in outs:
        assert type(out) is cupy.ndarray and out.base is None and out.flags.owndata
        assert (out.shape, out.strides, out.dtype, out.data.mem.size) == (
            plain.shape, plain.strides, plain.dtype, plain.data.mem.size
        )  # fmt: skip
    assert len({out.data.ptr for out in outs}) == 4
    assert owners.find_owner("a", a, "f").maker() is not cupy.ndarray  # type: ignore[attr-defined]
    pool = cupy.get_default_memory_pool()
    used = pool.used_bytes()
    del outs, out
    assert pool.used_bytes() == used - 4 * plain.data.mem.size
