"""Specialized functions as operators of torch; on the host's tensors, skipped where torch is not installed."""

from __future__ import annotations

import enum
import itertools
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, DeclarationError, Inline, f32, i32, specialize
from cuplate.kernels import matmul_epilogue
from tests.bindings import first

torch: Any = pytest.importorskip("torch")

_count = itertools.count()


def register(function: Any) -> Any:
    """The operator, under a name that no test has used."""
    return function.torch_op(f"cuplate_test::{function.__name__}_{next(_count)}")


def compiled(function: Any, **how: Any) -> Any:
    """Compiled as one graph: a break is an error."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **how)


x = torch.arange(8.0)
square = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))

CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "a scalar": (first.saxpy, (2.0, x, x + 1), {}),
    "parameters": (matmul_epilogue, (square, square, square[0].clone()), {"relu": True}),
    "a string": (matmul_epilogue, (square, square, square[0].clone()), {"epilogue": "relu"}),
    "in place": (first.scale, (x.clone(), 2.0), {}),
    "two outputs": (first.row_max, (square,), {}),
    "an optional array": (first.linear, (square, square), {}),
    "and given": (first.linear, (square, square, square[0].clone()), {}),
    "a size that is computed": (first.convolve, (x, x[:3].clone()), {}),
    "a dtype by a parameter": (first.cast, (x,), {"out_dtype": "float16"}),
    "folded axes": (first.batched_matmul, (torch.ones(2, 3, 4, 5), torch.ones(2, 3, 5, 6)), {}),
}


@pytest.mark.parametrize("what", CALLS)
def test_an_operator_is_what_torch_expects_of_one(what: str) -> None:
    """torch's own check: the schema tells what is written, and fake outputs are like real ones, with symbols too."""
    function, arguments, parameters = CALLS[what]
    torch.library.opcheck(register(function), arguments, parameters)


@pytest.mark.parametrize("what", CALLS)
def test_an_operator_gives_what_the_function_gives(what: str) -> None:
    """To the bit, eager and compiled as one graph."""
    function, arguments, parameters = CALLS[what]
    operator = register(function)

    def run(call: Any) -> list[Any]:
        own = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        made = call(*own, **parameters)
        made = made if isinstance(made, tuple) else (made,)
        return [t for t in [*made, *own] if isinstance(t, torch.Tensor)]

    want = run(function)
    for call in (operator, compiled(lambda *a, **p: operator(*a, **p))):
        for got, wanted in zip(run(call), want, strict=True):
            assert torch.equal(got, wanted)


def test_sizes_stay_symbols() -> None:
    """Many sizes, one graph: also where an output's size is computed."""
    operator = register(first.convolve)
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    call = torch.compile(lambda a, w: operator(a * 2, w) + 1, fullgraph=True, backend=backend, dynamic=True)
    for n, k in ((9, 3), (12, 4), (17, 5), (30, 2)):
        a, w = torch.arange(float(n)), torch.ones(k)
        assert torch.equal(call(a, w), first.convolve(a * 2, w) + 1)
    assert len(graphs) == 1


def test_a_mismatch_is_found_while_tracing() -> None:
    """By sizes and dtypes of fake tensors, before anything runs."""
    operator = register(matmul_epilogue)
    call = compiled(lambda a, b, c: operator(a, b, c))
    with pytest.raises(Exception, match="axis K of 'b' has another size elsewhere"):
        call(square, square[:5], square[0].clone())
    with pytest.raises(Exception, match="float64"):
        call(square.double(), square, square[0].clone())


def test_a_gradient_can_be_registered() -> None:
    """As for any operator of torch's."""
    operator = register(first.saxpy)
    operator.register_autograd(lambda context, grad: (None, 2.0 * grad, grad))
    a, b = torch.ones(5, requires_grad=True), torch.ones(5, requires_grad=True)
    operator(2.0, a, b).sum().backward()
    assert (a.grad == 2).all() and (b.grad == 1).all()


class Mode(enum.Enum):
    """Two modes."""

    PLAIN = 1
    TWICE = 2


BODY = 'extern "C" __global__ void {{ kernel }}({{ args }}) { %s out[0] = x[0]; }'


def test_each_kind_of_parameter_has_its_type() -> None:
    """Printed as torch prints a schema; a member of an Enum goes by its name."""
    text = "/* {{ mode }} {{ n }} {{ f }} {{ s }} {{ many }} {{ lit }} */ if (alpha > n + k)"

    @specialize(Inline(BODY % text.replace("{{ mode }}", "{% if mode == 2 %}twice{% endif %}")), grid=1, block=1)
    def many(
        x: Float32[Array, " N"],
        alpha: f32,
        k: i32,
        *,
        n: int,
        mode: Mode = Mode.PLAIN,
        f: float = 0.5,
        s: str = "a",
        many: list[int],
        lit: Literal[1, 2] | None = None,
    ) -> Float32[Array, " N"]:
        """Every kind."""
        raise NotImplementedError

    assert str(register(many)._opoverload._schema).partition("(")[2] == (
        'Tensor x, float alpha, SymInt k, *, SymInt n, str mode="PLAIN", float f=0.5, str s="a", SymInt[] many, '
        "SymInt? lit=None) -> Tensor"
    )


POINT = np.dtype([("x", np.float32)], align=True)


def test_what_no_schema_can_say_is_refused() -> None:
    """With the reason: no tensor, a struct, a parameter of any kind."""

    @specialize(Inline(BODY.replace("x[0]", "value") % ""), grid=1, block=1)
    def fill(value: f32) -> Float32[Array, " N"]:
        """No array."""
        raise NotImplementedError

    @specialize(Inline("{{ p.definition }}" + BODY % ""), grid=1, block=1)
    def pointed(x: Float32[Array, " N"], p: Annotated[np.void, POINT]) -> Float32[Array, " N"]:
        """A struct."""
        raise NotImplementedError

    @specialize(Inline(BODY % "/* {{ what }} */"), grid=1, block=1)
    def anything(x: Float32[Array, " N"], *, what: Any) -> Float32[Array, " N"]:
        """Anything."""
        raise NotImplementedError

    for function, reason in ((fill, "no array argument"), (pointed, "the struct 'p'"), (anything, "'what'")):
        with pytest.raises(DeclarationError, match=reason) as caught:
            register(function)
        assert caught.value.function == function.__name__


def test_a_compiled_function_leaves_its_graph_for_a_launch() -> None:
    """Without an operator: right, nothing of ours is compiled, and as one graph an error that says what to register."""
    from torch._dynamo.utils import counters

    first.saxpy(1.0, x, x)
    torch._dynamo.reset()
    counters.clear()
    call = torch.compile(lambda a, y: first.saxpy(a, y, y + 1) * 2, backend="eager")
    for n in (8, 9, 10):
        y = torch.arange(float(n))
        assert torch.equal(call(2.0, y), (3 * y + 1) * 2)
    assert counters["frames"]["total"] < 20
    with pytest.raises(Exception, match=r"register saxpy.torch_op\("):
        compiled(lambda y: first.saxpy(2.0, y, y))(x)
