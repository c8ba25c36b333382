"""What the libraries say of their arrays, here NumPy's: addresses, and fresh arrays."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import pytest

from cuplate import ArgumentError, DeviceError, DtypeError, LayoutError
from cuplate.backend.owners import HOST, find_owner, numpy_address
from cuplate.plan import FRESH_ALIGNMENT
from tests import widening
from tests.bindings import first


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "complex128", "bool"])
def test_the_address_is_that_of_the_first_element(dtype: str) -> None:
    """Of an array that may be written, and of one that may not."""
    array = np.zeros((3, 5), dtype)[1:]
    assert numpy_address(array) == array.ctypes.data
    array.flags.writeable = False
    assert numpy_address(array) == array.ctypes.data


def test_an_array_is_free_again_after_a_look_at_its_address() -> None:
    """No view of its memory stays behind, which would keep it from being resized."""
    array = np.zeros(4)
    numpy_address(array)
    array.resize(8, refcheck=False)
    assert numpy_address(array) == array.ctypes.data


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 0)])
def test_a_fresh_array_is_aligned_packed_and_writeable(shape: tuple[int, ...]) -> None:
    """As a plan counts on."""
    owner = find_owner("x", np.zeros(1), "f")
    array = owner.empty(shape, "float64", HOST, None)
    assert (array.shape, array.dtype) == (shape, np.float64)
    assert array.ctypes.data % FRESH_ALIGNMENT == 0
    assert array.flags.c_contiguous and array.flags.writeable


@pytest.mark.parametrize("dtype", widening.NUMPY)
def test_every_dtype_has_its_own_c_type(dtype: str) -> None:
    """Widened in a kernel, each value is what it was; NumPy's and torch's arrays alike."""
    host = widening.values(dtype)
    np.testing.assert_array_equal(widening.widen(host), widening.widened(host))
    with contextlib.suppress(ImportError):
        import torch

        made = widening.widen(torch.from_numpy(host))
        np.testing.assert_array_equal(made.numpy(), widening.widened(host))


def test_bfloat16_is_never_read_as_half() -> None:
    """ml_dtypes'; the formats of eight bits are tested on the GPU, as the CPU backend has no header for them."""
    host = widening.values("float32")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    np.testing.assert_array_equal(widening.widen(host.astype(ml_dtypes.bfloat16)), host)


def test_bfloat16_of_torch_is_never_read_as_half() -> None:
    """The same of torch."""
    torch = pytest.importorskip("torch")
    host = widening.values("float32")
    np.testing.assert_array_equal(widening.widen(torch.from_numpy(host).bfloat16()).numpy(), host)


@pytest.mark.parametrize("dtype", widening.NO_TYPE)
def test_what_no_kernel_can_name_is_a_type_error(dtype: str) -> None:
    """Another format of as many bits is not the nearest one."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, dtype):
        pytest.skip(f"this ml_dtypes has no {dtype}")
    with pytest.raises(DtypeError, match=dtype) as caught:
        widening.widen(np.zeros(4, getattr(ml_dtypes, dtype)))
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(4, ">f4"),
        np.zeros(4, np.longdouble),
        np.zeros(4, "datetime64[ns]"),
        np.zeros(4, "U3"),
        np.zeros(4, object),
        np.zeros(4, [("x", "f4")]),
        np.zeros(4, "V2"),
    ],
    ids=lambda a: str(a.dtype),
)
def test_no_other_dtype_is_taken_for_a_known_one(array: Any) -> None:
    """Byte order, long double, dates, texts, objects, structs, bytes."""
    with pytest.raises(DtypeError, match="which a kernel cannot name"):
        widening.widen(array)


def test_a_mask_is_not_overlooked() -> None:
    """A masked array's memory holds the masked values too."""
    with pytest.raises(LayoutError, match=r"has a mask[\s\S]*x.filled"):
        widening.widen(np.ma.masked_array(np.ones(3), mask=[True, False, False]))


class Capsule:
    """Exports NumPy's memory by DLPack alone."""

    def __init__(self, array: Any, error: Exception | None = None) -> None:
        self.array, self.error = array, error

    def __dlpack__(self, **rest: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.array.__dlpack__(**{k: v for k, v in rest.items() if k != "stream"})

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_what_cannot_be_exported_is_refused_in_our_words() -> None:
    """The exporter's error is the cause."""
    with pytest.raises(ArgumentError, match="'x' cannot be read through DLPack: no"):
        widening.widen(Capsule(np.ones(3), BufferError("no")), out=np.zeros(3))


def test_an_output_of_an_exporter_has_to_be_given() -> None:
    """Nobody knows how to make one."""
    x = Capsule(np.ones(3))
    with pytest.raises(DeviceError, match="cannot be allocated"):
        widening.widen(x)
    out = np.zeros(3)
    assert widening.widen(x, out=out) is out and (out == 1).all()


def test_an_array_of_jax_is_read_and_never_written() -> None:
    """Its arrays are immutable, which their export does not say."""
    jax = pytest.importorskip("jax.numpy")
    out = np.zeros(8)
    for dtype in ("float32", "bfloat16", "int8", "bool"):
        x = jax.asarray(widening.values("bool" if dtype == "bool" else "float32")).astype(dtype)
        np.testing.assert_array_equal(widening.widen(x, out=out), np.asarray(x).astype(np.float64))
    with pytest.raises(LayoutError, match="array 'out' is written by the kernel, but is read-only"):
        widening.widen(jax.ones(8, "float32"), out=frozen(jax))


def frozen(jax: Any) -> Any:
    """A float64 array of JAX."""
    import jax as root

    with root.enable_x64(True):
        return jax.zeros(8, "float64")


@pytest.mark.filterwarnings("ignore")  # torch's own, at the first use
def test_a_tangent_is_not_lost() -> None:
    """Forward mode: a kernel computes no derivative."""
    torch = pytest.importorskip("torch")
    forward = torch.autograd.forward_ad
    with (
        forward.dual_level(),
        pytest.raises(ArgumentError, match=r"forward-mode tangent[\s\S]*unpack_dual\(x\).primal"),
    ):
        widening.widen(forward.make_dual(torch.ones(3), torch.ones(3)))


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_a_nested_tensor_is_not_dense() -> None:
    """Nor has it a shape."""
    torch = pytest.importorskip("torch")
    with pytest.raises(LayoutError, match="nested"):
        widening.widen(torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]))


@pytest.mark.parametrize("how", ["out=", "mutates="])
def test_autograd_hears_of_a_tensor_that_a_kernel_wrote(how: str) -> None:
    """A saved tensor that is overwritten is an error in the backward pass, not a wrong gradient."""
    torch = pytest.importorskip("torch")
    x = torch.ones(4, requires_grad=True)
    saved = x.exp()
    with torch.no_grad():
        if how == "out=":
            first.saxpy(2.0, torch.ones(4), torch.ones(4), out=saved)
        else:
            first.scale(saved, 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    with torch.inference_mode():  # such tensors have no version
        first.scale(torch.ones(4), 2.0)


def test_a_dtype_that_numpy_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output of bfloat16 without ml_dtypes."""
    owner = find_owner("x", np.zeros(1), "f")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with contextlib.suppress(TypeError):
        np.dtype("bfloat16")
        pytest.skip("something has told NumPy of bfloat16")
    with pytest.raises(DtypeError, match="NumPy has no dtype bfloat16"):
        owner.empty((3,), "bfloat16", HOST, None)


def test_strides_that_an_exporter_took_for_positive_are_put_right() -> None:
    """CuPy's export of a reversed array has 2**62 - 1 for minus one, of four bytes each."""
    from cuplate.backend.owners import _signed

    for itemsize in (1, 2, 4, 8, 16):
        for stride in (1, 7, -1, -3, 0):
            told = stride * itemsize % 2**64 // itemsize
            assert _signed((told, 5), itemsize) == (stride, 5)


class Interface:
    """What has an interface, and strides of its own."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], told: tuple[int, ...] | None) -> None:
        self.strides = strides
        self.__cuda_array_interface__ = {
            "shape": shape, "strides": told, "typestr": "<f4", "data": (0, False), "version": 3
        }  # fmt: skip


@pytest.mark.parametrize(
    ("array", "strides"),
    [
        (Interface((2, 3), (12, 4), None), (3, 1)),
        (Interface((2, 3), (0, 4), None), (0, 1)),
        (Interface((1, 3), (0, 4), None), (3, 1)),
        (Interface((2, 3), (3, 1), None), (3, 1)),
        (Interface((2, 3), (12, 4), (4, 8)), (1, 2)),
    ],
    ids=["packed", "repeated", "one row", "in elements", "told"],
)
def test_an_interface_that_forgets_repeated_elements_is_not_believed(array: Any, strides: tuple[int, ...]) -> None:
    """Numba's says of a broadcast array that it is packed; its own strides say otherwise."""
    assert find_owner("x", array, "f").describe("x", array, "f").strides == strides
