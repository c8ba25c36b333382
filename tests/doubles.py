"""A GPU that records: everything above the driver runs as it is, NVRTC included, and nothing is computed.

`install` puts a fake ``cupy`` and a fake ``cuplate.backend.cuda.device`` where the walk looks for them, and
`install_torch` a fake ``torch`` beside them. Arrays are
NumPy arrays at made-up addresses, so that shapes, strides, views and overlaps are NumPy's own.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuplate.backend.protocol import DeviceFacts
from cuplate.grid import Grid, limits_for
from cuplate.render import Source, render
from cuplate.specialization import Specialization
from cuplate.template import Inline, read

ARCH = "sm_90"
ALIGNMENT = 256
SM_COUNT = 132


def rendered(text: str, entry: str = "k", **parameters: object) -> Source:
    """A rendered inline template."""
    spec = Specialization(
        function="f",
        entry=entry,
        parameters=tuple(parameters.items()),
        arrays=(),
        scalars=(),
        axes=(),
        index_type="int",
        arch="sm_90",
        block=(32, 1, 1),
        slots=(),
    )
    return render(read(Inline(text), anchor=None, function="f"), spec)


class ndarray:
    """Looks like ``cupy.ndarray`` to the owner and to the generated code.

    Parameters
    ----------
    shape, dtype
        As for CuPy: uninitialised, on the current device.
    """

    gpu: Gpu  # set by `install`, in a subclass of its own

    def __init__(self, shape: Any = None, dtype: Any = "float32", *, host: np.ndarray[Any, Any] | None = None) -> None:
        if host is None:
            host = np.zeros(shape, dtype)
            self.gpu.log.append(Note("empty", self.gpu.current, shape=host.shape, stream=self.gpu.stream))
        self._place(host, self.gpu.new_address(host.nbytes), self.gpu.current)

    def _place(self, host: np.ndarray[Any, Any], address: int, device: int) -> None:
        self.host, self.dtype, self.shape, self.strides = host, host.dtype, host.shape, host.strides
        self._c_contiguous, self._f_contiguous = bool(host.flags.c_contiguous), bool(host.flags.f_contiguous)
        self.ndim, self.size = host.ndim, host.size
        self.data = SimpleNamespace(ptr=address, device_id=device)

    def __len__(self) -> int:
        return len(self.host)

    def view(self, host: np.ndarray[Any, Any]) -> Any:
        """This memory as `host`, a NumPy view of ``self.host``, sees it."""
        other = object.__new__(type(self))
        offset = _address(host) - _address(self.host)
        other._place(host, self.data.ptr + offset, self.data.device_id)
        return other

    def __getitem__(self, index: Any) -> Any:
        return self.view(self.host[index])

    @property
    def T(self) -> Any:
        """Transposed view."""
        return self.view(self.host.T)


def _address(host: np.ndarray[Any, Any]) -> int:
    return int(host.__array_interface__["data"][0])


@dataclass
class Note:
    """One thing that the device was asked for, in order: ``"empty"``, ``"load"``, ``"zero"``, ``"launch"``, ...."""

    what: str
    device: int
    stream: int = 0
    shape: tuple[int, ...] = ()
    kernel: str = ""
    grid: Grid | None = None
    values: tuple[int, ...] = ()
    parameters: str = ""  # of the launched cubin
    code: bytes = b""  # likewise
    pointer: int = 0
    bytes: int = 0


@dataclass(eq=False, slots=True, weakref_slot=True)
class Loaded:
    """Stands for ``LoadedKernel``; `argument_bytes` is read from the cubin, where the driver finds it too."""

    cubin: Any
    device: int
    registers: int
    static_shared_bytes: int
    threads_per_block: int
    argument_bytes: tuple[int, ...]
    kernel: Any = None
    kept: bool = False
    evicted: bool = False
    users: Any = field(default_factory=weakref.WeakSet)

    held: list[Any] = field(default_factory=list)

    def keep(self, *memory: Any) -> None:
        """A graph has captured this kernel."""
        self.kept = True
        self.held += memory


class Descriptors(dict[int, Any]):
    """Stands for the table of tensor maps of one array of a plan."""

    def __init__(self, gpu: Gpu, layout: Any) -> None:
        super().__init__()
        self.gpu, self.layout = gpu, layout

    def __missing__(self, pointer: int) -> Any:
        self.gpu.log.append(Note("map", self.gpu.current, pointer=pointer))
        made = self[pointer] = SimpleNamespace(pointer=pointer, layout=self.layout)
        return made


class Gpu(ModuleType):
    """The stand-in for ``cuplate.backend.cuda.device``, and the knobs and records of a test."""

    def __init__(self, devices: int = 1) -> None:
        super().__init__("cuplate.backend.cuda.device")
        self.devices = devices
        self.current = 0
        self.stream = 0
        self.capturing: set[int] = set()
        self.joining: set[int] = set()
        self.faults: list[str | None] = []  # what the next waits say
        self.log: list[Note] = []
        self.refuse: Exception | None = None  # what the next launches raise
        self.streams: dict[int, Any] = {}
        self.loaded: weakref.WeakSet[Loaded] = weakref.WeakSet()
        self.threads_per_block = 1024
        self.blocks_a_multiprocessor = 1  # that it holds of any kernel
        self._next_address = 0x7F00_0000_0000

    # what a test asks -------------------------------------------------------------------------------------------------

    def array(self, shape: Any, dtype: str = "float32", device: int = 0) -> Any:
        """A fresh array."""
        return self.hold(np.zeros(shape, dtype), device)

    def hold(self, host: np.ndarray[Any, Any], device: int = 0) -> Any:
        """An array with the shape and strides of `host`, which may be a view."""
        base: Any = host
        while isinstance(base.base, np.ndarray):
            base = base.base
        with self.on(device):
            return self.cupy.ndarray(host=base).view(host)

    def notes(self, what: str) -> list[Note]:
        """The records of one kind, in order."""
        return [note for note in self.log if note.what == what]

    @property
    def launches(self) -> list[Note]:
        """The launches, in order."""
        return self.notes("launch")

    def new_address(self, size: int) -> int:
        """Address of fresh memory; 0 for no memory, as with CuPy."""
        address = self._next_address
        self._next_address += -(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        return address if size else 0

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device current, and put back the one before."""
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def on_stream(self, pointer: int) -> Iterator[None]:
        """Make a stream current, and put back the one before."""
        before, self.stream = self.stream, pointer
        try:
            yield
        finally:
            self.stream = before

    # what the walk calls ----------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        """As the real one."""
        return self.devices

    def device_facts(self, device: int) -> Any:
        """Every device is alike."""
        return DeviceFacts(ARCH, replace(limits_for(ARCH), sm_count=SM_COUNT), "double")

    def load(self, cubin: Any, device: int) -> Loaded:
        """Record a load."""
        self.log.append(Note("load", device, kernel=cubin.entry))
        r = cubin.resources
        sizes = argument_bytes(cubin.code, cubin.entry)
        loaded = Loaded(cubin, device, r.registers, r.static_shared_bytes, self.threads_per_block, sizes)
        loaded.kernel = SimpleNamespace(entry=cubin.entry, loaded=weakref.ref(loaded))
        self.loaded.add(loaded)
        return loaded

    def prepare(self, grid: Grid, loaded: Loaded) -> Grid:
        """The grid itself."""
        return grid

    def resident_blocks(self, loaded: Loaded, grid: Grid) -> int:
        """As many as a test says, and recorded."""
        self.log.append(Note("resident", loaded.device, grid=grid, kernel=loaded.cubin.entry))
        return self.blocks_a_multiprocessor * SM_COUNT

    def launch(self, stream: Any, config: Grid, kernel: Any, *values: int) -> None:
        """Record a launch, or raise `refuse`."""
        if self.refuse is not None:
            raise self.refuse
        note = Note("launch", self.current, stream.pointer, kernel=kernel.entry, grid=config, values=values)
        note.parameters, note.code = kernel.loaded().cubin.parameters_text, kernel.loaded().cubin.code
        self.log.append(note)

    launch_packed = launch

    def descriptors(self, layout: Any) -> Any:
        """Descriptors that say of what they are, and are recorded when they are made."""
        return Descriptors(self, layout)

    def zero(self, pointer: int, size_bytes: int, stream: Any) -> None:
        """Record a memset."""
        if size_bytes:
            self.log.append(Note("zero", self.current, stream.pointer, pointer=pointer, bytes=size_bytes))

    def is_capturing(self, pointer: int) -> bool:
        """Whether a test says so."""
        return pointer in self.capturing

    def joins_capture(self, pointer: int) -> bool:
        """Whether the legacy stream would join a capture: a test says so of stream 0."""
        return pointer == 0 and 0 in self.joining

    def device_of_stream(self, pointer: int) -> int | None:
        """Streams are numbered 100 a device, but for the default ones."""
        return None if pointer < 3 else pointer // 100

    def wait(self, stream: Any) -> str | None:
        """Record a wait; what a test says of faults, once."""
        self.log.append(Note("wait", self.current, stream.pointer))
        return self.faults.pop(0) if self.faults else None

    def stream_of(self, pointer: int) -> Any:
        """A stream by its pointer."""
        return self.streams.setdefault(pointer, SimpleNamespace(pointer=pointer))

    def run_on(self, device: int) -> Any:
        """As the real one."""
        return self.on(device)


def install(monkeypatch: pytest.MonkeyPatch, devices: int = 1) -> Gpu:
    """Put the doubles in place for one test; what a test met before is put aside, loaded kernels too.

    Returns
    -------
    Gpu
        With ``array`` and ``hold`` to make arguments, and ``log`` of what was asked of it.
    """
    import cuplate.backend.cuda as package
    from cuplate.backend import owners
    from cuplate.cache import front

    gpu = Gpu(devices)
    gpu.cupy = _cupy(gpu)
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    monkeypatch.setitem(sys.modules, "cuplate.backend.cuda.device", gpu)
    monkeypatch.setattr(package, "device", gpu, raising=False)
    monkeypatch.setattr(owners, "_BY_TYPE", {})
    monkeypatch.setattr(front._process, "memory", None)
    return gpu


class Tensor:
    """Looks like ``torch.Tensor`` to the owner and to the generated code; whatever it says can be changed in place.

    Attributes
    ----------
    host : numpy.ndarray
        Shape, strides and dtype.
    address : int or Exception
        What ``data_ptr()`` gives, or raises.
    tangent : bool
        Whether it is a dual of forward mode.
    """

    gpu: Gpu  # set by `install_torch`, in a subclass of its own

    def __init__(self, host: np.ndarray[Any, Any], address: int | Exception, device: int = 0) -> None:
        self.host, self.address, self.index = host, address, device
        self.is_cuda, self.is_nested, self.layout = True, False, "strided"
        self.requires_grad = self.negative = self.conjugate = self.inference = self.tangent = False
        self._version = 0

    @property
    def dtype(self) -> Any:
        """One object a dtype, as with torch."""
        return getattr(self.gpu.torch, str(self.host.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self.host.shape

    @property
    def device(self) -> Any:
        """Kind and number, which can be compared and hashed."""
        return _Device("cuda" if self.is_cuda else "cpu", self.index)

    def get_device(self) -> int:
        """Its number."""
        return self.index

    def numel(self) -> int:
        """Elements."""
        return self.host.size

    def stride(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(s // self.host.itemsize for s in self.host.strides)

    def is_contiguous(self) -> bool:
        """Whether it is packed by rows."""
        return bool(self.host.flags.c_contiguous)

    def is_neg(self) -> bool:
        """Whether it is a lazy negative view."""
        return self.negative

    def is_conj(self) -> bool:
        """Whether it is a lazy conjugate view."""
        return self.conjugate

    def is_inference(self) -> bool:
        """Whether it has no version."""
        return self.inference

    def data_ptr(self) -> int:
        """Its address, if it has one."""
        if isinstance(self.address, Exception):
            raise self.address
        return self.address


@dataclass(frozen=True)
class _Device:
    type: str
    index: int


@dataclass(frozen=True)
class _Dtype:
    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"


def install_torch(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> Any:
    """Put a fake ``torch`` in place for one test, also where the real one is installed.

    Returns
    -------
    module
        With ``make(shape, dtype)`` for tensors, and what a test may set: ``grads``, ``modes``, ``transform``,
        ``trace``, and ``autograd.forward_ad._current_level``.
    """
    torch: Any = ModuleType("torch")
    gpu.torch = torch
    torch.Tensor = type("Tensor", (Tensor,), {"__module__": "torch", "gpu": gpu})
    torch.nn = SimpleNamespace(Parameter=type("Parameter", (torch.Tensor,), {"__module__": "torch.nn.parameter"}))
    torch.strided = "strided"
    for name in ("float32", "float64", "int32", "uint64", "complex64"):
        setattr(torch, name, _Dtype(name))
    torch.grads, torch.modes, torch.transform, torch.trace = True, 0, None, None
    torch.is_grad_enabled = lambda: torch.grads
    torch.inference_mode = contextlib.nullcontext
    torch.compiler = SimpleNamespace(disable=lambda function: function)

    def make(shape: Any, dtype: str = "float32", device: int = 0) -> Any:
        host = np.zeros(shape, dtype)
        return torch.Tensor(host, gpu.new_address(host.nbytes), device)

    def empty(shape: Any, dtype: Any = torch.float32, device: str = "cpu") -> Any:
        if device != "cpu" and shape != (2, 3):  # a size that only a trial asks for
            gpu.log.append(Note("empty", gpu.current, shape=tuple(shape), stream=gpu.stream))
        made = make(shape, dtype.name, gpu.current)
        made.is_cuda = device != "cpu"
        return made

    def increment(tensor: Any) -> None:
        assert not tensor.inference, "an inference tensor has no version"
        tensor._version += 1

    torch.make, torch.empty = make, empty
    forward = SimpleNamespace(
        _current_level=-1, unpack_dual=lambda tensor: SimpleNamespace(tangent=True if tensor.tangent else None)
    )
    torch.autograd = SimpleNamespace(forward_ad=forward, graph=SimpleNamespace(increment_version=increment))
    torch.cuda = SimpleNamespace(
        is_current_stream_capturing=lambda: gpu.stream in gpu.capturing,
        stream=lambda stream: gpu.on_stream(stream),
        ExternalStream=lambda pointer, device: pointer,
        Stream=type("Stream", (), {}),
    )
    torch._C = SimpleNamespace(
        _len_torch_dispatch_stack=lambda: torch.modes,
        _get_tracing_state=lambda: torch.trace,
        _functorch=SimpleNamespace(maybe_current_level=lambda: torch.transform),
        _cuda_getCurrentRawStream=lambda device: gpu.stream,
        _cuda_getDevice=lambda: gpu.current,
        _dynamo=SimpleNamespace(guards=SimpleNamespace(), eval_frame=SimpleNamespace()),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def _cupy(gpu: Gpu) -> Any:
    module: Any = ModuleType("cupy")
    module.ndarray = type("ndarray", (ndarray,), {"__module__": "cupy", "gpu": gpu})
    module.cuda = SimpleNamespace(
        get_current_stream=lambda device=None: SimpleNamespace(ptr=gpu.stream),
        Device=gpu.on,
        Stream=SimpleNamespace(from_external=lambda stream: gpu.on_stream(stream.__cuda_stream__()[1])),
        runtime=SimpleNamespace(
            streamIsCapturing=lambda pointer: pointer in gpu.capturing, getDevice=lambda: gpu.current
        ),
    )
    return module


# Parameter sizes as the driver finds them: .nv.info.<kernel> is a list of (format, attribute, size or value, payload);
# attribute 0x17 is one kernel parameter: index, ordinal, offset, and the size in the upper 14 bits of the last word.
_KPARAM_INFO = 0x17
_SIZED = 0x04


def argument_bytes(code: bytes, entry: str) -> tuple[int, ...]:
    """Size of each argument of a kernel, from its ELF image."""
    sizes: dict[int, int] = {}
    info = _section(code, f".nv.info.{entry}")
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == _SIZED and attribute == _KPARAM_INFO:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", info, at + 4)
            sizes[ordinal] = packed >> 18
        at += 4 + (size if form == _SIZED else 0)
    return tuple(sizes[i] for i in sorted(sizes))


def _section(code: bytes, name: str) -> bytes:
    (table,) = struct.unpack_from("<Q", code, 0x28)
    width, count, names = struct.unpack_from("<HHH", code, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", code, table + i * width) for i in range(count)]
    text = heads[names][4]
    for head in heads:
        start = text + head[0]
        if code[start : code.index(b"\0", start)] == name.encode():
            return code[head[4] : head[4] + head[5]]
    return b""


class Bench:
    """Stands for ``cuplate.backend.cuda.bench.Bench``: memory is a row of addresses, and times are what a test says.

    Parameters
    ----------
    gpu : Gpu
    seconds : callable
        Parameters of the kernel that ran last, as text, to the seconds of a run.
    result : callable
        To the bytes that it leaves, of a size.
    """

    device_id = "double"

    def __init__(self, gpu: Gpu, seconds: Any, result: Any) -> None:
        self.gpu, self.seconds, self.result = gpu, seconds, result
        self.log: list[tuple[Any, ...]] = []
        self.room = 1 << 40
        self.fault: str | None = None

    @property
    def last(self) -> str:
        """Parameters of the kernel that ran last."""
        return self.gpu.launches[-1].parameters if self.gpu.launches else ""

    def allocate(self, size_bytes: int) -> tuple[int, Any]:
        """An address, as long as there is room."""
        self.room -= size_bytes
        if self.room < 0:
            raise MemoryError("out of memory")
        return self.gpu.new_address(size_bytes), None

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Noted."""
        self.log.append(("copy", to, source, size_bytes))

    def fill(self, to: int, byte: int, size_bytes: int) -> None:
        """Noted."""
        self.log.append(("fill", to, byte, size_bytes))

    def read(self, source: int, size_bytes: int) -> Any:
        """What a test says."""
        return np.frombuffer(self.result(self.last, size_bytes), np.uint8).copy()

    def once(self, run: Any) -> None:
        """Run."""
        self.log.append(("run",))
        run()

    def sample(self, run: Any) -> float:
        """Run; what a test says of the time."""
        self.log.append(("run",))
        run()
        return float(self.seconds(self.last))

    def settle(self) -> str | None:
        """What a test says."""
        return self.fault


def install_bench(
    monkeypatch: pytest.MonkeyPatch, gpu: Gpu, seconds: Any, result: Any = lambda parameters, size: bytes(size)
) -> Bench:
    """Put a bench in place for one test."""
    bench = Bench(gpu, seconds, result)
    module: Any = ModuleType("cuplate.backend.cuda.bench")
    module.Bench = lambda owner, device, stream, order: bench
    module.write = lambda pointer, data, device: bench.log.append(("write", pointer, len(data), device))
    monkeypatch.setitem(sys.modules, "cuplate.backend.cuda.bench", module)
    monkeypatch.setattr(sys.modules["cuplate.backend.cuda"], "bench", module, raising=False)
    return bench
