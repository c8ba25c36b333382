"""The libraries that own arrays: how each describes one, allocates one, and which stream is current for it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cuplate.arguments import ArraySpec, Described, packed_strides, product
from cuplate.dtypes import DTYPES
from cuplate.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from cuplate.parameters import dtype_name, nearest_dtype
from cuplate.plan import FRESH_ALIGNMENT

__all__ = [
    "HOST",
    "LEGACY_STREAM",
    "Owner",
    "find_owner",
    "numpy_address",
    "owner_named",
    "stream_pointer",
    "untraced",
]

HOST = -1
"""In place of a GPU's number: the host."""

LEGACY_STREAM = 1
"""The driver's other name for stream 0."""


class Owner(Protocol):
    """One array library.

    A call asks the owner of its first array for everything that is the library's own: outputs come from its allocator
    and are of its type, and the call runs on its current stream.
    """

    name: str
    has_current_stream: bool

    def describe(self, name: str, array: Any, function: str) -> Described:
        """Dtype, shape, strides, pointer and device of `array`.

        Raises
        ------
        DtypeError, LayoutError, ArgumentError
            The array is of a dtype that a kernel cannot name, or its state forbids reading its memory.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """A fresh array, allocated in the order of `stream` (a pointer; None: the library's current one).

        `device` is `HOST` for host memory.
        """
        ...

    def current_stream(self, device: int) -> int:
        """Pointer of the stream that is current for this thread and `device`; 0 for the legacy default stream."""
        ...

    def record(self, array: Any, stream: Any) -> None:
        """Tell the library that a stream which is not its current one uses the memory of an array.

        Its allocator must not give the memory to others before that stream is done, though the array may be gone.
        `stream` is what the caller gave.
        """
        ...

    def wrote(self, array: Any) -> None:
        """Tell the library that a kernel writes an array of the caller's."""
        ...


def find_owner(name: str, value: Any, function: str) -> Owner:
    """The owner of `value`.

    Raises
    ------
    ArgumentError
        `value` is no array.
    """
    kind = type(value)
    owner = _BY_TYPE.get(kind)
    if owner is None:
        owner = _find(kind, value)
        if owner is None:
            raise ArgumentError(
                f"argument {name!r} is no array.",
                function=function,
                given=f"{value!r:.60} ({kind.__name__})",
                allowed="a CuPy array, a torch tensor, a NumPy array (no GPU), or what has __dlpack__ or "
                "__cuda_array_interface__",
            )
        _BY_TYPE[kind] = owner
    return owner


def owner_named(name: str) -> Owner:
    """The owner of a library's arrays, of which none is at hand.

    Raises
    ------
    ArgumentError
        No arrays can be made in that library.
    """
    for (library, _), owner in _OWNERS.items():
        if library == name and owner is not _Spec:
            made: Owner = owner()
            return made
    raise ArgumentError("arrays of this kind cannot be made.", given=name, allowed="cupy, torch, numpy")


def _find(kind: type, value: Any) -> Owner | None:
    for base in kind.__mro__:
        owner = _OWNERS.get((base.__module__.partition(".")[0], base.__name__))
        if owner is not None:
            made: Owner = owner()
            return made
    return _Exchange() if hasattr(value, "__dlpack__") or _interface(value) is not None else None


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as torch.compile leaves it alone; asked for where torch's tracer is there.

    A compiled function that calls one of ours leaves its graph to do so. Without this, torch would go on to compile
    everything that runs meanwhile, function by function.
    """
    left: Callable[..., Any] = sys.modules["torch"].compiler.disable(function)
    return left


def stream_pointer(stream: Any, function: str) -> int:
    """The pointer behind a stream object of cuda.core, CuPy, torch or any ``__cuda_stream__``.

    Raises
    ------
    ArgumentError
        It is no stream.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        versioned: Any = protocol() if callable(protocol) else protocol
        return int(versioned[1])
    for attribute in ("ptr", "cuda_stream"):
        pointer = getattr(stream, attribute, None)
        if isinstance(pointer, int):
            return pointer
    raise ArgumentError(
        "stream= is no stream.",
        function=function,
        given=f"{stream!r:.60} ({type(stream).__name__})",
        allowed="a stream of CuPy, torch or cuda.core, or an object with __cuda_stream__",
    )


def element_strides(name: str, strides: tuple[int, ...], itemsize: int, function: str) -> tuple[int, ...]:
    """Strides in bytes as strides in elements."""
    if any(s % itemsize for s in strides):
        raise LayoutError(
            f"array {name!r} has strides that are no multiple of its element size.",
            function=function,
            given=f"strides {list(strides)} bytes, elements of {itemsize} bytes",
        )
    return tuple(s // itemsize for s in strides)


def numpy_address(array: Any) -> int:
    """Address of the first element of a NumPy array that is packed and not empty."""
    try:  # the buffer's, where there is one: in a quarter of the time
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError, BufferError):  # read-only, or of a dtype that only NumPy knows
        return int(array.__array_interface__["data"][0])


@functools.cache
def _named(dtype: Any) -> str:
    """NumPy's name of a dtype; with its byte order where that is not the machine's. (NumPy makes it anew each time.)"""
    return str(dtype.name if dtype.isnative else dtype.str)


def _known(name: str, dtype: str, function: str) -> str:
    if dtype not in DTYPES:
        raise _unknown(name, dtype, function)
    return dtype


def _unknown(name: str, dtype: object, function: str, *, near: str | None = None) -> DtypeError:
    summary = f"array {name!r} is {dtype}, which a kernel cannot name."
    return DtypeError(summary, function=function, allowed=", ".join(DTYPES), try_=near)


def _sizes(name: str, values: Any, spec: ArraySpec, function: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(n) for n in values)
    except TypeError:
        raise ShapeError(
            f"array {name!r}: shape and strides are tuples of integers.",
            function=function,
            given=f"{spec}",
            try_='ArraySpec((64, 64), "float32")',
        ) from None


@dataclass(frozen=True, slots=True)
class _Pointer:
    """A stream pointer as what CuPy takes streams from."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


class _Cupy:
    name = "cupy"
    has_current_stream = True

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.dtypes: dict[str, Any] = {}

    def describe(self, name: str, array: Any, function: str) -> Described:
        dtype = _known(name, _named(array.dtype), function)
        strides = element_strides(name, array.strides, array.dtype.itemsize, function)
        return Described(name, array.data.ptr, dtype, array.shape, strides, ("cuda", array.data.device_id))

    def dtype(self, name: str) -> Any:
        """CuPy's dtype object."""
        if name not in self.dtypes:
            self.dtypes[name] = _numpy_dtype(name)
        return self.dtypes[name]

    def is_plain(self, array: Any) -> bool:
        """Whether generated code may ask this array for what it depends on."""
        return hasattr(array, "_c_contiguous")

    def generated(self) -> dict[str, Any]:
        """What generated code calls, by its names there."""
        cuda = self.cupy.cuda
        return {
            "_empty": self.maker(),
            "_current_stream": cuda.get_current_stream,
            "_is_capturing": cuda.runtime.streamIsCapturing,
            "_current_device": cuda.runtime.getDevice,
        }

    def maker(self) -> Callable[[tuple[int, ...], Any], Any]:
        """What makes an uninitialised array from shape and dtype object on the current device and stream.

        ``cupy.ndarray`` itself, or what stands below its layer for subclasses, which takes a third of the time of a
        small allocation. That is private to CuPy, so it is tried here, on an empty array that touches no device.
        """
        ndarray, dtype = self.cupy.ndarray, self.dtype("float32")
        new = ndarray.__mro__[1].__new__

        def make(shape: tuple[int, ...], dtype: Any) -> Any:
            array = new(ndarray)
            array._init(shape, dtype)
            return array

        try:
            tried = make((0, 3), dtype)
            same = type(tried) is ndarray and tried.shape == (0, 3) and tried.dtype is dtype and tried._c_contiguous
        except Exception:
            same = False
        return make if same else ndarray

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        with self.cupy.cuda.Device(device), self._on(stream, device):
            return self.cupy.ndarray(shape, self.dtype(dtype))

    @contextlib.contextmanager
    def _on(self, stream: int | None, device: int) -> Iterator[None]:
        if stream is None:
            yield
        else:
            external = getattr(self.cupy.cuda.Stream, "from_external", None)
            with external(_Pointer(stream)) if external else self.cupy.cuda.ExternalStream(stream, device):
                yield

    def current_stream(self, device: int) -> int:
        return int(self.cupy.cuda.get_current_stream(device).ptr)

    def record(self, array: Any, stream: Any) -> None:
        """CuPy has no such notion: its pool takes memory for free once the array is gone."""

    def wrote(self, array: Any) -> None:
        pass


class _Torch:
    name = "torch"
    has_current_stream = True

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def describe(self, name: str, array: Any, function: str) -> Described:
        if self._traced():
            raise ArgumentError(
                "torch records what it calls, and would record no launch: its trace reads what nothing wrote.",
                function=function,
                try_=f'op = {function}.torch_op("library::{function}"), and a call of that',
            )
        if array.is_nested or array.layout is not self.torch.strided:
            raise LayoutError(
                f"tensor {name!r} is not dense.",
                function=function,
                given="a nested tensor" if array.is_nested else str(array.layout),
                allowed="torch.strided",
                try_=f"{name}.to_padded_tensor(0)" if array.is_nested else f"{name}.to_dense()",
            )
        if array.is_conj() or array.is_neg():
            raise LayoutError(
                f"tensor {name!r} is a lazy conjugate or negative view: its memory holds other values.",
                function=function,
                try_=f"{name}.resolve_conj().resolve_neg()",
            )
        if array.requires_grad and self.torch.is_grad_enabled():
            raise ArgumentError(
                f"tensor {name!r} requires a gradient, which a kernel does not compute.",
                function=function,
                try_=f"{name}.detach(), or torch.no_grad()",
            )
        unpack_dual: Any = self.torch.autograd.forward_ad.unpack_dual
        if unpack_dual(array).tangent is not None:
            raise ArgumentError(
                f"tensor {name!r} carries a forward-mode tangent, which a kernel does not compute.",
                function=function,
                try_=f"torch.autograd.forward_ad.unpack_dual({name}).primal",
            )
        dtype = _known(name, str(array.dtype).removeprefix("torch."), function)
        device = ("cuda", array.get_device()) if array.is_cuda else (array.device.type, 0)
        pointer = self._pointer(name, array, function)
        return Described(name, pointer, dtype, tuple(array.shape), tuple(array.stride()), device)

    def _traced(self) -> bool:
        """Whether torch.jit.trace or make_fx records this thread's calls; not within an operator, which is recorded."""
        torch = self.torch
        inner: Any = torch._C
        if getattr(inner, "_get_tracing_state", lambda: None)():
            return True
        if not getattr(inner, "_len_torch_dispatch_stack", lambda: 0)():
            return False
        modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        return any(type(mode).__name__ == "ProxyTorchDispatchMode" for mode in modes)

    def _pointer(self, name: str, array: Any, function: str) -> int:
        reason: Exception | None = None
        try:
            pointer = int(array.data_ptr())
        except (RuntimeError, UserWarning) as error:  # inside torch.func; a fake tensor, which older versions warn of
            pointer, reason = 0, error
        if not pointer and (reason or (array.numel() and array.device.type != "meta")):  # layout.py refuses meta
            raise ArgumentError(
                f"tensor {name!r} has no memory that a kernel could read.",
                function=function,
                given=type(array).__name__,
                try_="real tensors, outside torch.func and tracing",
            ) from reason
        return pointer

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        torch = self.torch
        if device == HOST:
            kind = getattr(torch, dtype)
            # By way of NumPy, so that the tensor's storage starts where the tensor does, as torch's own tensors' do.
            room = _Numpy().empty((product(shape) * kind.itemsize,), "uint8", HOST, None)
            return torch.from_numpy(room).view(kind).reshape(shape)
        if stream is None:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=f"cuda:{device}")
        with torch.cuda.stream(self._stream(stream, device)):
            return torch.empty(shape, dtype=getattr(torch, dtype), device=f"cuda:{device}")

    def current_stream(self, device: int) -> int:
        return int(self.torch._C._cuda_getCurrentRawStream(device))

    def record(self, array: Any, stream: Any) -> None:
        # Streams of torch's own live for good. Of any other one the allocator would record an event when the tensor
        # goes, which is a crash if that stream has gone before; its id is its pointer, which is even.
        if isinstance(stream, self.torch.cuda.Stream) and (stream.stream_id % 2 or not stream.stream_id):
            array.record_stream(stream)

    def _stream(self, stream: int, device: int) -> Any:
        """torch's stream for a pointer."""
        return self.torch.cuda.ExternalStream(0 if stream == LEGACY_STREAM else stream, device=device)

    def wrote(self, array: Any) -> None:
        # Else a backward pass that has saved the tensor would go on with what the kernel wrote, without a word.
        if not array.is_inference():
            self.torch.autograd.graph.increment_version(array)

    def is_plain(self, array: Any) -> bool:
        """Whether generated code may ask this tensor for what it depends on."""
        return type(array) in self.plain_types

    @property
    def plain_types(self) -> frozenset[type]:
        """Tensors that are nothing but tensors: any other class may have words of its own for all that is asked."""
        return frozenset({self.torch.Tensor, self.torch.nn.Parameter})

    def dtype(self, name: str) -> Any:
        """torch's dtype object."""
        return getattr(self.torch, name)

    def generated(self) -> dict[str, Any] | None:
        """What generated code calls, by its names there; None where this torch lacks one, so that no call is hot.

        torch has no public words for most of it in a time that counts. What is private here is there in 2.4 to 2.13.
        """
        torch = self.torch
        inner: Any = torch._C
        try:
            names = {
                "_tensors": self.plain_types,
                "_forward": torch.autograd.forward_ad,
                "_grads": torch.is_grad_enabled,
                "_modes": inner._len_torch_dispatch_stack,
                "_trace": inner._get_tracing_state,
                "_transform": inner._functorch.maybe_current_level,
                "_raw_stream": inner._cuda_getCurrentRawStream,
                "_tensor_captured": torch.cuda.is_current_stream_capturing,
                "_tensor_device": inner._cuda_getDevice,
                "_increment": self._incrementer(),
                "_empty_tensor": self.maker(),
                "_untraced": _untraced_code,
            }
        except AttributeError:
            return None
        return names if hasattr(torch.autograd.forward_ad, "_current_level") else None

    def _incrementer(self) -> Callable[[tuple[Any, ...]], object]:
        """`wrote` of several tensors; torch's own words below its layer for single ones, where they do what they did.

        That is tried here, on tensors in host memory.
        """
        torch = self.torch

        def increment(arrays: tuple[Any, ...]) -> None:
            for array in arrays:
                self.wrote(array)

        try:
            below: Callable[[tuple[Any, ...]], object] = torch._C._increment_version
            with torch.inference_mode():
                untold = torch.empty(0, device="cpu")
            told = torch.empty(0, device="cpu")
            below((told, untold))
            return below if told._version == 1 else increment
        except Exception:
            return increment

    def maker(self) -> Callable[[tuple[int, ...], tuple[int, ...], Any], Any]:
        """What makes an uninitialised tensor from shape, strides and dtype on the current device and stream.

        What torch's own compiler puts into the code that it generates, in a third of the time of ``torch.empty``, whose
        way through the dispatcher it leaves out. That is private to torch, so it is tried here.
        """
        torch = self.torch

        def make(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
            return torch.empty(shape, dtype=dtype, device="cuda")

        try:
            below: Callable[[tuple[int, ...], tuple[int, ...], Any], Any] = torch._C._dynamo.guards._empty_strided_cuda
            tried, known = below((2, 3), (3, 1), torch.float32), make((2, 3), (3, 1), torch.float32)
            same = type(tried) is torch.Tensor and all(
                getattr(tried, fact) == getattr(known, fact)
                for fact in ("shape", "dtype", "device", "layout", "requires_grad")
            )
            same = same and tried.stride() == (3, 1) and tried.is_inference() == known.is_inference()
            return below if same else make
        except Exception:
            return make


def _untraced_code(code: Any) -> None:
    """Let torch.compile run this code, and what it calls, as it is."""
    frames: Any = sys.modules["torch"]._C._dynamo.eval_frame
    try:
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except AttributeError:  # another torch: it looks into such a call, finds nothing to compile and lets it run
        pass


class _Numpy:
    name = "numpy"
    has_current_stream = False

    def describe(self, name: str, array: Any, function: str) -> Described:
        import numpy

        if isinstance(array, numpy.ma.MaskedArray):
            raise _masked(name, function, f"{name}.filled(...)")
        dtype = _known(name, _named(array.dtype), function)
        strides = element_strides(name, array.strides, array.dtype.itemsize, function)
        pointer = array.__array_interface__["data"][0]
        return Described(name, pointer, dtype, array.shape, strides, ("cpu", 0), not array.flags.writeable)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        import numpy

        kind = _numpy_dtype(dtype)
        # Aligned as a plan counts on; the libraries promise 16 and 64 bytes.
        room = numpy.empty(product(shape) * kind.itemsize + FRESH_ALIGNMENT, numpy.uint8)
        return numpy.ndarray(shape, kind, room, -numpy_address(room) % FRESH_ALIGNMENT)

    def current_stream(self, device: int) -> int:
        return 0

    def record(self, array: Any, stream: Any) -> None:
        """Nothing to tell."""

    def wrote(self, array: Any) -> None:
        pass


IMMUTABLE = frozenset({"jax", "jaxlib", "mlx", "tensorflow"})
"""Libraries whose arrays may not be written, which their exports do not say."""


class _Exchange:
    """Arrays known only by ``__dlpack__`` or ``__cuda_array_interface__``: read, written through ``out=``, never made.

    One type may have the one protocol for some of its arrays and the other for others (JAX's has no
    ``__cuda_array_interface__`` in host memory, or for bfloat16), so each array is asked. DLPack comes first: it names
    every dtype, and orders streams.
    """

    name = "__dlpack__ or __cuda_array_interface__"
    has_current_stream = False

    def describe(self, name: str, array: Any, function: str) -> Described:
        if hasattr(array, "__dlpack__"):
            return self._view(name, array, function)
        facts = _interface(array)
        if facts is None:
            raise ArgumentError(f"argument {name!r} has no memory on a GPU.", function=function, given=f"{array!r:.60}")
        return self._described(name, array, facts, function)

    def _view(self, name: str, array: Any, function: str) -> Described:
        from cuplate.backend.cuda.views import view_of

        try:
            view = view_of(array)
            dtype = view.dtype
        except Exception as error:  # each library has its own words for what cannot be exported
            raise ArgumentError(
                f"array {name!r} cannot be read through DLPack: {error}", function=function, given=type(array).__name__
            ) from error
        if dtype is None:
            raise _unknown(name, "of no dtype", function)
        shape = tuple(view.shape)
        steps = packed_strides(shape) if view.strides is None else _signed(view.strides, dtype.itemsize)
        device = ("cuda", view.device_id) if view.is_device_accessible else ("cpu", 0)
        readonly = view.readonly or type(array).__module__.partition(".")[0] in IMMUTABLE
        known = _known(name, _named(dtype), function)
        return Described(name, view.ptr, known, shape, steps, device, readonly, view=view)

    def _described(self, name: str, array: Any, facts: Any, function: str) -> Described:
        import numpy

        dtype = numpy.dtype(facts["typestr"])
        _known(name, _named(dtype), function)
        if facts.get("mask") is not None:
            raise _masked(name, function)
        pointer, readonly = facts["data"]
        shape = tuple(facts["shape"])
        strides = facts.get("strides") or _repeated(shape, getattr(array, "strides", None))
        steps = packed_strides(shape) if strides is None else element_strides(name, strides, dtype.itemsize, function)
        device = ("cuda", _device_of(pointer) if pointer else 0)
        return Described(name, pointer or 0, dtype.name, shape, steps, device, bool(readonly), facts.get("stream") or 0)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        raise DeviceError(f"the output cannot be allocated: its library is only known by {self.name}.", try_="out=")

    def current_stream(self, device: int) -> int:
        return 0

    def record(self, array: Any, stream: Any) -> None:
        """Nothing to tell."""

    def wrote(self, array: Any) -> None:
        pass


def _interface(array: Any) -> Any:
    """What an array says by ``__cuda_array_interface__``; None where it has none, or raises (JAX's of some dtypes)."""
    try:
        return array.__cuda_array_interface__
    except Exception:
        return None


def _signed(strides: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in elements, of an export that may have divided negative ones as if they were positive (CuPy 14 does).

    No array has a stride of 2**63 bytes, so that what such a number stands for is certain.
    """
    return tuple(((s * itemsize + 2**63) % 2**64 - 2**63) // itemsize for s in strides)


def _repeated(shape: tuple[int, ...], strides: Any) -> Any:
    """The strides of an array that calls itself packed, and repeats elements: Numba's interface does not count these.

    None, as the interface says it, for any other.
    """
    known = isinstance(strides, tuple) and len(strides) == len(shape)
    return strides if known and any(n > 1 and s == 0 for n, s in zip(shape, strides, strict=True)) else None


def _numpy_dtype(name: str) -> Any:
    """NumPy's dtype object; of what NumPy does not know itself, ml_dtypes'."""
    import numpy

    try:
        return numpy.dtype(name)
    except TypeError:
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ImportError:
            raise DtypeError(
                f"NumPy has no dtype {name}, so that an output of it cannot be allocated.",
                try_="install ml_dtypes, or torch tensors",
            ) from None
        return numpy.dtype(getattr(ml_dtypes, name))


def _masked(name: str, function: str, try_: str | None = None) -> LayoutError:
    return LayoutError(f"array {name!r} has a mask, which a kernel does not read.", function=function, try_=try_)


def _device_of(pointer: int) -> int:
    from cuplate.backend.cuda.device import device_of_pointer

    return device_of_pointer(pointer)


class _Spec:
    name = "cuplate"
    has_current_stream = False

    def describe(self, name: str, array: ArraySpec, function: str) -> Described:
        dtype = dtype_name(array.dtype, lambda: _unknown(name, array.dtype, function, near=nearest_dtype(array.dtype)))
        shape = None if array.shape is None else _sizes(name, array.shape, array, function)
        if shape and min(shape) < 0:
            raise ShapeError(f"array {name!r} has a negative size.", function=function, given=f"{array}")
        strides = packed_strides(shape or ()) if array.strides is None else _sizes(name, array.strides, array, function)
        if len(strides) != len(shape or ()):
            raise ShapeError(f"array {name!r} has not one stride for each axis.", function=function, given=f"{array}")
        return Described(name, array.alignment, dtype, shape, strides, None)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        raise AssertionError("an ArraySpec is never launched")

    def current_stream(self, device: int) -> int:
        raise AssertionError("an ArraySpec is never launched")

    def record(self, array: Any, stream: Any) -> None:
        """Nothing to tell."""


_OWNERS: dict[tuple[str, str], Any] = {
    ("cupy", "ndarray"): _Cupy,
    ("torch", "Tensor"): _Torch,
    ("numpy", "ndarray"): _Numpy,
    ("cuplate", "ArraySpec"): _Spec,
}
_BY_TYPE: dict[type, Owner] = {}
