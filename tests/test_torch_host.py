"""torch tensors in host memory run on the CPU backend; skipped where torch is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuplate import ArgumentError, DeviceError, DtypeError, LayoutError, cache
from cuplate.kernels import matmul_epilogue

torch: Any = pytest.importorskip("torch")
FakeTensorMode: Any = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode


@pytest.fixture
def operands() -> tuple[Any, Any, Any]:
    """A ragged product."""
    torch.manual_seed(0)
    return torch.randn(33, 17), torch.randn(17, 50), torch.randn(50)


def expected(a: Any, b: Any, bias: Any) -> Any:
    """In double precision."""
    return torch.relu(a.double() @ b.double() + bias.double())


def test_tensors_in_tensor_out(operands: tuple[Any, Any, Any]) -> None:
    """A fresh tensor, of the right values, in host memory; the next call is a hit of the same plan."""
    for _ in range(2):
        made = matmul_epilogue(*operands, relu=True)
        assert type(made) is torch.Tensor
        assert (made.dtype, made.device.type, tuple(made.shape)) == (torch.float32, "cpu", (33, 50))
        torch.testing.assert_close(made.double(), expected(*operands), rtol=1e-5, atol=1e-5)
    compiles = cache.stats().compile.compiles
    matmul_epilogue(*operands, relu=True)
    assert cache.stats().compile.compiles == compiles


def test_a_given_output_is_written_and_returned(operands: tuple[Any, Any, Any]) -> None:
    """And holds what a fresh one holds, to the bit."""
    out = torch.empty(33, 50)
    assert matmul_epilogue(*operands, relu=True, out=out) is out
    assert torch.equal(out, matmul_epilogue(*operands, relu=True))


def test_tensors_and_arrays_give_the_same_bits(operands: tuple[Any, Any, Any]) -> None:
    """One kernel for both libraries."""
    arrays = [tensor.numpy() for tensor in operands]
    assert np.array_equal(matmul_epilogue(*operands).numpy(), matmul_epilogue(*arrays))


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (lambda a, b, c: (a.double(), b, c), DtypeError, "float64"),
        (lambda a, b, c: (a.bfloat16(), b, c), DtypeError, "bfloat16"),
        (lambda a, b, c: (a.half(), b, c), DtypeError, "float16"),
        (lambda a, b, c: (a, b, c.to(torch.complex64).conj()), LayoutError, "lazy conjugate"),
        (lambda a, b, c: (a.t().contiguous().t(), b, c), LayoutError, "'a'"),
        (lambda a, b, c: (a, b[:, ::2], c[::2]), LayoutError, "'b'"),
        (lambda a, b, c: (a.clone().requires_grad_(), b, c), ArgumentError, "requires a gradient"),
        (lambda a, b, c: (torch._neg_view(a), b, c), LayoutError, "lazy conjugate or negative"),
        (lambda a, b, c: (a.to("meta"), b, c), DeviceError, "a on meta 0; b, bias on cpu 0"),
        (lambda a, b, c: tuple(x.to("meta") for x in (a, b, c)), DeviceError, "meta"),
        (lambda a, b, c: (a, b.to_sparse(), c), LayoutError, "'b' is not dense"),
        (lambda a, b, c: tuple(map(FakeTensorMode().from_tensor, (a, b, c))), ArgumentError, "no memory"),
    ],
    ids=[
        "double",
        "bfloat16",
        "half",
        "conj",
        "transposed",
        "strided",
        "grad",
        "negative",
        "meta",
        "all meta",
        "sparse",
        "fake",
    ],
)
def test_what_a_kernel_cannot_take_is_refused(
    operands: tuple[Any, Any, Any], spoil: Any, error: type[Exception], says: str
) -> None:
    """Before anything runs, by name; a lazy view's memory holds other values than it shows."""
    with pytest.raises(error, match=says):
        matmul_epilogue(*spoil(*operands))


def test_inside_a_transform_there_is_no_memory(operands: tuple[Any, Any, Any]) -> None:
    """torch.func hands wrappers over."""
    a, b, bias = operands
    with pytest.raises(ArgumentError, match="no memory that a kernel could read"):
        torch.func.vmap(lambda row: matmul_epilogue(row, b, bias))(torch.stack([a, a]))


def test_tensors_and_arrays_of_one_memory_go_together(operands: tuple[Any, Any, Any]) -> None:
    """Nothing has to be copied; the output is of the first argument's library."""
    a, b, bias = operands
    assert torch.equal(matmul_epilogue(a, b.numpy(), bias), matmul_epilogue(a, b, bias))
    assert type(matmul_epilogue(a.numpy(), b, bias)) is np.ndarray


def test_without_gradients_a_parameter_is_an_array(operands: tuple[Any, Any, Any]) -> None:
    """As in torch: under no_grad nothing is recorded, so nothing is lost."""
    a, b, bias = operands
    with torch.no_grad():
        made = matmul_epilogue(a.clone().requires_grad_(), b, bias, relu=True)
    torch.testing.assert_close(made.double(), expected(*operands), rtol=1e-5, atol=1e-5)
