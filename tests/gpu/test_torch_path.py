"""The hot path of torch's tensors: right results, and whatever a tensor may become after a warm call.

`tests/test_torch_path.py` holds each check alone, against a double; here torch makes the tensors that need it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jaxtyping import Complex64, Float, Float32

import cuplate
from cuplate import (
    ArgumentError,
    Array,
    CuplateError,
    DeviceError,
    DtypeError,
    Inline,
    LayoutError,
    ShapeError,
    cache,
    specialize,
)

HEAD = """extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    %s
}
"""


SMALL = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"


@specialize(Inline(SMALL + HEAD % "if (i < N) out[i] = x[i] + x[i]{% if y %} + y[i]{% endif %};"))
def plus(x: Float[Array, " N"], y: Float[Array, " N"] | None = None) -> Float[Array, " N"]:
    """2 x + y."""
    return 2 * x if y is None else 2 * x + y


@specialize(Inline(HEAD % "if (i < M * N) out[i] = 2 * x[i];"), grid="cdiv(M * N, 256)", block=256)
def square(x: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
    """2 x, of two axes."""
    return 2 * x


@specialize(Inline(HEAD % "if (i < N) x[i] += 1;"), mutates="x")
def bump(x: Float32[Array, " N"]) -> None:
    """x + 1, in place."""


@specialize(Inline(HEAD % "if (i < N) out[i] = x[i];"))
def same(x: Complex64[Array, " N"]) -> Complex64[Array, " N"]:
    """x."""
    return x


@specialize(Inline(HEAD % "if (i < N) out[i] = 2 * x[i] + {{ 1 if x.aligned(16) else 0 }};"))
def lined(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """2 x, and 1 more of aligned arrays."""
    raise NotImplementedError


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], list[int]]]:
    """Counts the calls of a function that do not take the hot path, from now on."""

    def watch(function: Any) -> list[int]:
        counted: list[int] = []
        whole = function.__globals__["_cold"]

        def count(*given: Any) -> Any:
            counted.append(1)
            return whole(*given)

        monkeypatch.setitem(function.__globals__, "_cold", count)
        return counted

    yield watch


def warmed(function: Any, *arrays: Any, **more: Any) -> None:
    """Three calls."""
    for _ in range(3):
        function(*arrays, **more)


def test_warm_calls_are_right_and_take_the_hot_path(torch: Any, cold: Any) -> None:
    """Fresh and given outputs, several dtypes and sizes, in place; torch's fast words are those that are used."""
    watched = {f: cold(f) for f in (plus, bump, same)}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for n in (1, 5, 1000):
            x, y = torch.arange(n, device="cuda", dtype=dtype), torch.ones(n, device="cuda", dtype=dtype)
            out = torch.full_like(x, float("nan"))
            for _ in range(3):
                made = plus(x, y)
                assert type(made) is torch.Tensor and made.dtype == dtype and made.device == x.device
                assert torch.equal(made, 2 * x + y) and torch.equal(plus(x), 2 * x)
                assert plus(x, y, out=out) is out and torch.equal(out, 2 * x + y)
    assert len(watched[plus]) == 4 * 3 * 2  # of each kind the first
    x, z = torch.zeros(100, device="cuda"), torch.randn(10, device="cuda", dtype=torch.complex64)
    for _ in range(5):
        bump(x)
        assert torch.equal(same(z), z)
    assert torch.equal(x, torch.full_like(x, 5)) and len(watched[bump]) == len(watched[same]) == 1
    names = plus.__globals__
    assert names["_empty_tensor"] is torch._C._dynamo.guards._empty_strided_cuda
    assert names["_increment"] is torch._C._increment_version


def grown(torch: Any, x: Any) -> dict[str, tuple[Any, type[Exception]]]:
    """Tensors that stand for `x` and must not be read as if they were it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    freed = x.clone()
    freed.untyped_storage().resize_(0)
    graded = x.clone().requires_grad_()
    return {
        "gradient": (graded, ArgumentError),
        "no leaf": (graded * 1, ArgumentError),
        "parameter": (torch.nn.Parameter(x.clone()), ArgumentError),
        "negative": (torch._neg_view(x.clone()), LayoutError),
        "stepped": (torch.zeros(2 * len(x), device="cuda")[::2], LayoutError),
        "broadcast": (torch.zeros(1, device="cuda").expand(len(x)), LayoutError),
        "sparse": (x.to_sparse(), LayoutError),
        "zero": (torch._efficientzerotensor(len(x), device="cuda"), ArgumentError),
        "freed": (freed, ArgumentError),
        "fake": (FakeTensorMode().from_tensor(x), ArgumentError),
        "meta": (torch.empty(len(x), device="meta"), CuplateError),
        "host": (x.cpu(), CuplateError),
        "int": (x.int(), DtypeError),
        "deep": (x[None], ShapeError),
    }


NAMES = (
    "gradient", "no leaf", "parameter", "negative", "stepped", "broadcast", "sparse", "zero", "freed", "fake", "meta",
    "host", "int", "deep",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["x", "y", "out"])
def test_other_tensors_are_refused_after_warm_calls(torch: Any, cold: Any, name: str, place: str) -> None:
    """In each place: the error of a first call, and nothing is launched."""
    arrays = {n: torch.ones(256, device="cuda") for n in ("x", "y", "out")}
    warmed(plus, **arrays)
    watched = cold(plus)
    plus(**arrays)
    assert not watched
    wrong, error = grown(torch, arrays[place])[name]
    before = {n: a.clone() for n, a in arrays.items()}
    with pytest.raises(error):
        plus(**{**arrays, place: wrong})
    assert watched
    assert all(torch.equal(a, before[n]) for n, a in arrays.items())


def test_lazy_conjugates_are_refused(torch: Any) -> None:
    """In each place."""
    z, out = (torch.randn(8, device="cuda", dtype=torch.complex64) for _ in range(2))
    warmed(same, z, out=out)
    for arrays in ((z.conj(), out), (z, out.conj())):
        with pytest.raises(LayoutError, match="lazy conjugate"):
            same(arrays[0], out=arrays[1])


def test_without_gradients_parameters_are_hot(torch: Any, cold: Any) -> None:
    """Under ``no_grad`` and ``inference_mode``, whose outputs are inference tensors; back in grad mode refused."""
    x, weight = torch.ones(64, device="cuda"), torch.nn.Parameter(torch.ones(64, device="cuda"))
    with torch.no_grad():
        warmed(plus, x, weight)
        watched = cold(plus)
        assert not plus(x, weight).requires_grad
    with torch.inference_mode():
        made = plus(x, weight)
        given = torch.empty(64, device="cuda")
        assert plus(x, weight, out=given) is given
        assert plus(x, weight, out=made) is made
    assert made.is_inference() and not watched and torch.equal(made, torch.full_like(made, 3))
    with pytest.raises(ArgumentError, match="gradient"):
        plus(x, weight)


def test_tensors_that_change_in_place_are_read_as_they_are(torch: Any, cold: Any) -> None:
    """``set_``, ``.data =``, ``resize_``, ``requires_grad_``: of the very same object, after warm calls."""
    x, out = torch.ones(256, device="cuda"), torch.empty(256, device="cuda")
    warmed(plus, x, out=out)
    watched = cold(plus)
    x.set_(torch.full((256,), 2.0, device="cuda"))
    assert torch.equal(plus(x, out=out), torch.full_like(x, 4))
    x.data = torch.full((256,), 3.0, device="cuda")
    assert torch.equal(plus(x, out=out), torch.full_like(x, 6)) and not watched
    whole = torch.arange(300.0, device="cuda")
    x.data = whole[7:263]
    assert torch.equal(plus(x), 2 * whole[7:263]) and not watched
    out.set_(x)
    with pytest.raises(LayoutError, match="shares memory"):
        plus(x, out=out)
    x.requires_grad_()
    with pytest.raises(ArgumentError, match="gradient"):
        plus(x)
    x.requires_grad_(False)
    x.data = torch.zeros(100, device="cuda")
    assert plus(x).shape == (100,)
    x.data = torch.zeros(100, device="cuda", dtype=torch.float64)
    assert plus(x).dtype == torch.float64
    table = torch.arange(36.0, device="cuda").reshape(6, 6)
    warmed(square, table)
    table.t_()
    with pytest.raises(LayoutError):
        square(table)
    table.untyped_storage().resize_(0)
    with pytest.raises(CuplateError):
        square(table)


def test_subclasses_take_the_general_way(torch: Any, cold: Any) -> None:
    """And are right there."""

    class Named(torch.Tensor):  # type: ignore[misc, name-defined, unused-ignore]
        pass

    x = torch.ones(256, device="cuda")
    warmed(plus, x)
    watched = cold(plus)
    assert torch.equal(plus(x.as_subclass(Named)).as_subclass(torch.Tensor), 2 * x) and len(watched) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of parts that it loads here
def test_transforms_and_modes_are_seen(torch: Any) -> None:
    """Wrapped tensors, duals, and plain tensors inside a transform or a mode: as a first call has it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(16, device="cuda")
    warmed(plus, x)
    refused = "memory|tangent|gradient"
    for call in (
        lambda: torch.func.vmap(plus)(torch.ones(3, 16, device="cuda")),
        lambda: torch.func.grad(lambda t: plus(t).sum())(x),
        lambda: torch.func.jvp(plus, (x,), (x,)),
        lambda: torch.func.functionalize(plus)(x),
        lambda: torch.func.grad(lambda t: (plus(x) + t).sum())(x),  # its output would be a wrapped one
    ):
        with pytest.raises(ArgumentError, match=refused):
            call()
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        with pytest.raises(ArgumentError, match="tangent"):
            plus(forward.make_dual(x, x))
        assert torch.equal(plus(x), 2 * x)
    with FakeTensorMode(), pytest.raises(ArgumentError, match="memory"):
        plus(x)
    assert torch.equal(torch.func.vmap(lambda t: t + plus(x))(torch.ones(3, 16, device="cuda"))[0], 1 + 2 * x)


def test_autograd_hears_of_what_warm_calls_write(torch: Any) -> None:
    """A saved tensor that a warm call overwrote is torch's own error in the backward pass."""
    x, out, y = (torch.ones(32, device="cuda") for _ in range(3))
    warmed(plus, x, out=out)
    warmed(bump, y)
    for saved, write in ((out, lambda: plus(x, out=out)), (y, lambda: bump(y))):
        leaf = torch.ones(32, device="cuda", requires_grad=True)
        product = (leaf * saved).sum()
        write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
    versions = x._version, plus(x)._version
    assert versions == (0, 0)


def test_alignment_and_overlap(torch: Any) -> None:
    """`x` and `x[1:]` are two kernels, warm; `out=` that shares memory with an input is refused."""
    whole = torch.arange(1001.0, device="cuda")
    for _ in range(3):
        assert torch.equal(lined(whole[:1000]), 2 * whole[:1000] + 1)
        assert torch.equal(lined(whole[1:]), 2 * whole[1:])
    warmed(plus, whole[:500], out=whole[500:1000])
    for out in (whole[:500], whole[1:501], whole[499:999]):
        with pytest.raises(LayoutError, match="shares memory"):
            plus(whole[:500], out=out)


def test_one_function_takes_both_libraries(torch: Any, cp: Any, cold: Any) -> None:
    """By turns, each hot; and both in one call, which the general path takes."""
    x, c = torch.ones(77, device="cuda"), cp.ones(77, dtype=cp.float32)
    warmed(plus, x)
    warmed(plus, c)
    watched = cold(plus)
    for _ in range(3):
        assert type(plus(x)) is torch.Tensor and type(plus(c)) is cp.ndarray
    assert not watched
    out = torch.empty(77, device="cuda")
    assert torch.equal(plus(c, out=out), 2 * x) and len(watched) == 1


def test_warm_calls_run_on_torchs_current_stream(torch: Any, cold: Any) -> None:
    """Behind a slow producer on a side stream, in order, without a sync; outputs belong to that stream."""
    x, out = torch.zeros(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")
    warmed(plus, x, out=out)
    warmed(plus, x)
    watched = cold(plus)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(300_000_000)
        x.fill_(3)
        plus(x, out=out)
        made = plus(x)
        more = made + 1
    side.synchronize()
    assert not watched
    assert bool((out == 6).all()) and bool((made == 6).all()) and bool((more == 7).all())
    assert torch.equal(plus(x), torch.full_like(x, 6))


def test_a_warm_call_is_captured_by_the_hot_path(torch: Any, cold: Any) -> None:
    """With a given and a fresh output: nothing cold, kept, replayed with changed inputs, also after a clear."""
    x, out = torch.arange(500.0, device="cuda"), torch.zeros(500, device="cuda")
    warmed(plus, x, out=out)
    watched = cold(plus)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plus(x, out=out)
        made = plus(x)
    assert not watched
    plan = max(plus.__globals__["_plans"].items(), key=lambda item: (500,) in item[0])[1]
    assert plan[1].value.kept
    cache.clear(disk=False)
    plus(torch.ones(3, device="cuda"))
    for k in (1, 2):
        x.fill_(k)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((out == 2 * k).all()) and bool((made == 2 * k).all())


def test_threads_on_their_own_streams(torch: Any) -> None:
    """Eight, warm, each with its own sizes: right results."""
    warmed(plus, torch.ones(8, device="cuda"))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(100):
                    x = torch.full((seed + i % 3 + 1,), float(i), device="cuda")
                    if not torch.equal(plus(x, x), 3 * x):
                        wrong.append((seed, i))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_warm_calls_hold_no_tensor_and_no_memory(torch: Any) -> None:
    """References and torch's memory are as before."""
    x, out = torch.ones(1000, device="cuda"), torch.empty(1000, device="cuda")
    warmed(plus, x, out=out)
    warmed(plus, x)
    counts, memory = (sys.getrefcount(x), sys.getrefcount(out)), torch.cuda.memory_allocated()
    for _ in range(100):
        plus(x, out=out)
        plus(x)
    assert (sys.getrefcount(x), sys.getrefcount(out)) == counts and torch.cuda.memory_allocated() == memory


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as above
def test_torch_compile_leaves_the_hot_path_alone(torch: Any) -> None:
    """Called from a compiled function: right, and none of the generated code is compiled."""
    from torch._dynamo.utils import counters

    x = torch.ones(40, device="cuda")
    warmed(plus, x)
    torch._dynamo.reset()
    counters.clear()
    call = torch.compile(lambda t: plus(t + 1) * 2, backend="eager")
    for _ in range(4):
        assert torch.equal(call(x), torch.full_like(x, 8))
    assert counters["frames"]["total"] <= 2  # ours would be more


def test_listeners_hear_of_tensors_calls(torch: Any) -> None:
    """While somebody listens, warm calls tell of a hit and a launch."""
    x = torch.ones(40, device="cuda")
    warmed(plus, x)
    heard: list[str] = []
    with cuplate.subscribe(lambda event: heard.append(event.kind)):
        plus(x)
    plus(x)
    assert heard == ["hit", "launch"]


def test_arrays_of_the_host_among_warm_tensors(torch: Any) -> None:
    """A tensor of the host among those of the GPU."""
    x = torch.ones(40, device="cuda")
    warmed(plus, x, x.clone())
    with pytest.raises(DeviceError):
        plus(x, torch.ones(40))
