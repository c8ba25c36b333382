"""What a launch on the GPU passes: every dtype, structs by value, null pointers; and operators of torch."""

from __future__ import annotations

import itertools
import os
import shutil
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, DeviceError, DtypeError, Inline, LayoutError, specialize
from cuplate.kernels import matmul_epilogue
from tests import test_structs, widening
from tests.bindings import first

_count = itertools.count()


@pytest.mark.parametrize("dtype", widening.NUMPY)
def test_every_dtype_has_its_own_c_type(cp: Any, dtype: str) -> None:
    """Widened in a kernel, each value is what it was; thrice, so that the hot path has its turn."""
    host = widening.values(dtype)
    for _ in range(3):
        np.testing.assert_array_equal(cp.asnumpy(widening.widen(cp.asarray(host))), widening.widened(host))


@pytest.mark.parametrize("dtype", [*widening.NUMPY, *widening.NARROW])
def test_every_dtype_of_torch_has_its_own_c_type(torch: Any, dtype: str) -> None:
    """bfloat16 is no half, and the two kinds of eight bits are two."""
    host = widening.values(dtype)
    tensor = torch.from_numpy(host).cuda().to(getattr(torch, dtype))
    np.testing.assert_array_equal(widening.widen(tensor).cpu().numpy(), widening.widened(host))


@pytest.mark.parametrize("dtype", widening.NARROW)
def test_cupy_s_narrow_floats_are_never_read_as_others(cp: Any, dtype: str) -> None:
    """Of ml_dtypes, by turns with half."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    host = widening.values("float32")
    try:
        narrow = cp.asarray(host.astype(getattr(ml_dtypes, dtype)))
    except (TypeError, ValueError) as error:
        pytest.skip(f"this CuPy has no {dtype}: {error}")
    for _ in range(3):
        np.testing.assert_array_equal(cp.asnumpy(widening.widen(narrow)), host)
        np.testing.assert_array_equal(cp.asnumpy(widening.widen(cp.asarray(host.astype(np.float16)))), host)


def test_structs_arrive_member_by_member(cp: Any) -> None:
    """32 bytes, which the plain launcher has no type for; cold, warm and with ``out=``."""
    test_structs.check_struct(test_structs.adjust, cp.asarray, cp.asnumpy)
    x = cp.ones(7, cp.float32)
    for _ in range(3):
        test_structs.adjust(test_structs.struct(), x)
    assert test_structs.adjust.__globals__["_plans"], "the hot path takes such calls too"
    with pytest.raises(DtypeError):
        test_structs.adjust(1.0, x)


def test_structs_arrive_from_torch_and_on_a_stream(cp: Any, torch: Any) -> None:
    """Torch's tensors, and a given stream."""
    put, get = (lambda a: torch.from_numpy(a).cuda()), (lambda t: t.cpu().numpy())
    test_structs.check_struct(test_structs.adjust, put, get)
    stream = cp.cuda.Stream(non_blocking=True)
    x = cp.ones(3, cp.float32)
    cp.cuda.runtime.deviceSynchronize()
    out = test_structs.adjust(test_structs.struct(), x, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(cp.asnumpy(out), [11, 12, 13])


@pytest.mark.parametrize("args", [None, "x bias out N"])
def test_a_kernel_that_lists_an_optional_array_gets_a_null_pointer(cp: Any, args: str | None) -> None:
    """With and without the array, by turns."""

    @specialize(Inline(test_structs.NULLABLE), entry="k", args=args)
    def f(x: Float32[Array, " N"], bias: Float32[Array, " N"] | None = None) -> Float32[Array, " N"]:
        """x + bias."""
        raise NotImplementedError

    x = cp.ones(4, cp.float32)
    for _ in range(3):
        assert bool((f(x) == 1).all()) and bool((f(x, x) == 2).all())


def register(function: Any) -> Any:
    """An operator under a name that no test has used."""
    return function.torch_op(f"cuplate_gpu_test::{function.__name__}_{next(_count)}")


def test_an_operator_is_what_torch_expects_of_one(torch: Any) -> None:
    """Schema, fake outputs and symbols, by torch's own check; one that writes in place too."""
    x, square = torch.arange(8.0, device="cuda"), torch.ones(6, 6, device="cuda")
    torch.library.opcheck(register(first.saxpy), (2.0, x, x))
    torch.library.opcheck(register(matmul_epilogue), (square, square, square[0].clone()), {"relu": True})
    torch.library.opcheck(register(first.scale), (x.clone(), 2.0))


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_function_keeps_its_graph(torch: Any) -> None:
    """One graph through torch's own compiler, for many sizes; right behind what it generates."""
    operator = register(matmul_epilogue)
    how = {"backend": "inductor" if shutil.which("gcc") or shutil.which("cc") else "aot_eager"}  # it compiles C too
    call = torch.compile(lambda a, b, c: operator(a * 2, b, c, relu=True) + 1, fullgraph=True, dynamic=True, **how)
    for m, k, n in ((33, 16, 20), (64, 48, 32), (5, 7, 9)):
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        c = torch.randn(n, device="cuda")
        want = torch.relu((a * 2).double() @ b.double() + c.double()) + 1
        torch.testing.assert_close(call(a, b, c).double(), want, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def jax() -> Any:
    """JAX on the GPU, taking memory as it needs it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    try:
        jax.devices("gpu")
    except RuntimeError as error:
        pytest.skip(f"this JAX has no GPU: {error}")
    return jax


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "bool", "complex64", "uint32"])
def test_arrays_of_jax_are_read(cp: Any, jax: Any, dtype: str) -> None:
    """Also of the dtypes for which it has no interface but DLPack; on a stream, too."""
    host = widening.values(dtype)
    x = jax.numpy.asarray(host).astype(dtype)
    out = cp.zeros(8)
    for _ in range(2):
        assert widening.widen(x, out=out) is out
        np.testing.assert_array_equal(cp.asnumpy(out), widening.widened(host))
    with cp.cuda.Stream(non_blocking=True) as stream:
        widening.widen(x * 1 if dtype != "bool" else x, out=out)
        stream.synchronize()
    np.testing.assert_array_equal(cp.asnumpy(out), widening.widened(host))


def test_arrays_of_jax_are_never_written(cp: Any, jax: Any) -> None:
    """They are immutable, which their export does not say."""
    x = jax.numpy.ones(8, "float32")
    with pytest.raises(LayoutError, match="array 'out' is written by the kernel, but is read-only"):
        first.saxpy(2.0, cp.ones(8, cp.float32), cp.ones(8, cp.float32), out=x)
    with pytest.raises(DeviceError, match="cannot be allocated"):
        first.saxpy(2.0, x, x)


def test_a_launch_waits_for_jax_and_jax_s_memory_for_the_launch(cp: Any, jax: Any) -> None:
    """B41: a call runs behind what JAX still computes, and what is dropped at once is not used anew too soon."""
    slow = jax.jit(lambda x: (x @ x * 0 + 1)[0, :4096] * 3)
    big = jax.numpy.ones((8192, 8192), "float32")
    ones = cp.ones(4096, cp.float32)
    slow(big).block_until_ready()
    first.saxpy(1.0, slow(big), ones, out=cp.empty(4096, cp.float32))
    for _ in range(10):
        out = cp.zeros(4096, cp.float32)
        first.saxpy(1.0, slow(big), ones, out=out)
        noise = [jax.numpy.full(4096, i, "float32") for i in range(50)]  # would land in the memory of what is gone
        assert bool((out == 4).all())
        del noise
