"""The generated text: what it says for a signature, and that nothing of a signature can break it."""

from __future__ import annotations

import gc
import inspect
import linecache
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, f32
from cuplate.dispatch import MISSING, RunnerShape, dispatcher, key_function, plan_values, runner
from cuplate.plan import Recipe
from cuplate.signature import read_signature


class One(NamedTuple):
    y: Float32[Array, " N"]


def signature(function: Any) -> Any:
    """The signature of a function."""
    return read_signature(function, dtypes={})


def f(
    alpha: f32,
    x: Float32[Array, " N"],
    bias: Float32[Array, " N"] | None = None,
    *,
    tile: Literal[16, 32] = 16,
    rate: float = 0.5,
    must: int,
) -> Float32[Array, " N"]:
    """What is called below."""


def namespace(function: Any = None, **more: Any) -> dict[str, Any]:
    """Globals of generated code."""
    return {"_plans": {}, "_listeners": [], "_value_key": lambda v: (type(v), v), "_cold": function, **more}


def test_a_call_without_a_plan_goes_cold_with_what_was_given() -> None:
    """Every name in order; what is missing, superfluous or unknown is told apart."""
    cold: list[Any] = []
    call = dispatcher(signature(f), namespace(lambda *given: cold.append(given)))
    call(1.0, 2.0, must=3)
    call(1.0, 2.0, 3.0, 4.0, 5.0, tile=32, til=3, out=6.0, stream=7.0)
    call()
    assert cold == [
        ((), {}, 1.0, 2.0, None, 16, 0.5, 3, None, None),
        ((4.0, 5.0), {"til": 3}, 1.0, 2.0, 3.0, 32, 0.5, MISSING, 6.0, 7.0),
        ((), {}, MISSING, MISSING, None, 16, 0.5, MISSING, None, None),
    ]
    assert repr(MISSING) == "<missing>"


class Like:
    """An array, as far as a key reads it."""

    def __init__(self, shape: tuple[int, ...] = (4,)) -> None:
        self.shape, self.dtype, self._c_contiguous = shape, "float32", True
        self.ndim, self.size = len(shape), int(np.prod(shape))
        self.data = type("Data", (), {"ptr": 256, "device_id": 0})()

    def __len__(self) -> int:
        return self.shape[0]


def test_a_plan_runs_unless_the_call_says_more_than_its_key() -> None:
    """Listeners, a stream, a superfluous or unknown name: to the cold path, which can do or refuse all of it."""
    scope = namespace(lambda *given: "cold")
    call = dispatcher(signature(f), scope)
    key = key_function(signature(f), scope, (), several_devices=False)
    x = Like()
    scope["_plans"][key(1.0, x, None, 16, 0.5, 3)] = (lambda plan, out, *arrays: ("hot", out, *arrays),)
    assert call(1.0, x, must=3) == ("hot", None, 1.0, x, None)
    assert call(2.0, Like(), must=3, out="o")[:2] == ("hot", "o")
    for more in ({"stream": 1}, {"til": 1}, {"tile": 32}, {"rate": 1}, {"must": True}, {"must": 3.0}, {"bias": Like()}):
        assert call(1.0, x, **{"must": 3, **more}) == "cold"
    assert call(1.0, x, None, "more", must=3) == "cold"
    assert call(1.0, Like((5,)), must=3) == "cold" and call(1.0, object(), must=3) == "cold"
    scope["_listeners"].append("someone")
    assert call(1.0, x, must=3) == "cold"
    scope["_listeners"].clear()
    scope["_plans"][key(1.0, x, None, 16, 0.5, 3)] = (lambda plan, *given: scope["_again"],)
    assert call(1.0, x, must=3) == "cold"


def test_the_key_has_devices_and_alignment_where_they_matter() -> None:
    """With several GPUs, where each array is and which device is current; alignment where the kernel asks."""
    scope = namespace(None, _current_device=lambda: 1)
    plain = key_function(signature(f), scope, (), several_devices=False)(1.0, Like(), None, 16, 0.5, 3)
    several = key_function(signature(f), scope, (("x", 16),), several_devices=True)(1.0, Like(), None, 16, 0.5, 3)
    assert plain == (Like, "float32", 1, 4, True, None, int, 16, (float, 0.5), int, 3)
    assert several == (Like, "float32", 1, 4, True, 0, True, None, int, 16, (float, 0.5), int, 3, 1)


def test_a_runner_passes_the_list_in_the_kernels_order() -> None:
    """Pointers, encoded scalars, the plan's integers; scratch is made, zeroed arrays are zeroed, the tick is stored."""
    log: list[Any] = []
    memory = iter(range(1000, 9000, 1000))

    def empty(shape: Any, dtype: Any) -> Any:
        array = Like(shape)
        array.data.ptr = next(memory)
        return array

    entry = type("Entry", (), {"tick": 0})()
    hits = type("Hits", (), {"cell": type("Cell", (), {"hits": 0})()})()
    scope = namespace(
        None,
        _again=object(),
        _empty=empty,
        _current_stream=lambda device=None: type("S", (), {"ptr": 7})(),
        _streams={},
        _wrap_stream=lambda pointer: f"stream {pointer}",
        _is_capturing=lambda pointer: True,
        _keep=lambda e, *scratch: log.append("keep"),
        _zero=lambda *given: log.append(("zero", *given)),
        _hits=hits,
        _next_tick=lambda: 99,
        _encode_alpha=lambda value: int(value * 10),
        _launch=lambda *given: log.append(("launch", *given)),
    )
    shape = RunnerShape(
        (("int", "N"), ("array", "out"), ("scalar", "alpha"), ("array", "x"), ("array", "t"), ("int", "M")),
        ("out",), 1, ("t", "out"), ("t",), ("x",), (),
    )  # fmt: skip
    recipes = [Recipe(kind, name, value) for (kind, name), value in zip(shape.recipes, (4, 0, 0, 0, 0, 5), strict=True)]
    run = runner(signature(f), shape, scope)
    sized = {"out": ((4,), "float32", 16), "t": ((3,), "uint64", 24), "x": ((4,), None, 16)}
    plan = plan_values(shape, [run, entry, "config", "kernel", Like], recipes, sized)
    x = Like()
    result = run(plan, None, 2.5, x, None)
    assert result.shape == (4,) and result.data.ptr == 1000
    assert log == [
        "keep",
        ("zero", 2000, 24, "stream 7"),
        ("zero", 1000, 16, "stream 7"),
        ("launch", "stream 7", "config", "kernel", 4, 1000, 25, 256, 2000, 5),
    ]
    assert (entry.tick, hits.cell.hits) == (99, 1)
    inside = Like()
    inside.data.ptr = 260
    assert run(plan, inside, 2.5, x, None) is scope["_again"]
    scope["_launch"] = lambda *given: 1 / 0
    assert run(plan, None, 2.5, x, None) is scope["_again"]


@pytest.mark.parametrize(
    "names",
    [("KeyError", "AttributeError", "TypeError"), ("Exception", "entry", "plan"), ("values", "key", "result")],
)
def test_names_of_a_signature_do_not_meet_those_of_the_text(names: tuple[str, ...]) -> None:
    """Arrays called like built-ins or like our own words; ours begin with an underscore, which no argument may."""
    scope: dict[str, Any] = {**globals()}
    listed = ", ".join(f"{n}: Float32[Array, 'N']" for n in names)
    exec(f"def g({listed}, *, tile: int = 1) -> Float32[Array, 'N']: ...", scope)
    made = namespace(lambda *given: "cold")
    call = dispatcher(signature(scope["g"]), made)
    arrays = [Like() for _ in names]
    assert call(*arrays) == "cold"
    key = key_function(signature(scope["g"]), made, (), several_devices=False)
    made["_plans"][key(*arrays, 1)] = (lambda plan, out, *given: given,)
    assert call(*arrays) == tuple(arrays)


def test_generated_text_is_registered() -> None:
    """Tracebacks and debuggers show it; two functions of one name have two files."""
    one, two = dispatcher(signature(f), namespace()), dispatcher(signature(f), namespace())
    assert one.__code__.co_filename != two.__code__.co_filename
    assert linecache.getline(one.__code__.co_filename, 1).startswith("def f(alpha=_missing, x=_missing, bias=None, ")
    assert "return _cold(_more, _unknown, alpha, x, bias," in inspect.getsource(one)


def test_the_text_of_a_dropped_function_goes_with_it() -> None:
    """``linecache`` keeps the generated text as long as its code lives, and no longer."""

    def saxpy(a: f32, x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    made = dispatcher(signature(saxpy), {})
    filename = made.__code__.co_filename
    kept = made.__code__
    del made
    gc.collect()
    assert filename in linecache.cache
    del kept
    gc.collect()
    assert filename not in linecache.cache
