"""Views of every kind, of every library that is here, and kernels that read their layouts: for tests on any backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32

from cuplate import Array, Inline, specialize

M, N = 5, 7
SHAPE = (M, N)
UNTOUCHED = 77.0

BODY = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.y * {{ block.y }} + threadIdx.y;
    const {{ index_t }} j = ({{ index_t }})blockIdx.x * {{ block.x }} + threadIdx.x;
    if (i < M && j < N) OUT = A - 2 * B;
}
"""


def body(out: str, a: str, b: str) -> Inline:
    """A kernel that computes ``a - 2 * b``, its three elements indexed as the texts say."""
    return Inline(BODY.replace("OUT", out).replace("A - 2 * B", f"{a} - 2 * {b}"))


def indexed(index: str) -> Inline:
    """The kernel with every array indexed by one text, in which ``@`` is the array's name."""
    return body(*(f"{name}[{index.replace('@', name)}]" for name in ("out", "a", "b")))


GRID: dict[str, Any] = {"tiles": {"N": 8, "M": 8}, "block": (8, 8)}
BY_ORDER = "{% if @.order == 'F' %}i + j * M{% else %}i * N + j{% endif %}"


@specialize(indexed("i * N + j"), **GRID)
def packed(a: Float32[Array, "M N"], b: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
    """Reads no fact of a layout."""
    return a - 2 * b


@specialize(indexed(BY_ORDER), **GRID)
def ordered(a: Float32[Array, "M N"], b: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
    """Reads ``order``."""
    return a - 2 * b


@specialize(indexed("i * {{ @.stride(0) }} + j * {{ @.stride(1) }}"), **GRID)
def strided(a: Float32[Array, "M N"], b: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
    """Reads ``stride(i)``."""
    return a - 2 * b


KERNELS = {f.__name__: f for f in (packed, ordered, strided)}


@dataclass(frozen=True)
class Kind:
    """One kind of view.

    Attributes
    ----------
    base : tuple of int
        Shape of the memory that it is made in.
    of : callable
        The view of an array of that shape; the second argument is the library.
    negative : bool
        Whether it has negative strides, which torch has not.
    """

    base: tuple[int, ...]
    of: Callable[[Any, Any], Any]
    negative: bool = False


KINDS = {
    "packed": Kind(SHAPE, lambda x, _: x),
    "packed at an offset": Kind((M * N + 3,), lambda x, _: x[1 : M * N + 1].reshape(SHAPE)),
    "transposed": Kind((N, M), lambda x, _: x.T),
    "sliced by steps": Kind((2 * M, 3 * N), lambda x, _: x[::2, ::3]),
    "every second row": Kind((2 * M, N), lambda x, _: x[::2]),
    "columns by steps": Kind((M, 2 * N), lambda x, _: x[:, ::2]),
    "a window": Kind((M + 2, N + 3), lambda x, _: x[1 : M + 1, 2 : N + 2]),
    "a plane of three axes": Kind((M, 3, N), lambda x, _: x[:, 1]),
    "transposed and sliced": Kind((2 * N, M + 1), lambda x, _: x[::2, 1:].T),
    "rows reversed": Kind(SHAPE, lambda x, _: x[::-1], negative=True),
    "columns reversed": Kind(SHAPE, lambda x, _: x[:, ::-1], negative=True),
    "both reversed": Kind(SHAPE, lambda x, _: x[::-1, ::-1], negative=True),
    "rows broadcast": Kind((N,), lambda x, library: library.broadcast(x, SHAPE)),
    "columns broadcast": Kind((M, 1), lambda x, library: library.broadcast(x, SHAPE)),
    "one value broadcast": Kind((1, 1), lambda x, library: library.broadcast(x, SHAPE)),
    "read-only": Kind(SHAPE, lambda x, library: library.readonly(x)),
}


class Library:
    """NumPy; the others differ in what they override.

    Attributes
    ----------
    name : str
    negative : bool
        Whether its arrays may have negative strides.
    allocates : bool
        Whether outputs can be of it without ``out=``.
    """

    name = "numpy"
    negative = True
    allocates = True

    def put(self, host: Any) -> Any:
        """An array of its own with the values of a NumPy array."""
        return host.copy()

    def get(self, array: Any) -> Any:
        """The values as a NumPy array."""
        return np.array(array)

    def wrap(self, view: Any) -> Any:
        """A view of an array of `put`, as it is given to a call."""
        return view

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A view in which elements share memory; writeable where the library allows it."""
        view = np.lib.stride_tricks.as_strided(
            array,
            shape,
            [0 if n == 1 else s for n, s in zip(_filled(array.shape, shape), _strides(array), strict=True)],
        )
        return view

    def readonly(self, array: Any) -> Any:
        """A view that may not be written; None where there is no such thing."""
        view = array.view()
        view.flags.writeable = False
        return view


def _filled(shape: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(to) - len(shape)) + tuple(shape)


def _strides(array: Any) -> tuple[int, ...]:
    return (0,) * (2 - array.ndim) + tuple(array.strides)


class Torch(Library):
    """torch, in host memory or on the GPU."""

    negative = False

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device, self.name = torch, device, f"torch {device}"

    def put(self, host: Any) -> Any:
        """A tensor."""
        return self.torch.from_numpy(host.copy()).to(self.device)

    def get(self, array: Any) -> Any:
        """Copied to the host."""
        return array.detach().cpu().numpy().copy()

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Expanded."""
        return array.expand(shape)

    def readonly(self, array: Any) -> Any:
        """There is no such tensor."""
        return None


class Exported(Library):
    """What only exports its memory: an array of another library, seen through one protocol.

    Parameters
    ----------
    inner : Library
        Whose arrays are exported.
    protocol : str
        ``"__dlpack__"`` or ``"__cuda_array_interface__"``.
    """

    allocates = False

    def __init__(self, inner: Library, protocol: str) -> None:
        self.inner, self.protocol, self.name = inner, protocol, f"{inner.name} by {protocol}"
        self.negative = inner.negative

    def put(self, host: Any) -> Any:
        """The inner library's."""
        return self.inner.put(host)

    def get(self, array: Any) -> Any:
        """The inner library's."""
        return self.inner.get(array)

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The inner library's."""
        return self.inner.broadcast(array, shape)

    def readonly(self, array: Any) -> Any:
        """The inner library's; or told by the interface, which knows of it."""
        made = self.inner.readonly(array)
        return ReadOnly(array) if made is None and self.protocol == "__cuda_array_interface__" else made

    def wrap(self, view: Any) -> Any:
        """An object that has nothing but the protocol."""
        return (ByDlpack if self.protocol == "__dlpack__" else ByInterface)(view)


class ByDlpack:
    """Exports by DLPack alone; notes which streams it was asked to be ready on."""

    def __init__(self, array: Any) -> None:
        self.array, self.streams = array, []

    def __dlpack__(self, *, stream: Any = None, **rest: Any) -> Any:
        self.streams.append(stream)
        on_gpu = self.__dlpack_device__()[0] != 1
        return self.array.__dlpack__(**({"stream": stream} if on_gpu else {}), **rest)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class ByInterface:
    """Exports by ``__cuda_array_interface__`` alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__cuda_array_interface__


class ReadOnly:
    """An array whose interface says that it may not be written."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        facts = dict(self.array.__cuda_array_interface__)
        return {**facts, "data": (facts["data"][0], True)}


def view(library: Library, kind: str, base: Any) -> Any:
    """A view of `kind`, or None where the library has none."""
    made = KINDS[kind]
    return None if made.negative and not library.negative else made.of(base, library)


def outcome(kernel: str, kind: str, *, written: bool) -> str | None:
    """What makes a call wrong: None if nothing does, else words of its message."""
    if written and kind == "read-only":
        return "is read-only"
    if written and "broadcast" in kind:
        return "broadcast view"
    host = view(Library(), kind, np.zeros(KINDS[kind].base, np.float32))
    packed_one = host.flags.c_contiguous
    by_order = kernel == "ordered" and host.flags.f_contiguous
    return None if packed_one or by_order or kernel == "strided" else "is not row-major without gaps"


def host_base(kind: str, seed: int) -> Any:
    """Values for the memory of a view: small integers, so that every sum is exact."""
    return np.random.default_rng(seed).integers(-9, 10, KINDS[kind].base).astype(np.float32)


def host_view(kind: str, base: Any) -> Any:
    """The same view of NumPy's."""
    return view(Library(), kind, base)


def check_place(library: Library, kernel: str, kind: str, place: str) -> None:
    """One kind of view for one argument, the others packed: the right result, or an error that names it; three times.

    Parameters
    ----------
    library : Library
    kernel, kind : str
        Keys of `KERNELS` and `KINDS`.
    place : str
        ``"a"``, ``"b"`` or ``"out"``.
    """
    f = KERNELS[kernel]
    bases = {name: host_base(kind if name == place else "packed", seed) for seed, name in enumerate(("a", "b", "out"))}
    bases["out"][...] = UNTOUCHED
    own = {name: library.put(base) for name, base in bases.items()}
    views = {name: view(library, kind, x) if name == place else x for name, x in own.items()}
    assert views[place] is not None
    hosts = {name: host_view(kind, x) if name == place else x for name, x in bases.items()}
    right = hosts["a"] - 2 * hosts["b"]
    wrong = outcome(kernel, kind, written=place == "out")
    given = {name: library.wrap(x) for name, x in views.items()}
    if wrong is None:
        hosts["out"][...] = right  # and so the expected memory around a view
    for _ in range(3):  # cold, warm, and the very same objects
        if wrong is not None:
            _refused(f, given, place, wrong)
        else:
            assert f(given["a"], given["b"], out=given["out"]) is given["out"]
            np.testing.assert_array_equal(library.get(own["out"]), bases["out"])
            if library.allocates and place != "out":
                np.testing.assert_array_equal(library.get(f(given["a"], given["b"])), right)
    for name in ("a", "b") if wrong is None else ("a", "b", "out"):
        np.testing.assert_array_equal(library.get(own[name]), bases[name])


def _refused(f: Any, given: dict[str, Any], place: str, says: str) -> None:
    import pytest

    from cuplate import LayoutError

    with pytest.raises(LayoutError) as caught:
        f(given["a"], given["b"], out=given["out"])
    text = str(caught.value)
    assert f"array '{place}'" in text and says in text
    assert "strides" in text or "read-only" in text
