"""B35: every kind of view, for each argument in turn and for ``out=``, in host memory; `tests/gpu` has the GPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, Inline, LayoutError, specialize
from tests import layouts
from tests.layouts import KERNELS, KINDS, Exported, Library, Torch


def torch_library() -> Library:
    """torch on the host."""
    return Torch(pytest.importorskip("torch"), "cpu")


def exported() -> Library:
    """What is known by DLPack alone, in host memory."""
    return Exported(Library(), "__dlpack__")


LIBRARIES = {"numpy": Library, "torch": torch_library}


@pytest.mark.parametrize("place", ["a", "b", "out"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("library", [*LIBRARIES, "dlpack"])
def test_a_view_is_read_as_it_lies_or_refused_by_name_b35(library: str, kernel: str, kind: str, place: str) -> None:
    """B35: right, or a `LayoutError` that names argument and layout; nothing around a written view is touched."""
    own = exported() if library == "dlpack" else LIBRARIES[library]()
    if layouts.view(own, kind, own.put(layouts.host_base(kind, 0))) is None:
        pytest.skip(f"{library} has no such view")
    layouts.check_place(own, kernel, kind, place)


def test_the_matrix_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that computes something else is caught, and so is one that is refused where it should not be."""

    @specialize(layouts.body(*["{x}[i * N + j]".replace("{x}", x) for x in ("out", "a", "2 * b")]), **layouts.GRID)
    def other(a: Float32[Array, "M N"], b: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
        """a - 4 b."""
        raise NotImplementedError

    monkeypatch.setitem(KERNELS, "other", other)
    monkeypatch.setitem(KERNELS, "strided", layouts.packed)
    with pytest.raises(AssertionError, match="Mismatched"):
        layouts.check_place(Library(), "other", "packed", "a")
    with pytest.raises(LayoutError):
        layouts.check_place(Library(), "strided", "transposed", "a")


VECTOR = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
{% if x.aligned(16) and out.aligned(16) %}
    if (4 * i + 3 < N) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];
        reinterpret_cast<float4*>(out)[i] = make_float4(v.x + 1, v.y + 1, v.z + 1, v.w + 1);
    } else if (4 * i < N)
        for ({{ index_t }} j = 4 * i; j < N; ++j) out[j] = x[j] + 1;
{% else %}
    if (i < N) out[i] = x[i] + 1;
{% endif %}
}
"""


@specialize(Inline(VECTOR))
def vectorised(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """Four elements at once where the addresses allow it."""
    return x + 1


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_offset_never_shares_a_vectorised_kernel_b35(library: str) -> None:
    """B35: `x` and ``x[1:]`` are two specializations where a template asks; in either order, also for ``out=``."""
    own = LIBRARIES[library]()
    host = np.arange(41, dtype=np.float32)
    memory = aligned_memory(own, host)
    out = aligned_memory(own, np.zeros_like(host))
    for _ in range(2):
        for start, to in [(0, 0), (1, 0), (0, 1), (1, 1), (4, 0), (0, 4), (2, 2)]:
            x, place = memory[start : start + 32], out[to : to + 32]
            np.testing.assert_array_equal(own.get(vectorised(x)), host[start : start + 32] + 1)
            vectorised(x, out=place)
            np.testing.assert_array_equal(own.get(place), host[start : start + 32] + 1)
    assert vectorised.cache_info().variants == 2


def aligned_memory(library: Library, host: Any) -> Any:
    """A copy at a multiple of 64 bytes: the libraries promise 16 only."""
    room = library.put(np.zeros(host.size + 16, host.dtype))
    address = room.data_ptr() if hasattr(room, "data_ptr") else room.ctypes.data
    start = -address % 64 // host.itemsize
    room[start : start + host.size] = library.put(host)
    return room[start : start + host.size]


OVERLAPS = {
    "the array itself": (slice(0, 35), slice(0, 35)),
    "one element ahead": (slice(0, 35), slice(1, 36)),
    "one element behind": (slice(1, 36), slice(0, 35)),
    "the last one": (slice(0, 35), slice(34, 69)),
}


@pytest.mark.parametrize("place", ["a", "b"])
@pytest.mark.parametrize("how", OVERLAPS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_output_that_shares_memory_is_found_b35(library: str, how: str, place: str) -> None:
    """B35: with either input, on cold and warm calls; what only touches is let through."""
    own = LIBRARIES[library]()
    memory = own.put(np.zeros(70, np.float32))
    other = own.put(np.ones((5, 7), np.float32))
    inside, outside = (memory[part].reshape(5, 7) for part in OVERLAPS[how])
    beside = memory[35:70].reshape(5, 7)
    for _ in range(2):
        given = {"a": other, "b": other, place: memory[:35].reshape(5, 7)}
        layouts.packed(given["a"], given["b"], out=beside)
        given = {"a": other, "b": other, place: inside}
        with pytest.raises(LayoutError, match=f"'out' is written by the kernel and shares memory with '{place}'"):
            layouts.packed(given["a"], given["b"], out=outside)


def test_an_address_between_two_elements_is_refused() -> None:
    """Of floats in bytes, and of complex numbers in floats, which NumPy calls aligned; cold and warm."""

    @specialize(Inline(VECTOR.replace("{% if x.aligned(16) and out.aligned(16) %}", "{% if false %}")))
    def plus_one(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """x + 1."""
        raise NotImplementedError

    between = np.zeros(33, np.uint8)[1:].view(np.float32)
    right = np.zeros(8, np.float32)
    for _ in range(3):
        assert (plus_one(right) == 1).all()
        with pytest.raises(LayoutError, match="array 'x' starts at an address that is no multiple"):
            plus_one(between)
        with pytest.raises(LayoutError, match="array 'out' starts at an address that is no multiple"):
            plus_one(right, out=between)
