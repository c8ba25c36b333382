"""The hot path: what it does not do, what it must not confuse, and that it always does what the cold path would do."""

from __future__ import annotations

import enum
import gc
import hashlib
import itertools
import math
import shutil
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import Complex64, Float, Float32, Int32

import cuplate
from cuplate import Array, DtypeError, Inline, LaunchError, LayoutError, ShapeError, cache, f32, i32, specialize
from cuplate import events as events_module
from tests.doubles import Gpu, Note, install

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { %s }'


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU; the functions of this module forget it again."""
    yield install(monkeypatch)
    forget()


def forget() -> None:
    """Read every template again, and with that forget the GPU."""
    for function in [v for v in globals().values() if hasattr(v, "reload")]:
        function.reload()


def plans(function: Any) -> dict[Any, Any]:
    """The plans of the hot path."""
    found: dict[Any, Any] = function.__globals__["_plans"]
    return found


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Pair(NamedTuple):
    total: Float32[Array, " N"]
    place: Int32[Array, " N"]


@specialize(Inline(KERNEL % "out[0] = {{ tile }};"), block="tile")
def plain(x: Float32[Array, " N"], *, tile: Literal[32, 64] = 32) -> Float32[Array, " N"]:
    """One array, one parameter."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "out[0] = {% if value is none %}-1{% else %}{{ value }}{% endif %};"))
def anything(x: Float32[Array, " N"], *, value: Any = 0) -> Float32[Array, " N"]:
    """A parameter of any kind."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "out[0] = {{ value }};"))
def real(x: Float32[Array, " N"], *, value: float = 0.0) -> Float32[Array, " N"]:
    """A float parameter."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "float v[] = {{ values }}; out[0] = v[0];"))
def listed(x: Float32[Array, " N"], *, values: list[float] = [0.0]) -> Float32[Array, " N"]:  # noqa: B006
    """A list parameter."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "out[0] = {{ value }};"))
def literal(x: Float32[Array, " N"], *, value: Literal[0.0, -0.0, 1, True] = 0.0) -> Float32[Array, " N"]:  # type: ignore[valid-type]
    """A Literal of values that are equal in Python."""
    raise NotImplementedError


@specialize(
    Inline(KERNEL % "/* {{ x.aligned(16) }} {{ mode.value }} {% if bias %} bias {% endif %} {{ C }} */"),
    tiles={"N": "tile"},
    static="C",
    zeroed="out",
    scratch={"state": ("uint64", "cdiv(N, tile)")},
)
def rich(
    alpha: f32,
    x: Float[Array, "N C"],
    count: i32,
    bias: Float32[Array, " C"] | None = None,
    *,
    tile: int = 32,
    mode: Mode = Mode.FAST,
) -> Float[Array, "N C"]:
    """Something of everything."""
    raise NotImplementedError


@specialize(Inline(KERNEL % ""), mutates=("x", "y"), zeroed="y")
def accumulate(x: Float32[Array, " N"], y: Float32[Array, " N"] | None = None) -> None:
    """Two arrays in place, one of them optional and zeroed."""
    raise NotImplementedError


@specialize(Inline(KERNEL % ""))
def pair(x: Float32[Array, " N"]) -> Pair:
    """Two outputs."""
    raise NotImplementedError


# what a warm call does not do -----------------------------------------------------------------------------------------


class Watch:
    """Counts what a warm call must not do; installed once, since an audit hook cannot be taken away."""

    active = False
    seen: list[str] = []  # noqa: RUF012 - one for the process

    @classmethod
    def hook(cls, event: str, args: Any) -> None:
        if cls.active and event.split(".")[0] in ("open", "os", "sqlite3", "subprocess", "import", "compile", "exec"):
            cls.seen.append(f"{event} {args!r:.80}")


def test_a_warm_call_opens_renders_hashes_and_loads_nothing_b54(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """B54: counted, not timed: no file, no render, no digest, no look-up in a tier, no load; and one launch each."""
    from cuplate import compile as compiling
    from cuplate import content, render

    x, out = gpu.array(100), gpu.array(100)
    plain(x, out=out)
    rich(1.0, gpu.array((6, 4)), 3)
    before = cache.stats()
    calls: list[str] = []
    if not Watch.seen:
        sys.addaudithook(Watch.hook)
    gpu.log.clear()
    matrix = gpu.array((6, 4))
    with monkeypatch.context() as patched:
        for owner, name in [
            (hashlib, "sha256"), (hashlib, "blake2b"), (render, "render"), (content, "make_content"),
            (compiling, "obtain"), (cache.MemoryTier, "get"), (gpu, "load"), (gpu, "prepare"),
        ]:  # fmt: skip
            patched.setattr(owner, name, lambda *_, name=name, **__: calls.append(name))
        Watch.active = True
        for _ in range(10):
            plain(x, out=out)
            plain(x)
            rich(2.0, matrix, 5)
        Watch.active = False
    assert Watch.seen == [] and calls == [] and len(gpu.launches) == 30
    after = cache.stats()
    assert after.memory.hits - before.memory.hits == 30
    assert (after.disk, after.compile) == (before.disk, before.compile)


def test_a_warm_call_works_without_its_cache_directory(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting the store takes nothing from a process that has loaded its kernels."""
    directory = Path(cache.current_policy().directory or "")
    x = gpu.array(100)
    plain(x)
    assert directory.exists()
    shutil.rmtree(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain(x)
    assert len(gpu.launches) == 2 and not directory.exists()


@pytest.mark.parametrize(
    "call",
    [
        lambda g: plain(g.x),
        lambda g: plain(g.x, out=g.out),
        lambda g: plain(g.x, tile=64),
        lambda g: rich(1.0, g.matrix, 3),
        lambda g: rich(1.0, g.matrix, 3, out=g.matrix_out),
        lambda g: rich(1.0, g.matrix, 3, None),
        lambda g: rich(1.0, g.matrix, count=3, bias=g.bias),
        lambda g: rich(1.0, g.matrix, 3, tile=64, mode=Mode.EXACT),
        lambda g: accumulate(g.x),
        lambda g: accumulate(g.x, g.out),
        lambda g: pair(g.x),
        lambda g: listed(g.x),
        lambda g: listed(g.x, values=[1.0, 2.0]),
        lambda g: real(g.x, value=0.5),
        lambda g: anything(g.x, value=(1, 2)[0]),
    ],
)  # fmt: skip
def test_the_second_call_is_hot(gpu: Gpu, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scalars first, `out=`, an optional array left out, lists, in-place kernels: all take the short way."""
    gpu.x, gpu.out, gpu.bias = gpu.array(96), gpu.array(96), gpu.array(4)
    gpu.matrix, gpu.matrix_out = gpu.array((6, 4)), gpu.array((6, 4))
    call(gpu)
    for function in (plain, rich, accumulate, pair, listed, real, anything):
        monkeypatch.setitem(function.__globals__, "_cold", lambda *_: pytest.fail("the call went cold"))
    call(gpu)
    first, second = gpu.launches
    assert (first.grid, first.kernel, len(first.values)) == (second.grid, second.kernel, len(second.values))


# what must not be confused --------------------------------------------------------------------------------------------

APART = [0, False, 0.0, -0.0, 1, True, 1.0, np.float32(1), math.nan, None]


@pytest.mark.parametrize("order", [APART, APART[::-1]], ids=["up", "down"])
def test_equal_values_of_other_kinds_are_other_kernels(gpu: Gpu, order: list[Any]) -> None:
    """`1`, `True`, `1.0`, `0.0`, `-0.0`, NaN: each call runs the text of its own value, cold and warm."""
    x = gpu.array(4)
    for _ in range(3):
        for value in order:
            anything(x, value=value)
    texts = [note.parameters for note in gpu.launches]
    assert texts == [f"value={value!r}" for value in order] * 3


def test_negative_zero_is_not_zero(gpu: Gpu) -> None:
    """A float parameter by its bits: enforced floats, elements of lists, values of a Literal."""
    x = gpu.array(4)
    for function, name, wrap in [(real, "value", float), (listed, "values", lambda v: [v]), (literal, "value", float)]:
        start = len(gpu.launches)
        for value in (0.0, -0.0, 0.0, -0.0):
            function(x, **{name: wrap(value)})
        texts = [note.parameters for note in gpu.launches[start:]]
        assert texts[0] != texts[1] and "-0.0" in texts[1] and texts[2:] == texts[:2]


def test_true_is_not_one_in_a_literal(gpu: Gpu) -> None:
    """A Literal with both keeps them apart."""
    x = gpu.array(4)
    for _ in range(2):
        literal(x, value=1)
        literal(x, value=True)
    assert [n.parameters for n in gpu.launches] == ["value=1", "value=True"] * 2


@pytest.mark.parametrize("wrong", [16.0, 32.0, True, "32", None, np.float64(32)])
def test_a_hit_serves_no_parameter_of_another_kind(gpu: Gpu, wrong: Any) -> None:
    """After `tile=32` has been served, `tile=32.0` is refused as it was before."""
    x = gpu.array(4)
    plain(x, tile=32)
    with pytest.raises(cuplate.ParameterError):
        plain(x, tile=wrong)


def test_each_fact_of_an_array_is_in_the_key(gpu: Gpu) -> None:
    """Dtype, shape, alignment, presence, layout: a change in one finds another plan, or a refusal."""
    base = gpu.array(64)
    aligned, shifted = base[:24], base[1:25]
    calls = {
        "float32": gpu.array((6, 4)),
        "float64": gpu.array((6, 4), "float64"),
        "rows": gpu.array((60, 4)),
        "columns": gpu.array((6, 5)),
        "aligned": aligned.view(aligned.host.reshape(6, 4)),
        "shifted": shifted.view(shifted.host.reshape(6, 4)),
    }
    cold: dict[str, Note] = {}
    for name in [*calls, *calls, *reversed(calls)]:
        rich(1.0, calls[name], 2)
        note = gpu.launches[-1]
        first = cold.setdefault(name, note)
        assert (note.grid, note.values[-1], note.parameters) == (first.grid, first.values[-1], first.parameters)
    assert len(plans(rich)) == 5  # "aligned" is as "float32"
    texts = {n: rich.inspect(1.0, a, 2, arch="sm_90").source for n, a in calls.items()}
    assert texts["aligned"] == texts["float32"] != texts["shifted"]


@pytest.mark.parametrize("aligned_first", [True, False])
def test_an_alignment_that_is_asked_of_an_output_is_in_the_key_where_one_is_given(
    gpu: Gpu, aligned_first: bool
) -> None:
    """Fresh outputs and aligned ones share a plan, whatever came first; others have one of their own, hot as well."""

    @specialize(Inline(KERNEL % "out[0] = {{ 4 if out.aligned(16) else 1 }};"))
    def k(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    x, room = gpu.array(24), gpu.array(64)
    outs = [None, room[4:28], room[1:25]]
    for out in outs if aligned_first else outs[::-1]:
        for _ in range(4):
            k(x, out=out)
            assert gpu.launches[-1].kernel == "k"
    assert len(plans(k)) == len(gpu.notes("load")) == 2 and k.cache_info().hits == 10
    by_kernel = {note.values[1] % 16: set() for note in gpu.launches}
    for note in gpu.launches:
        by_kernel[note.values[1] % 16].add(note.code)
    assert [len(codes) for codes in by_kernel.values()] == [1, 1] and by_kernel[0] != by_kernel[4]


def test_a_view_after_an_array_is_refused_as_ever(gpu: Gpu) -> None:
    """The plan of a packed array does not serve a transposed one of the same shape."""
    square = gpu.array((4, 4))
    rich(1.0, square, 1)
    with pytest.raises(LayoutError):
        rich(1.0, square.T, 1)
    with pytest.raises(LayoutError):
        rich(1.0, gpu.array((4, 4)), 1, out=square.T)


def test_out_is_checked_on_warm_calls(gpu: Gpu) -> None:
    """Another dtype, shape, layout or kind, and an overlap: the error of the cold path, and no launch."""
    x = gpu.array(24)
    plain(x, out=gpu.array(24))
    plain(x, out=gpu.array(24))
    for out, error in [
        (gpu.array(24, "float64"), DtypeError),
        (gpu.array(24, "int32"), DtypeError),
        (gpu.array(25), ShapeError),
        (gpu.array((24, 1)), ShapeError),
        (gpu.array(48)[::2], LayoutError),
        (x, LayoutError),
        (x[:], LayoutError),
        (3, cuplate.ArgumentError),
        (np.zeros(24, np.float32), cuplate.DeviceError),
    ]:
        with pytest.raises(error):
            plain(x, out=out)
    assert len(gpu.launches) == 2


def test_a_tuple_for_several_outputs(gpu: Gpu) -> None:
    """`out=` takes as many arrays as there are outputs, in order, and gives them back."""
    x, total, place = gpu.array(4), gpu.array(4), gpu.array(4, "int32")
    for _ in range(2):
        result = pair(x, out=(total, place))
        assert type(result) is Pair and result.total is total and result.place is place
        assert type(pair(x)) is Pair
    with pytest.raises(cuplate.ArgumentError, match="out= holds 1 arrays"):
        pair(x, out=total)
    with pytest.raises(LayoutError, match="shares memory"):
        pair(x, out=(x, place))
    whole = gpu.array(8)
    with pytest.raises(DtypeError):
        pair(x, out=(whole[:4], whole[4:]))


def test_zeroed_arrays_are_zeroed_before_each_launch(gpu: Gpu) -> None:
    """On cold and warm calls, on the launch stream, the whole array, and not one that was left out."""
    matrix = gpu.array((6, 4))
    for _ in range(2):
        gpu.log.clear()
        with gpu.on_stream(77):
            out = rich(1.0, matrix, 1)
        kinds = [n.what for n in gpu.log if n.what != "load"]
        assert kinds == ["empty", "empty", "zero", "launch"]
        (zero,), (launch,) = gpu.notes("zero"), gpu.launches
        assert (zero.pointer, zero.bytes, zero.stream, launch.stream) == (out.data.ptr, 6 * 4 * 4, 77, 77)
    x, y = gpu.array(5), gpu.array(5)
    for _ in range(2):
        gpu.log.clear()
        accumulate(x, y)
        accumulate(x)
        assert [(n.pointer, n.bytes) for n in gpu.notes("zero")] == [(y.data.ptr, 20)]
        assert [len(n.values) for n in gpu.launches] == [3, 2]


def test_nothing_is_zeroed_by_a_call_that_is_refused(gpu: Gpu) -> None:
    """A warm call with a scalar that does not fit leaves `out` as it was."""
    matrix, out = gpu.array((6, 4)), gpu.array((6, 4))
    rich(1.0, matrix, 1, out=out)
    gpu.log.clear()
    for alpha, count in [(1e39, 1), ("a", 1), (1.0, 2**31), (1.0, True)]:
        with pytest.raises(cuplate.ArgumentError):
            rich(alpha, matrix, count, out=out)
    assert gpu.notes("zero") == gpu.launches == []


# the same as the cold path --------------------------------------------------------------------------------------------

ARRAYS = st.sampled_from(["packed", "shifted", "double", "taller", "empty", "transposed", "stepped", "int"])
CALL = st.fixed_dictionaries(
    {
        "x": ARRAYS,
        "alpha": st.sampled_from([1.0, 2, np.float32(3), True, 1e39, "a"]),
        "count": st.sampled_from([1, -1, 2**31, 1.0]),
        "bias": st.sampled_from([None, "missing", "bias", "wrong"]),
        "out": st.sampled_from([None, None, "out", "same", "short"]),
        "tile": st.sampled_from([32, 64, True, 32.0]),
        "mode": st.sampled_from([Mode.FAST, Mode.EXACT, 1]),
        "stream": st.sampled_from([0, 0, 5]),
    }
)


def arguments(gpu: Gpu, case: dict[str, Any]) -> tuple[Any, ...]:
    """A call's arguments, fresh."""
    line = gpu.array(96)
    x = {
        "packed": lambda: gpu.array((6, 4)),
        "shifted": lambda: line.view(line.host[1:25].reshape(6, 4)),
        "double": lambda: gpu.array((6, 4), "float64"),
        "taller": lambda: gpu.array((70, 4)),
        "empty": lambda: gpu.array((0, 4)),
        "transposed": lambda: gpu.array((4, 6)).T,
        "stepped": lambda: gpu.array((12, 4))[::2],
        "int": lambda: gpu.array((6, 4), "int32"),
    }[case["x"]]()
    out = {None: lambda: None, "out": lambda: gpu.array(x.shape, str(x.dtype)), "same": lambda: x,
           "short": lambda: gpu.array((3, 4))}[case["out"]]()  # fmt: skip
    more = {} if case["bias"] == "missing" else {
        "bias": {None: lambda: None, "bias": lambda: gpu.array(4), "wrong": lambda: gpu.array(5)}[case["bias"]]()
    }  # fmt: skip
    return (case["alpha"], x, case["count"]), {**more, "out": out, "tile": case["tile"], "mode": case["mode"]}


def outcome(gpu: Gpu, args: Any, kwargs: Any, stream: int) -> Any:
    """What a call did, with addresses of fresh memory left out."""
    start = len(gpu.log)
    try:
        with gpu.on_stream(stream):
            result = rich(*args, **kwargs)
    except cuplate.CuplateError as error:
        assert not [n for n in gpu.log[start:] if n.what in ("launch", "zero")]
        return type(error), str(error)
    given_pointers = {a.data.ptr for a in [args[1], kwargs.get("bias"), kwargs["out"]] if a is not None}
    notes = []
    for note in gpu.log[start:]:
        if note.what == "load":
            continue
        values = tuple(v if v in given_pointers or v < 2**40 else "fresh" for v in note.values)
        pointer = note.pointer if note.pointer in given_pointers else "fresh"
        notes.append(replace(note, values=values, pointer=pointer))  # type: ignore[arg-type]
    return result.shape, str(result.dtype), result is kwargs["out"], notes


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases=st.lists(CALL, min_size=1, max_size=6))
def test_the_hot_path_does_what_the_cold_path_does(gpu: Gpu, cases: list[dict[str, Any]]) -> None:
    """Any sequence of calls, good and bad: the same launches, zeroings, results and errors as with a listener."""
    for case in cases:
        args, kwargs = arguments(gpu, case)
        first = outcome(gpu, args, kwargs, case["stream"])
        again = outcome(gpu, args, kwargs, case["stream"])
        with cuplate.subscribe(lambda event: None):
            cold = outcome(gpu, args, kwargs, case["stream"])
        assert sorted(map(str, first)) == sorted(map(str, cold)) and first == again == cold


# the very same objects again ------------------------------------------------------------------------------------------


@specialize(Inline(KERNEL % "out[0] = {{ tile }};"), tiles={"N": "tile"})
def layer(
    x: Float32[Array, "M N"], w: Float32[Array, "N M"] | None = None, *, tile: Literal[32, 64] = 32
) -> Float32[Array, "M N"]:
    """Arrays of two axes, one optional, and a parameter: what a repeat compares."""
    raise NotImplementedError


@specialize(Inline(KERNEL % ""), mutates="x")
def twice(x: Float32[Array, " N"]) -> None:
    """In place."""
    raise NotImplementedError


def repeats(function: Any) -> dict[Any, Any]:
    """The records of calls that have come twice."""
    found: dict[Any, Any] = function.__globals__["_repeats"]
    return found


def only_repeats(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the function has neither plans nor a cold path."""
    plans(function).clear()
    monkeypatch.setitem(function.__globals__, "_cold", lambda *_: pytest.fail("the call is no repeat"))


def test_a_call_of_the_same_objects_looks_nothing_up(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given arrays into given arrays, with or without the optional one, and in place; each counts as a hit."""
    x, w, out, other = gpu.array((6, 4)), gpu.array((4, 6)), gpu.array((6, 4)), gpu.array((6, 4))
    line = gpu.array(8)
    calls = [
        lambda: layer(x, w, out=out),
        lambda: layer(x, out=other, tile=64),
        lambda: twice(line),
        lambda: layer(x, w).shape,
    ]
    for _ in range(3):
        first = [call() for call in calls]
    expected = [(n.grid, n.values, n.stream) for n in gpu.launches[-4:]]
    only_repeats(layer, monkeypatch)
    only_repeats(twice, monkeypatch)
    hits = layer.cache_info().hits
    again = [call() for call in calls]
    assert first == again == [out, other, None, (6, 4)]
    assert [(n.grid, n.values, n.stream) for n in gpu.launches[-4:-1]] == expected[:-1]
    assert layer.cache_info().hits == hits + 3
    with gpu.on_stream(5):
        layer(x, w, out=out)
        made = layer(x, w)
    assert [n.stream for n in gpu.launches[-2:]] == [5, 5]
    assert gpu.launches[-1].values[2] == made.data.ptr and gpu.notes("empty")[-1].stream == 5


def test_what_changes_makes_it_another_call(gpu: Gpu) -> None:
    """Another array, shape in place, parameter, stream or listener: the launch that a first call would do."""
    x, w, out = gpu.array((6, 4)), gpu.array((4, 6)), gpu.array((6, 4))
    for _ in range(3):
        layer(x, w, out=out)
    assert len(repeats(layer)) == 1
    twin, turned = gpu.array((6, 4)), gpu.array((4, 6))
    layer(twin, w, out=out)
    assert gpu.launches[-1].values[0] == twin.data.ptr
    layer(x, turned, out=out)
    assert gpu.launches[-1].values[1] == turned.data.ptr
    layer(x, out=out)
    assert len(gpu.launches[-1].values) == len(gpu.launches[0].values) - 1
    layer(x, w, out=out, tile=64)
    assert gpu.launches[-1].parameters == "tile=64"
    with pytest.raises(cuplate.ParameterError):
        layer(x, w, out=out, tile=32.0)  # type: ignore[arg-type]
    assert gpu.launches[-1].parameters == "tile=64"
    layer(x, w, out=out, stream=SimpleNamespace(ptr=7))
    assert gpu.launches[-1].stream == 7
    heard: list[str] = []
    with events_module.subscribe(lambda event: heard.append(event.kind)):
        layer(x, w, out=out)
    assert "launch" in heard


@pytest.mark.parametrize("which", ["x", "w", "out"])
def test_a_shape_changed_in_place_is_seen(gpu: Gpu, which: str) -> None:
    """CuPy lets `a.shape = ...`: the sizes that are launched, or the error, are those of the new shape."""
    arrays = {"x": gpu.array((6, 4)), "w": gpu.array((4, 6)), "out": gpu.array((6, 4))}
    for _ in range(3):
        layer(arrays["x"], arrays["w"], out=arrays["out"])
    changed = arrays[which]
    start = len(gpu.launches)
    for shape in [(3, 8), (24, 1), (24,), (1, 6, 4), (2, 12)]:
        changed._place(changed.host.reshape(shape), changed.data.ptr, 0)
        with pytest.raises(ShapeError):
            layer(arrays["x"], arrays["w"], out=arrays["out"])
    assert len(gpu.launches) == start
    for name, shape in [("x", (3, 8)), ("w", (8, 3)), ("out", (3, 8))]:
        arrays[name]._place(arrays[name].host.reshape(shape), arrays[name].data.ptr, 0)
    layer(arrays["x"], arrays["w"], out=arrays["out"])
    assert gpu.launches[-1].values[-2:] == (3, 8)


def test_a_record_keeps_no_array_alive_and_serves_no_other(gpu: Gpu) -> None:
    """Arrays go when their owner lets go; one that gets the identity of another is told from it."""
    x, out = gpu.array((6, 4)), gpu.array((6, 4))
    for _ in range(3):
        layer(x, out=out)
    (record,) = repeats(layer).values()
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    stranger, target = gpu.array((6, 4)), gpu.array((6, 4))
    key = id(stranger) ^ id(None) ^ id(target)
    repeats(layer)[key] = record  # as if both had got the identities of `x` and `out`
    layer(stranger, out=target)
    assert (
        repeats(layer)[key] is record
        and gpu.launches[-1].values[0] == stranger.data.ptr
        and target.data.ptr in gpu.launches[-1].values
    )


@specialize(Inline(KERNEL % ""), tiles={"N": 32})
def shifted(
    x: Float32[Array, " N"], w: Float32[Array, " N"], shift: Float32[Array, " N"] | None = None
) -> Float32[Array, " N"]:
    """An optional array by whose identity no record is found."""
    raise NotImplementedError


def test_an_array_that_is_gone_is_not_one_that_is_left_out(gpu: Gpu) -> None:
    """The weak reference says None then, and so does the argument: an AttributeError came out of the call."""
    x, w, shift, out = (gpu.array(8) for _ in range(4))
    for _ in range(3):
        shifted(x, w, shift, out=out)
    assert len(repeats(shifted)) == 1
    del shift
    gc.collect()
    assert shifted(x, w, out=out) is out
    assert len(gpu.launches[-1].values) == len(gpu.launches[0].values) - 1


def test_a_repeat_goes_with_its_kernel_and_its_template(gpu: Gpu) -> None:
    """Eviction, `cache_clear` and `reload` drop the records, and the kernel is really freed."""
    x, out = gpu.array((6, 4)), gpu.array((6, 4))
    for forget_it in (lambda: cache.clear(disk=False), layer.cache_clear, layer.reload):
        for _ in range(3):
            layer(x, out=out)
        assert len(repeats(layer)) == 1
        forget_it()
        assert repeats(layer) == {}
    for _ in range(3):
        layer(x, out=out)
    alive = weakref.ref(next(iter(gpu.loaded)))
    cache.clear(disk=False)
    gc.collect()
    assert alive() is None
    loads = len(gpu.notes("load"))
    layer(x, out=out)
    assert len(gpu.notes("load")) == loads + 1


def test_a_refused_repeat_is_told(gpu: Gpu) -> None:
    """The driver's refusal comes as it does on a first call, and the next call works."""
    x, out = gpu.array((6, 4)), gpu.array((6, 4))
    for _ in range(3):
        layer(x, out=out)
    gpu.refuse = RuntimeError("CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(LaunchError, match="the launch was refused: CUDA_ERROR_INVALID_VALUE"):
        layer(x, out=out)
    gpu.refuse = None
    assert layer(x, out=out) is out


def test_a_record_is_made_once_for_its_identities(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that are made anew get identities of earlier ones by turns: no record is made of each."""
    out, turns, noted = gpu.array((6, 4)), itertools.cycle(range(1, 6)), []
    layer(gpu.array((6, 4)), out=out)
    note = layer.__globals__["_note"]
    monkeypatch.setitem(layer.__globals__, "_id", lambda array: 0 if array is out or array is None else next(turns))
    monkeypatch.setitem(layer.__globals__, "_note", lambda key, *call: (noted.append(key), note(key, *call)))
    for _ in range(50):
        layer(gpu.array((6, 4)), out=out)
    assert len(gpu.launches) == 51 and sorted(noted) == [1, 2, 3, 4, 5]


def test_repeats_are_bounded(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many buffers, each used again and again: no more records than the limit, and each call is right."""
    monkeypatch.setitem(layer.__globals__, "_seen_limit", 8)
    x, outs = gpu.array((6, 4)), [gpu.array((6, 4)) for _ in range(30)]
    for _ in range(4):
        for out in outs:
            assert layer(x, out=out) is out and gpu.launches[-1].values[1] == out.data.ptr
            assert len(repeats(layer)) <= 8


def test_what_cannot_be_told_by_identity_is_no_repeat(gpu: Gpu) -> None:
    """A scalar, a list that may change, zeroing, scratch: such calls are looked up each time."""
    x, out, matrix = gpu.array(4), gpu.array(4), gpu.array((6, 4))
    values = [1.0]
    for _ in range(4):
        listed(x, values=values, out=out)
        rich(1.0, matrix, 3, out=gpu.array((6, 4)))
        accumulate(x, out)
    assert not any("_w_" in inspect_source(f) for f in (listed, rich, pair))
    assert repeats(accumulate) == {}  # y is zeroed
    values[0] = 2.0
    listed(x, values=values, out=out)
    assert gpu.launches[-1].parameters == "values=(2.0,)"


def inspect_source(function: Any) -> str:
    """The generated text."""
    import inspect

    return inspect.getsource(function.__code__)


# listeners, limits, eviction ------------------------------------------------------------------------------------------


def test_listeners_hear_of_every_call(gpu: Gpu) -> None:
    """While somebody listens, warm calls tell of a hit and a launch; afterwards they are silent and short again."""
    x = gpu.array(4)
    plain(x)
    with cuplate.subscribe(lambda e: heard.append((e.kind, e.tier, e.function))) as subscription:
        heard: list[Any] = []
        plain(x)
        assert heard == [("hit", "memory", "plain"), ("launch", None, "plain")]
        subscription.close()
        plain(x)
        assert len(heard) == 2
    assert not events_module.listeners


def test_a_first_call_tells_its_story(gpu: Gpu) -> None:
    """render, miss in memory, miss on disk, compile, load, launch; from disk: a hit, and no compile."""
    x = gpu.array(4)
    heard: list[Any] = []
    with cuplate.subscribe(lambda e: heard.append((e.kind, e.tier))):
        plain(x)
        plain.cache_clear()
        plain(x)
    story = [
        ("render", None),
        ("miss", "memory"),
        ("compile", None),
        ("miss", "disk"),
        ("load", None),
        ("launch", None),
    ]
    assert sorted(heard[:6], key=str) == sorted(story, key=str)
    assert [h for h in heard[6:] if h[0] not in ("evict", "render")] == [
        ("miss", "memory"), ("hit", "disk"), ("load", None), ("launch", None),
    ]  # fmt: skip


def test_plans_are_bounded(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """At their limit they are dropped whole, and made again when they are needed."""
    from cuplate import hotpath, walk

    monkeypatch.setattr(hotpath, "PLANS", 10)
    monkeypatch.setattr(walk, "PLANS", 10)
    for n in range(1, 36):
        plain(gpu.array(n))
        assert len(plans(plain)) <= 10 and len(plain.inspect.__self__.variants.__dict__) > 0
    assert len(gpu.launches) == 35 and len(gpu.notes("load")) == 1


def test_evicted_kernels_are_freed_and_come_back_from_disk_b29(gpu: Gpu) -> None:
    """B29: 60 values with room for 8: never more than 8 are loaded, none of them compiled twice, plans go with them."""
    x = gpu.array(4)
    with cuplate.configure(memory_kernels=8):
        before = cache.stats()
        for value in [*range(60), *range(60)]:
            anything(x, value=value)
            assert gpu.launches[-1].parameters == f"value={value}"
            assert len(gpu.loaded) <= 9
        gc.collect()
        assert len(gpu.loaded) == 8 and len(plans(anything)) == 8
        made = cache.stats()
        assert made.compile.compiles - before.compile.compiles == 60
        assert made.memory.evictions - before.memory.evictions == 112
        assert len(gpu.notes("load")) == 120
        for value in (59, 58):
            anything(x, value=value)
        assert len(gpu.notes("load")) == 120


def test_a_kernel_shared_by_functions_leaves_all_their_plans(gpu: Gpu) -> None:
    """Equal renders share a loaded kernel; when it goes, no function keeps a plan that leads to it."""
    text = Inline('extern "C" __global__ void same({{ args }}) { out[0] = 1; }')

    @specialize(text, entry="same")
    def one(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    @specialize(text, entry="same")
    def two(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    x = gpu.array(4)
    one(x)
    two(x)
    assert len(gpu.notes("load")) == 1
    alive = weakref.ref(next(iter(gpu.loaded)))
    cache.clear(disk=False)
    gc.collect()
    assert alive() is None and plans(one) == plans(two) == {}
    one(x)
    assert len(gpu.notes("load")) == 2


def test_a_plan_made_while_its_kernel_is_evicted_is_not_kept(gpu: Gpu) -> None:
    """Another thread may evict a kernel between its load and its first plan: that plan would keep it for good."""
    x = gpu.array(4)
    original = gpu.launch

    def evict_meanwhile(*args: Any) -> None:
        original(*args)
        cache.clear(disk=False)

    gpu.launch = evict_meanwhile  # type: ignore[method-assign]
    plain(x)
    gpu.launch = original  # type: ignore[method-assign]
    gc.collect()
    assert plans(plain) == {} and len(gpu.loaded) == 0


def test_cache_clear_forgets_the_functions_kernels(gpu: Gpu) -> None:
    """Plans, renders and loaded kernels go; the store stays."""
    x = gpu.array(4)
    plain(x)
    real(x)
    plain.cache_clear()
    gc.collect()
    assert plans(plain) == {} and len(plans(real)) == 1 and len(gpu.loaded) == 1
    assert plain.cache_info().variants == 0
    plain(x)
    assert plain.cache_info().disk_hits >= 1


def test_reload_reads_the_template_again(gpu: Gpu, tmp_path: Path) -> None:
    """A changed file is another kernel after `reload`; another fact in it is in the key from then on."""
    file = tmp_path / "k.cu.j2"
    file.write_text(KERNEL % "out[0] = 1;")

    @specialize(file)
    def k(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    x = gpu.array(8)
    k(x)
    k(x)
    file.write_text(KERNEL % "out[0] = {{ x.aligned(16) }};")
    k(x)
    assert len(gpu.notes("load")) == 1
    k.reload()
    k(x)
    shifted = x[1:]
    k(shifted)
    k(gpu.array(7))
    k(shifted)
    texts = [n.values[-1] for n in gpu.launches]
    assert len(gpu.notes("load")) == 3 and texts == [8, 8, 8, 8, 7, 7, 7]
    assert "false" in k.inspect(shifted, arch="sm_90").source


def test_a_refused_launch_is_told_and_leaves_nothing_behind(gpu: Gpu) -> None:
    """Cold and warm: LaunchError with function, call, grid and block, the driver's words as its cause."""
    x = gpu.array(100)
    for _ in range(2):
        gpu.refuse = RuntimeError("CUDA_ERROR_INVALID_VALUE")
        with pytest.raises(LaunchError) as caught:
            plain(x)
        assert caught.value.facts["grid"] == (4, 1, 1) and caught.value.facts["block"] == (32, 1, 1)
        assert str(caught.value).startswith("plain: the launch was refused: CUDA_ERROR_INVALID_VALUE")
        assert caught.value.__cause__ is gpu.refuse
        gpu.refuse = None
        assert plain(x).shape == (100,)
    assert len(gpu.launches) == 2


def test_generated_code_is_shown_in_tracebacks(gpu: Gpu) -> None:
    """Its text is registered with linecache, the runner's too."""
    import inspect
    import linecache

    plain(gpu.array(4))
    assert inspect.getsource(plain.__code__).startswith("def plain(x=_missing, *_more, tile=_default_tile")
    runner = next(iter(plans(plain).values()))[0]
    assert linecache.getline(runner.__code__.co_filename, 1).startswith("def _run_plain(")


def test_threads_share_one_compile_and_one_load_b12(gpu: Gpu) -> None:
    """B12: 16 threads at once with one cold key: one compile, one kernel kept, 16 right results."""
    barrier = threading.Barrier(16)
    errors: list[BaseException] = []
    value = next(UNIQUE)

    def call() -> None:
        try:
            x = gpu.array(8)
            barrier.wait()
            assert anything(x, value=value).shape == (8,)
            assert anything(x, value=value).shape == (8,)
        except BaseException as error:
            errors.append(error)

    before = cache.stats(all_threads=True).compile.compiles
    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert errors == [] and len(gpu.launches) == 32 and len(gpu.loaded) == 1
    assert cache.stats(all_threads=True).compile.compiles - before == 1


UNIQUE = itertools.count(10_000)


def test_threads_evict_under_each_other(gpu: Gpu) -> None:
    """Eight threads over twelve kernels with room for three: every launch runs the kernel of its own value."""
    errors: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            x = gpu.array(8)
            for i in range(60):
                anything(x, value=(seed * 7 + i) % 12)
        except BaseException as error:
            errors.append(error)

    with cuplate.configure(memory_kernels=3):
        threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        assert errors == [] and len(gpu.launches) == 480
        assert len(gpu.loaded) <= 3 and len(plans(anything)) <= 3


@specialize(Inline(KERNEL % "out[0] = x[0];"))
def doubled(x: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
    """Two axes."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "out[0] = a[0] * b[0];"), tiles={"N": 16, "M": 16})
def product(a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
    """Two axes each, one of them in no output."""
    raise NotImplementedError


def test_shapes_of_equal_length_and_size_stay_apart(gpu: Gpu) -> None:
    """Rank, length and size stand for a shape: another rank is refused warm as it is cold, another shape runs."""
    x = gpu.array((4, 6))
    for _ in range(3):
        doubled(x)
    for shape in ((4, 2, 3), (24,)):
        with pytest.raises(ShapeError, match="axes"):
            doubled(gpu.array(shape))
    for shape in ((6, 4), (4, 6), (3, 8)):
        assert doubled(gpu.array(shape)).shape == shape
    assert gpu.launches[-1].values[-2:] == (3, 8)


def test_empty_arrays_never_take_the_hot_path(gpu: Gpu) -> None:
    """Length and size 0 say nothing of the other axis: (0, 5) and (0, 7) must give outputs of 5 and of 7."""
    for n in (5, 7, 5, 7):
        assert product(gpu.array((2, 0)), gpu.array((0, n))).shape == (2, n)


@specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { if (N) out[0] = x[0]; }'))
def pairs(x: Complex64[Array, " N"]) -> Complex64[Array, " N"]:
    """Complex numbers."""
    raise NotImplementedError


def test_complex_numbers_between_two_floats_never_get_on_the_hot_path(gpu: Gpu) -> None:
    """Dtype, shape and packedness are those of the plan; the address is no multiple of 8."""
    floats = gpu.array(34)
    right = floats.view(floats.host[:32].view(np.complex64))
    between = floats.view(floats.host[1:33].view(np.complex64))
    for _ in range(3):
        pairs(right)
        pairs(right, out=gpu.array(16, "complex64"))
        with pytest.raises(LayoutError, match="array 'x' starts at an address"):
            pairs(between)
        with pytest.raises(LayoutError, match="array 'out' starts at an address"):
            pairs(gpu.array(16, "complex64"), out=between)
    assert len(gpu.launches) == 6 and len(pairs.__globals__["_plans"]) == 1


PARAMS: Any = np.dtype([("gain", np.float32, (3,)), ("shift", np.int64)], align=True)


@specialize(
    Inline("""
{{ p.definition }}
extern "C" __global__ void {{ kernel }}({{ args }}) { if (N) out[0] = x[0] * p.gain[0] + p.shift; }
""")
)
def affine(p: Annotated[np.void, PARAMS], x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """A struct by value."""
    raise NotImplementedError


def test_a_struct_travels_as_its_bytes_on_every_path(gpu: Gpu) -> None:
    """Cold and hot: the value of this call, not that of the plan's first."""
    x = gpu.array(4)
    values = [np.array(([i, 2, 3], -i), PARAMS)[()] for i in range(5)]
    for value in values:
        affine(value, x)
    assert [n.values[0] for n in gpu.launches] == [v.tobytes() for v in values]
    assert len(affine.__globals__["_plans"]) == 1
    with pytest.raises(DtypeError):
        affine(
            np.array(([0, 0, 0], 0), np.dtype([("gain", np.float32, (3,)), ("shift", np.uint64)], align=True))[()], x
        )
