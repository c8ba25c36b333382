"""B35 on the GPU: every kind of view, for each argument in turn and for ``out=``, of every library that is here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jaxtyping import Complex64

from cuplate import ArgumentError, Array, Inline, LayoutError, specialize
from tests import layouts
from tests.layouts import KERNELS, KINDS, Exported, Library, Torch


class Cupy(Library):
    """CuPy."""

    name = "cupy"

    def __init__(self) -> None:
        self.cupy = pytest.importorskip("cupy")

    def put(self, host: Any) -> Any:
        """On the current GPU."""
        return self.cupy.asarray(host)

    def get(self, array: Any) -> Any:
        """Copied to the host."""
        return self.cupy.asnumpy(array)

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A view with strides of zero."""
        return self.cupy.broadcast_to(array, shape)

    def readonly(self, array: Any) -> Any:
        """There is no such array."""
        return None


class Numba(Exported):
    """Numba's device arrays over CuPy's memory."""

    def __init__(self) -> None:
        super().__init__(Cupy(), "Numba")
        self.cuda = pytest.importorskip("numba.cuda", exc_type=ImportError)

    def wrap(self, view: Any) -> Any:
        """A device array."""
        return self.cuda.as_cuda_array(view)


def torch_cuda() -> Library:
    """torch on the GPU."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return Torch(torch, "cuda")


LIBRARIES: dict[str, Any] = {
    "cupy": Cupy,
    "torch": torch_cuda,
    "dlpack": lambda: Exported(Cupy(), "__dlpack__"),
    "interface": lambda: Exported(Cupy(), "__cuda_array_interface__"),
    "numba": Numba,
}


@pytest.mark.parametrize("place", ["a", "b", "out"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_view_is_read_as_it_lies_or_refused_by_name_b35(library: str, kernel: str, kind: str, place: str) -> None:
    """B35: right, or a `LayoutError` that names argument and layout; nothing around a written view is touched."""
    own = LIBRARIES[library]()
    if layouts.view(own, kind, own.put(layouts.host_base(kind, 0))) is None:
        pytest.skip(f"{library} has no such view")
    layouts.check_place(own, kernel, kind, place)


def test_the_launch_waits_for_an_exported_array(cp: Any, torch: Any) -> None:
    """B41: an exporter's slow producer on a stream that we do not know; the export orders ours behind it."""
    side = torch.cuda.Stream()
    host = np.arange(35, dtype=np.float32).reshape(5, 7)
    b, out = cp.ones((5, 7), cp.float32), cp.zeros((5, 7), cp.float32)
    a, source = torch.zeros(5, 7, device="cuda"), torch.from_numpy(host).cuda()
    layouts.packed(layouts.ByDlpack(a), b, out=out)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)
        a.copy_(source)
        exported = layouts.ByDlpack(a)
        layouts.packed(exported, b, out=out)
    assert not side.query(), "the producer had ended before the call did: the test shows nothing"
    np.testing.assert_array_equal(cp.asnumpy(out), host - 2)
    assert 1 in exported.streams, "the legacy default stream, by DLPack's name"


def test_an_export_is_held_until_its_kernel_has_run(cp: Any) -> None:
    """Its exporter may reuse the memory once nobody holds it; afterwards it is let go, at a later call."""
    from cuplate.backend.cuda import views

    slow = cp.cuda.Stream(non_blocking=True)
    b, out = cp.ones((5, 7), cp.float32), cp.zeros((5, 7), cp.float32)
    cp.cuda.runtime.deviceSynchronize()
    with slow:
        busy = cp.ones((6000, 6000), cp.float32)
        for _ in range(6):
            busy = busy @ busy
        layouts.packed(layouts.ByDlpack(cp.zeros((5, 7), cp.float32)), b, out=out)
        assert not slow.done and len(views._held) >= 1
    cp.cuda.runtime.deviceSynchronize()
    layouts.packed(layouts.ByDlpack(b), cp.ones((5, 7), cp.float32), out=out)
    cp.cuda.runtime.deviceSynchronize()
    assert len(views._held) <= 1


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = make_float2(x[i].x, -x[i].y);
}
""")
)
def conjugate(x: Complex64[Array, " N"]) -> Complex64[Array, " N"]:
    """The complex conjugate."""
    raise NotImplementedError


def test_complex_numbers_between_two_floats_are_refused(cp: Any) -> None:
    """A pair is loaded at once, so its address must be a multiple of 8 bytes; also when the hot path has its plan."""
    floats = cp.arange(34, dtype=cp.float32)
    right, between = floats[:32].view(cp.complex64), floats[1:33].view(cp.complex64)
    for _ in range(3):
        assert bool((conjugate(right) == right.conj()).all())
        out = cp.zeros(16, cp.complex64)
        assert conjugate(right, out=out) is out
        with pytest.raises(LayoutError, match="array 'x' starts at an address"):
            conjugate(between)
        with pytest.raises(LayoutError, match="array 'out' starts at an address"):
            conjugate(cp.zeros(16, cp.complex64), out=between)


LAZY: dict[str, Any] = {
    "conjugate": (lambda t: t.cfloat().conj(), LayoutError, "resolve_conj"),
    "negative": (lambda t: t.cfloat().conj().imag, LayoutError, "resolve_neg"),
    "grad": (lambda t: t.clone().requires_grad_(), ArgumentError, "detach"),
    "sparse": (lambda t: t.to_sparse(), LayoutError, "to_dense"),
}


@pytest.mark.parametrize("what", LAZY)
def test_what_memory_does_not_hold_is_refused(torch: Any, what: str) -> None:
    """Lazy views, gradients, sparse tensors: a TypeError that names the remedy, cold and after right calls."""
    spoil, error, remedy = LAZY[what]
    t = torch.ones(5, 7, device="cuda")
    for _ in range(2):
        layouts.packed(t, t)
        with pytest.raises(error, match=remedy) as caught:
            layouts.packed(spoil(t), t)
        assert isinstance(caught.value, TypeError)


def test_autograd_hears_of_a_tensor_that_a_kernel_wrote(torch: Any) -> None:
    """A saved tensor that ``out=`` overwrote is an error in the backward pass, not a wrong gradient."""
    x = torch.ones(5, 7, device="cuda", requires_grad=True)
    saved = x.exp()
    with torch.no_grad():
        layouts.packed(torch.ones_like(x), torch.ones_like(x), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
