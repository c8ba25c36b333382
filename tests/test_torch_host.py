"""torch tensors in host memory run on the CPU backend; skipped where torch is not installed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from cuplate import ArgumentError, DeviceError, DtypeError, LayoutError, cache
from cuplate.backend import owners
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


def test_a_trace_would_not_hold_the_launch(operands: tuple[Any, Any, Any]) -> None:
    """What torch.jit.trace or make_fx records replays without the kernel: refused, with what to register instead."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def call(a: Any, b: Any, bias: Any) -> Any:
        return matmul_epilogue(a, b, bias)

    for trace in (lambda: torch.jit.trace(call, operands), lambda: make_fx(call)(*operands)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of jit
            with pytest.raises(ArgumentError, match="would record no launch") as caught:
                trace()
        assert "torch_op" in caught.value.try_


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


# what the generated code for CUDA tensors relies on (`cuplate.idiom`), as far as torch shows it without a GPU ---------


def answers(tensor: Any) -> bool:
    """Whether a tensor gets through what the generated code asks: shape, packedness, an address that is not 0."""
    try:
        return bool(tensor.shape and tensor.is_contiguous() and tensor.data_ptr())
    except Exception:
        return False


@pytest.mark.filterwarnings("ignore")  # sparse and nested tensors announce themselves
def test_tensors_without_plain_memory_do_not_answer() -> None:
    """Sparse, nested, zero, freed, fake; and what torch.func passes: one question at least fails or gives 0."""
    x = torch.ones(4, 4)
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    assert answers(x)
    for tensor in (
        x.to_sparse(),
        x.to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch._efficientzerotensor(4),
        freed,
        FakeTensorMode().from_tensor(x),
    ):
        assert not answers(tensor), tensor.layout
    seen: list[bool] = []

    def look(t: Any) -> Any:
        seen.append(answers(t))
        return t.sum()

    torch.func.vmap(look)(x)
    torch.func.grad(look)(x)
    torch.func.jvp(look, (x,), (x,))
    torch.func.functionalize(look)(x)
    assert seen == [False] * 4


def test_states_of_torch_show_where_the_generated_code_looks() -> None:
    """A level of forward mode, a mode of the dispatcher, a transform of torch.func; and none of them."""
    from torch.autograd import forward_ad

    modes, transform = torch._C._len_torch_dispatch_stack, torch._C._functorch.maybe_current_level

    def state() -> tuple[bool, bool, bool]:
        return forward_ad._current_level >= 0, bool(modes()), transform() is not None

    seen: list[Any] = [state()]
    with forward_ad.dual_level():
        seen.append(state())
    with FakeTensorMode():
        seen.append(state())
    torch.func.grad(lambda t: seen.append(state()) or t.sum())(torch.ones(2))
    assert seen == [(False,) * 3, (True, False, False), (False, True, False), (False, False, True)] and not any(state())


def test_torch_is_told_below_its_layer_where_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions go up by one, inference tensors are left alone; with another torch the public way does the same."""
    owner = owners._Torch()
    below = owner._incrementer()
    assert below is torch._C._increment_version
    for broken in (None, lambda arrays: None):
        with monkeypatch.context() as patched:
            patched.setattr(torch._C, "_increment_version", broken)
            public = owner._incrementer()
        assert public is not broken
        with torch.inference_mode():
            untold = torch.ones(2)
        told = torch.ones(2)
        for increment in (below, public):
            increment((told, untold))
        assert told._version == 2


def test_outputs_are_made_below_torchs_layer_where_that_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's compiler uses is tried; what gives another tensor, or is not there, is left alone."""
    owner, guards = owners._Torch(), torch._C._dynamo.guards
    whole = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, *, dtype, device: whole(shape, dtype=dtype))  # as if on a GPU
    host = guards._empty_strided_cpu
    for known, taken in (
        (host, True),
        (lambda shape, strides, dtype: host((3, 2), (2, 1), dtype), False),
        (lambda shape, strides, dtype: host(shape, (1, 2), dtype), False),
        (lambda shape, strides, dtype: host(shape, strides, torch.float64), False),
        (None, False),
    ):
        monkeypatch.setattr(guards, "_empty_strided_cuda", known)
        make = owner.maker()
        assert (make is known) == taken
        made = make((2, 5), (5, 1), torch.float16)
        assert made.shape == (2, 5) and made.dtype == torch.float16 and made.is_contiguous()
    with torch.inference_mode():
        assert host((2, 5), (5, 1), torch.float16).is_inference()


def test_code_that_is_left_alone_is_not_compiled() -> None:
    """Nor what it calls: torch.compile sees the frame and steps over it."""

    def below(t: Any) -> Any:
        return t + 1

    def hot(t: Any) -> Any:
        return below(t)

    hot.__dict__["_torchdynamo_disable"] = True
    owners._untraced_code(hot.__code__)
    compiled: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    call = torch.compile(lambda t: hot(t * 2) * 3, backend=backend)
    assert torch.equal(call(torch.ones(3)), torch.full((3,), 9.0))
    assert len(compiled) == 2
