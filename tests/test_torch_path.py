"""The hot path of torch's tensors: what it takes, and each thing that sends a call the general way.

torch itself is a double here, so that each of its answers can be changed alone. Behind each case stands a second one:
with the check cut out of the generated text, the same call would have been launched. `tests/gpu/test_torch_path.py`
has the real torch.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from jaxtyping import Complex64, Float32

import cuplate
from cuplate import ArgumentError, Array, Inline, LayoutError, dispatch, f32, specialize
from tests.doubles import Gpu, install, install_torch

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { %s }'


def layer() -> Any:
    """Two inputs, one of them optional, a parameter; its template asks for an alignment."""

    @specialize(Inline(KERNEL % "out[0] = {{ tile }} + {{ x.aligned(16) }};"), tiles={"N": "tile"})
    def layer(
        x: Float32[Array, "M N"], w: Float32[Array, " N"] | None = None, *, tile: Literal[32, 64] = 32
    ) -> Float32[Array, "M N"]:
        raise NotImplementedError

    return layer


def turned() -> Any:
    """Complex numbers."""

    @specialize(Inline(KERNEL % "if (N) out[0] = x[0];"))
    def turned(x: Complex64[Array, " N"]) -> Complex64[Array, " N"]:
        raise NotImplementedError

    return turned


def added() -> Any:
    """In place, with a scalar."""

    @specialize(Inline(KERNEL % ""), mutates="y")
    def added(a: f32, x: Float32[Array, " N"], y: Float32[Array, " N"]) -> None:
        raise NotImplementedError

    return added


def stated() -> Any:
    """With scratch, and an output of zeros."""

    @specialize(Inline(KERNEL % ""), scratch={"state": ("uint64", "N")}, zeroed="out")
    def stated(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    return stated


class Both(NamedTuple):
    left: Float32[Array, " N"]
    right: Float32[Array, " N"]


def split() -> Any:
    """Two outputs."""

    @specialize(Inline(KERNEL % ""))
    def split(x: Float32[Array, " N"]) -> Both:
        raise NotImplementedError

    return split


class Cold(Exception):
    """The general path was asked."""


def go_cold(*_: Any) -> Any:
    """In the place of the general path."""
    raise Cold


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU with a recording torch."""
    gpu = install(monkeypatch)
    install_torch(monkeypatch, gpu)
    yield gpu


def arrays(gpu: Gpu) -> dict[str, Any]:
    """Of a warm call of `layer`, of `turned` and of `added`."""
    make = gpu.torch.make
    named = {"x": make((6, 4)), "w": make(4), "out": make((6, 4)), "u": make(8), "y": make(8), "line": make(64)}
    return {**named, "z": make(8, "complex64"), "z_out": make(8, "complex64")}


def warm(function: Any, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls; from now on the general path says that it was asked."""
    for _ in range(2):
        call()
    monkeypatch.setitem(function.__globals__, "_cold", go_cold)
    call()


# what is hot ----------------------------------------------------------------------------------------------------------


def test_the_second_call_is_hot(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh and given outputs, optional arrays, in place, scratch: the launch of the first call."""
    t = arrays(gpu)
    whole, in_place, with_scratch, complex_, two = layer(), added(), stated(), turned(), split()
    calls = [
        (whole, lambda: whole(t["x"], t["w"])),
        (whole, lambda: whole(t["x"])),
        (whole, lambda: whole(t["x"], t["w"], tile=64, out=t["out"])),
        (in_place, lambda: in_place(2.0, t["u"], t["y"])),
        (with_scratch, lambda: with_scratch(t["u"])),
        (complex_, lambda: complex_(t["z"], out=t["z_out"])),
        (two, lambda: two(t["u"])),
    ]
    for function, call in calls:
        with monkeypatch.context() as patched:
            start = len(gpu.log)
            warm(function, call, patched)
            kinds = [n.what for n in gpu.log[start:] if n.what != "load"]
            assert kinds[: len(kinds) // 3] * 3 == kinds
        first, _, third = gpu.launches[-3:]
        assert (first.grid, first.kernel, first.parameters) == (third.grid, third.kernel, third.parameters)
        fixed = {v.address for v in t.values()}
        assert [v if v in fixed else "" for v in first.values if v > 2**40] == [
            v if v in fixed else "" for v in third.values if v > 2**40
        ]
    assert whole.cache_info().hits == 6


def test_a_fresh_output_is_torchs_and_of_this_stream(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type, shape, dtype; allocated and launched on torch's current stream."""
    t, f = arrays(gpu), layer()
    warm(f, lambda: f(t["x"]), monkeypatch)
    with gpu.on_stream(70):
        out = f(t["x"])
    assert type(out) is gpu.torch.Tensor and out.shape == (6, 4) and out.dtype is gpu.torch.float32
    assert gpu.launches[-1].stream == gpu.notes("empty")[-1].stream == 70
    assert out.address in gpu.launches[-1].values


def test_parameters_and_tensors_without_gradients_are_hot(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """``nn.Parameter`` under ``no_grad``; and not where gradients are on."""
    t, f = arrays(gpu), layer()
    weight = gpu.torch.nn.Parameter(t["w"].host, t["w"].address)
    weight.requires_grad = True
    gpu.torch.grads = False
    warm(f, lambda: f(t["x"], weight), monkeypatch)
    gpu.torch.grads = True
    with pytest.raises(Cold):
        f(t["x"], weight)


def test_a_captured_kernel_is_kept(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the hot path as well, with its scratch; and not outside a capture."""
    t, f = arrays(gpu), stated()
    warm(f, lambda: f(t["u"]), monkeypatch)
    (loaded,) = gpu.loaded
    with gpu.on_stream(70):
        f(t["u"])
        assert not loaded.kept
        gpu.capturing.add(70)
        f(t["u"])
    assert loaded.kept and len(loaded.held) == 1


def test_torch_hears_what_is_written(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given outputs and arrays in place get a new version in each call; fresh, read and inference ones none."""
    t, f, g = arrays(gpu), layer(), added()
    warm(f, lambda: f(t["x"], out=t["out"]), monkeypatch)
    warm(g, lambda: g(2.0, t["u"], t["y"]), monkeypatch)
    assert (t["out"]._version, t["y"]._version) == (3, 3)
    assert (t["x"]._version, t["u"]._version, f(t["x"])._version) == (0, 0, 0)
    t["out"].inference = True
    f(t["x"], out=t["out"])
    assert t["out"]._version == 3


def test_each_librarys_arrays_are_hot_in_one_function(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first; a call with arrays of both is checked from the ground up."""
    for order in ("ct", "tc"):
        f, t, c = layer(), arrays(gpu), gpu.array((6, 4))
        calls = {"c": lambda f=f, c=c: f(c), "t": lambda f=f, t=t: f(t["x"])}
        for _ in range(2):
            for which in order:
                calls[which]()
        with monkeypatch.context() as patched:
            patched.setitem(f.__globals__, "_cold", go_cold)
            assert type(calls["c"]()) is gpu.cupy.ndarray and type(calls["t"]()) is gpu.torch.Tensor
            for first, out in ((c, t["out"]), (t["x"], gpu.array((6, 4)))):
                with pytest.raises(Cold):
                    f(first, out=out)
            with pytest.raises(Cold):
                f(t["x"], gpu.array(4))


def test_no_tensor_is_kept_alive(gpu: Gpu) -> None:
    """Neither a plan nor a record of objects: there is none, since a tensor may change in place."""
    t, f = arrays(gpu), layer()
    f(t["x"], out=t["out"])
    gc.collect()
    before = [sys.getrefcount(t[n]) for n in ("x", "out")]
    for _ in range(5):
        f(t["x"], out=t["out"])
    assert [sys.getrefcount(t[n]) for n in ("x", "out")] == before
    assert "_repeats" not in f.__code__.co_names


def test_a_torch_without_the_names_is_served_the_general_way(gpu: Gpu) -> None:
    """Nothing breaks where torch's own names have moved; and where only the fast ones have, calls are hot."""
    t, f = arrays(gpu), layer()
    del gpu.torch._C._len_torch_dispatch_stack
    for _ in range(3):
        assert f(t["x"]).shape == (6, 4)
    assert len(gpu.launches) == 3 and not f.__globals__["_plans"]


def test_a_refused_launch_is_told(gpu: Gpu) -> None:
    """Warm, too; the version of an output that nobody wrote stays."""
    t, f = arrays(gpu), layer()
    f(t["x"], out=t["out"])
    gpu.refuse = RuntimeError("CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(cuplate.LaunchError, match="the launch was refused"):
        f(t["x"], out=t["out"])
    assert t["out"]._version == 1


def test_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has plans of its own; a tensor of another device than the current one, or than `out`, is not hot."""
    gpu = install(monkeypatch, devices=2)
    make, f = install_torch(monkeypatch, gpu).make, layer()
    near, far = make((6, 4)), make((6, 4), device=1)
    for _ in range(2):
        f(near)
        with gpu.on(1):
            f(far)
    monkeypatch.setitem(f.__globals__, "_cold", go_cold)
    f(near)
    assert gpu.launches[-1].device == 0
    with gpu.on(1):
        f(far)
        assert gpu.launches[-1].device == 1
        for x, out in ((near, None), (far, make((6, 4)))):
            with pytest.raises(Cold):
                f(x, out=out)
    with pytest.raises(Cold):
        f(far)


# what is not ----------------------------------------------------------------------------------------------------------


def sub(t: Any, name: str) -> None:
    """Of a class that could answer anything."""
    tensor = t[name]
    tensor.__class__ = type("Sub", (type(tensor),), {})


def change(**facts: Any) -> Callable[[Any, str], None]:
    """Other answers of one tensor."""

    def apply(t: Any, name: str) -> None:
        for fact, value in facts.items():
            setattr(t[name], fact, value)

    return apply


def as_host(remake: Callable[[Any], Any]) -> Callable[[Any, str], None]:
    """Other memory in one tensor, as `set_` and ``.data =`` do it."""

    def apply(t: Any, name: str) -> None:
        t[name].host = remake(t[name].host)

    return apply


def onto(other: str, offset: int = 0) -> Callable[[Any, str], None]:
    """At the address of another."""

    def apply(t: Any, name: str) -> None:
        t[name].address = t[other].address + offset

    return apply


def stepped(host: Any) -> Any:
    """Of the same shape, with gaps."""
    return np.zeros((*host.shape[:-1], 2 * host.shape[-1]), host.dtype)[..., ::2]


NO_MEMORY = RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")
# What changes, of which tensors, and what is cut out of the generated text to take the check away.
CASES: list[tuple[str, str, Callable[[Any, str], None], tuple[tuple[str, str], ...]]] = [
    ("x w", "class", sub, ((r"(x|w)\.__class__, (?=\1\.dtype)", ""),)),
    ("x w", "dtype", as_host(lambda h: h.astype(np.int32)), ((r"(?<=__class__, )(x|w)\.dtype, ", ""),)),
    ("x w", "shape", as_host(lambda h: np.zeros((5, *h.shape[1:]), h.dtype)), ((r"(x|w)\.shape, ", ""),)),
    ("x w", "packed", as_host(stepped), ((r"(x|w)\.is_contiguous\(\), ", ""),)),
    ("x w", "device", change(is_cuda=False), ((r", (x|w)\.is_cuda", ""),)),
    ("x w z", "negative", change(negative=True), ((r"\b(x|w|z)\.is_neg\(\)", "False"),)),
    ("z", "conjugate", change(conjugate=True), ((r"\bx\.is_conj\(\)", "False"),)),
    ("x w z", "gradient", change(requires_grad=True), ((r"\b(x|w)\.requires_grad", "False"),)),
    ("x w z", "no memory", change(address=0), ((r"if not \(_p_.*\):", "if False:"),)),
    ("z", "between two floats", onto("line", 4), ((r"if _p_x % 8:", "if False:"),)),
    ("x", "alignment", onto("line", 4), ((r"\(_p_x := x\.data_ptr\(\)\) % 16 == 0", "bool(_p_x := x.data_ptr())"),)),
    ("out z_out", "class", sub, ((r"out\.__class__ not in _tensors or ", ""),)),
    ("out", "dtype", as_host(lambda h: h.astype(np.int32)), ((r"out\.dtype is not _dtype_out", "False"),)),
    ("out", "shape", as_host(lambda h: np.zeros((4, 6), h.dtype)), ((r"out\.shape != _shape_out", "False"),)),
    ("out", "packed", as_host(stepped), ((r"not out\.is_contiguous\(\)", "False"),)),
    ("out", "device", change(is_cuda=False), ((r"not out\.is_cuda", "False"),)),
    ("out z_out", "negative", change(negative=True), ((r"out\.is_neg\(\)", "False"),)),
    ("z_out", "conjugate", change(conjugate=True), ((r"out\.is_conj\(\)", "False"),)),
    ("out", "gradient", change(requires_grad=True), ((r"out\.requires_grad", "False"),)),
    ("out", "no memory", change(address=0), ((r"if not _p_out:", "if False:"),)),
    ("out", "overlap", onto("x", 16), ((r"if _low < _p_out - _p_x.*:", "if False:"),)),
    ("out", "overlap", onto("w"), ((r"if _low < _p_out - _p_w.*:", "if False:"),)),
    ("z_out", "between two floats", onto("line", 4), ((r"if _p_out % 8:", "if False:"),)),
    ("y", "overlap", onto("u", 16), ((r"if -_bytes_y < .*:", "if False:"),)),
]
ROWS = [(name, *case[1:]) for case in CASES for name in case[0].split()]
IDS = [f"{name}-{what}-{i}" for i, (name, what, *_) in enumerate(ROWS)]


def called(t: dict[str, Any], name: str) -> tuple[Any, Callable[[], Any]]:
    """The function that takes this tensor, and its call."""
    if name.startswith("z"):
        f = turned()
        return f, lambda: f(t["z"], out=t["z_out"])
    if name in "yu":
        f = added()
        return f, lambda: f(2.0, t["u"], t["y"])
    f = layer()
    return f, lambda: f(t["x"], t["w"], out=t["out"])


def cut(monkeypatch: pytest.MonkeyPatch, pattern: str, replacement: str) -> list[int]:
    """From now on generated code lacks what matches; counts how often."""
    make, counts = dispatch._make, []

    def make_cut(text: str, name: str, namespace: dict[str, Any]) -> Any:
        text, count = re.subn(pattern, replacement, text)
        counts.append(count)
        return make(text, name, namespace)

    monkeypatch.setattr(dispatch, "_make", make_cut)
    return counts


@pytest.mark.parametrize(("name", "what", "alter", "check"), ROWS, ids=IDS)
def test_what_changes_after_a_warm_call_is_seen(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, name: str, what: str, alter: Any, check: Any
) -> None:
    """The same objects, one answer of one tensor changed in place: the general path decides; nothing is launched."""
    t = arrays(gpu)
    function, call = called(t, name)
    warm(function, call, monkeypatch)
    launches = len(gpu.launches)
    alter(t, name)
    with pytest.raises(Cold):
        call()
    assert len(gpu.launches) == launches


@pytest.mark.parametrize(("name", "what", "alter", "check"), ROWS, ids=IDS)
def test_without_its_check_it_would_not_be_seen(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, name: str, what: str, alter: Any, check: Any
) -> None:
    """Each case above rests on one piece of the generated text."""
    t = arrays(gpu)
    ((pattern, replacement),) = check
    counts = cut(monkeypatch, pattern, replacement)
    function, call = called(t, name)
    warm(function, call, monkeypatch)
    assert sum(counts)
    launches = len(gpu.launches)
    alter(t, name)
    call()
    assert len(gpu.launches) == launches + 1


STATES: list[tuple[str, Callable[[Any, Any], None], str, str]] = [
    ("forward mode", lambda torch, t: setattr(torch.autograd.forward_ad, "_current_level", 0),
     r"_forward\._current_level >= 0 or ", ""),
    ("a mode", lambda torch, t: setattr(torch, "modes", 1), r"_modes\(\) or ", ""),
    ("a trace", lambda torch, t: setattr(torch, "trace", object()), r"_trace\(\) or ", ""),
    ("a transform", lambda torch, t: setattr(torch, "transform", 1), r"if _transform\(\) is not None", "if False"),
]  # fmt: skip


@pytest.mark.parametrize("whole", [True, False], ids=["seen", "cut out"])
@pytest.mark.parametrize(("what", "alter", "pattern", "replacement"), STATES, ids=[s[0] for s in STATES])
def test_states_of_torch_are_seen(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, what: str, alter: Any, pattern: str, replacement: str, whole: bool
) -> None:
    """A level of forward mode, a mode of the dispatcher, a transform: no fresh output, no scratch, without torch."""
    t = arrays(gpu)
    counts = [1] if whole else cut(monkeypatch, pattern, replacement)
    functions = [layer(), stated(), split()]
    calls = [
        lambda: functions[0](t["x"]),
        lambda: functions[1](t["u"]),
        lambda: functions[2](t["u"]),
        lambda: functions[1](t["u"], out=t["y"]),
    ]
    for function, call in zip([*functions, functions[1]], calls, strict=True):
        with monkeypatch.context() as patched:
            warm(function, call, patched)
    for function in functions:
        monkeypatch.setitem(function.__globals__, "_cold", go_cold)
    assert sum(counts)
    alter(gpu.torch, t)
    launches = len(gpu.launches)
    for call in calls:
        if whole:
            with pytest.raises(Cold):
                call()
        else:
            call()
    assert len(gpu.launches) == launches + (0 if whole else len(calls))


@pytest.mark.parametrize("name", ["x", "w", "out"])
@pytest.mark.parametrize("fact", ["address", "is_contiguous", "shape", "is_neg"])
def test_a_tensor_that_cannot_answer_is_not_hot(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, name: str, fact: str
) -> None:
    """torch.func's tensors raise at their address, sparse and nested ones earlier: no error of torch's gets out."""
    t, f = arrays(gpu), layer()
    warm(f, lambda: f(t["x"], t["w"], out=t["out"]), monkeypatch)

    def no(self: Any) -> Any:
        raise NO_MEMORY

    if fact == "address":
        t[name].address = NO_MEMORY
    elif fact == "shape":
        t[name].__class__ = type("Tensor", (gpu.torch.Tensor,), {"shape": property(no)})
    else:
        monkeypatch.setattr(t[name], fact, lambda: no(None))
    launches = len(gpu.launches)
    with pytest.raises(Cold):
        f(t["x"], t["w"], out=t["out"])
    assert len(gpu.launches) == launches


def test_streams_listeners_and_names_go_the_general_way(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with CuPy's arrays; CUPLATE_DEBUG closes the hot path as a listener."""
    t, f = arrays(gpu), layer()
    warm(f, lambda: f(t["x"]), monkeypatch)
    for more in ({"stream": SimpleNamespace(ptr=7)}, {"til": 1}, {"tile": 64}, {"tile": 32.0}, {"w": None, "out": 3}):
        with pytest.raises(Cold):
            f(t["x"], **more)
    with cuplate.subscribe(lambda event: None), pytest.raises(Cold):
        f(t["x"])
    with pytest.raises(Cold):
        f(t["x"], None, "more")


@pytest.mark.parametrize(
    ("alter", "error"),
    [
        (lambda t: sub(t, "x"), None),
        (lambda t: t["x"].__dict__.update(negative=True), LayoutError),
        (lambda t: t["x"].__dict__.update(requires_grad=True), ArgumentError),
        (lambda t: t["out"].__dict__.update(address=t["x"].address), LayoutError),
        (lambda t: t["x"].__dict__.update(address=0), ArgumentError),
    ],
)
def test_warm_calls_end_as_cold_ones(gpu: Gpu, alter: Any, error: Any) -> None:
    """The launch, or the error, of a first call."""
    t, f = arrays(gpu), layer()
    for _ in range(3):
        f(t["x"], out=t["out"])
    alter(t)
    if error is None:
        assert f(t["x"], out=t["out"]) is t["out"]
        return
    with pytest.raises(error) as warm_error:
        f(t["x"], out=t["out"])
    with cuplate.subscribe(lambda event: None), pytest.raises(error) as cold_error:
        f(t["x"], out=t["out"])
    assert str(warm_error.value) == str(cold_error.value) and len(gpu.launches) == 3


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_by_columns_are_hot_where_the_order_is_asked(gpu: Gpu, library: str) -> None:
    """Each order has its plan; a view of the same sizes with gaps is refused after both."""

    @specialize(Inline(KERNEL % "out[0] = {{ 1 if x.order == 'F' else 2 }} + w[0];"), grid=1)
    def k(x: Float32[Array, "M N"], w: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
        raise NotImplementedError

    def made(host: Any) -> Any:
        if library == "cupy":
            return type(gpu.array(0))(host=host)
        return gpu.torch.Tensor(host, gpu.new_address(host.nbytes))

    rows, columns = np.zeros((6, 4), np.float32), np.zeros((4, 6), np.float32).T
    codes = []
    for host in (rows, columns, rows, columns):
        for _ in range(3):
            k(made(host), made(rows))
        codes.append(gpu.launches[-1].code)
    assert codes[0] == codes[2] != codes[1] == codes[3]
    assert k.cache_info().hits == 10 and len(k.__globals__["_plans"]) == 2
    with pytest.raises(LayoutError):
        k(made(np.zeros((6, 8), np.float32)[:, ::2]), made(rows))
    with pytest.raises(LayoutError):
        k(made(rows), made(columns))  # the order of w is not asked
