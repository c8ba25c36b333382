"""Devices, loaded kernels, streams and launches, through cuda.core."""

from __future__ import annotations

import ctypes as C
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cuplate.backend.cuda import importing
from cuplate.backend.protocol import DeviceFacts, runs_on
from cuplate.cubin import Cubin
from cuplate.errors import LaunchError, ToolchainError
from cuplate.grid import Grid, Limits

if TYPE_CHECKING:
    from cuplate.tensor_map import MapLayout

with importing:
    from cuda.bindings import driver
    from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Device, Kernel, LaunchConfig, Stream, launch
    from cuda.core._launch_config import _to_native_launch_config

__all__ = [
    "LoadedKernel",
    "descriptors",
    "device_count",
    "device_facts",
    "device_of_stream",
    "is_capturing",
    "joins_capture",
    "launch",
    "launch_packed",
    "load",
    "prepare",
    "resident_blocks",
    "run_on",
    "stream_of",
    "streams",
    "wait",
    "zero",
]

_LEGACY_STREAMS = (0, 1)  # one stream by two names
_DEFAULT_STREAMS = (*_LEGACY_STREAMS, 2)  # and that of each thread
DEFAULT_SHARED_BYTES = 48 * 1024  # above this a kernel needs its attribute raised once per device


_facts: dict[int, DeviceFacts] = {}


def device_count() -> int:
    """Number of GPUs that this process sees.

    Raises
    ------
    ToolchainError
        There is no driver.
    """
    (count,) = checked("count the devices", driver.cuInit(0)) or driver.cuDeviceGetCount()[1:]
    return int(count)


def device_facts(device: int) -> DeviceFacts:
    """Architecture and limits of `device`, asked once."""
    facts = _facts.get(device)
    if facts is None:
        d = Device(device)
        p = d.properties
        major, minor = d.compute_capability
        limits = Limits(
            arch=major * 10 + minor,
            grid=(p.max_grid_dim_x, p.max_grid_dim_y, p.max_grid_dim_z),
            block=(p.max_block_dim_x, p.max_block_dim_y, p.max_block_dim_z),
            threads_per_block=p.max_threads_per_block,
            shared_memory_bytes=p.max_shared_memory_per_block_optin,
            sm_count=p.multiprocessor_count,
            cluster_blocks=8 if major >= 9 else 1,  # the size that every device with clusters takes
        )
        facts = _facts[device] = DeviceFacts(f"sm_{major}{minor}", limits, d.name)
    return facts


def device_of_pointer(pointer: int) -> int:
    """Ordinal of the device that owns the memory at `pointer`."""
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    (ordinal,) = checked("find the device of an array", driver.cuPointerGetAttribute(attribute, pointer))
    return int(ordinal)


class LoadedKernel:
    """A kernel that a device can run; unloaded for real when the last reference to it goes.

    The library is loaded and unloaded here rather than by an ``ObjectCode``: dropping one of those frees nothing.
    Unloading waits for the kernel's work in flight, so it is right at any time, except for a graph that captured the
    kernel: such kernels are kept for good (`keep`).

    Parameters
    ----------
    kernel : cuda.core.Kernel
    library : driver.CUlibrary
        Owned: unloaded with this object.
    cubin : Cubin
    device : int

    Attributes
    ----------
    kept : bool
        Set by `keep`.
    evicted : bool
        Set when the memory tier has let go of it.
    """

    __slots__ = (
        "__weakref__",
        "_shared_bytes",
        "_users",
        "cubin",
        "device",
        "evicted",
        "kept",
        "kernel",
        "library",
    )

    def __init__(self, kernel: Kernel, library: Any, cubin: Cubin, device: int) -> None:
        self.kernel = kernel
        self.library = library
        self.cubin = cubin
        self.device = device
        self.kept = False
        self.evicted = False
        self._users: weakref.WeakSet[Any] | None = None
        self._shared_bytes = DEFAULT_SHARED_BYTES

    @property
    def users(self) -> weakref.WeakSet[Any]:
        """Functions that hold plans for it; made when first asked for, as it costs a fifth of a load."""
        with _attributes_lock:
            if self._users is None:
                self._users = weakref.WeakSet()
            return self._users

    @property
    def registers(self) -> int:
        """32-bit registers a thread."""
        return int(self._attributes().num_regs)

    @property
    def static_shared_bytes(self) -> int:
        """Static shared memory a block."""
        return int(self._attributes().shared_size_bytes)

    @property
    def threads_per_block(self) -> int:
        """Largest block that the registers and ``__launch_bounds__`` allow."""
        return int(self._attributes().max_threads_per_block)

    @property
    def argument_bytes(self) -> tuple[int, ...]:
        """Size of each kernel argument, as the driver reports it."""
        handle, sizes = driver.CUkernel(int(self.kernel.handle)), list[int]()
        while True:
            status, _, size = driver.cuKernelGetParamInfo(handle, len(sizes))
            if status == driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # one past the last
                return tuple(sizes)
            checked("tell the kernel's arguments", (status, size))
            sizes.append(int(size))

    def _attributes(self) -> Any:
        return self.kernel.attributes[self.device]

    def keep(self, *memory: Any) -> None:
        """Never unload: a graph has captured this kernel. `memory` is what each replay writes besides its outputs."""
        _held.extend(memory)
        if not self.kept:
            self.kept = True
            _kept.append(self)

    def allow_shared_bytes(self, size: int) -> None:
        """Raise the limit of dynamic shared memory, which the driver sets to 48 kB minus the static part."""
        with _attributes_lock:
            if size <= self._shared_bytes and (
                self._shared_bytes > DEFAULT_SHARED_BYTES or size + self.static_shared_bytes <= DEFAULT_SHARED_BYTES
            ):
                return
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            handle, device = driver.CUkernel(int(self.kernel.handle)), _device(self.device)
            checked("raise the shared memory limit", driver.cuKernelSetAttribute(attribute, size, handle, device))
            self._shared_bytes = size

    def __del__(self) -> None:
        # At interpreter exit the driver may be gone already, and frees everything by itself.
        if not self.kept and not sys.is_finalizing():
            with beside_captures():
                driver.cuLibraryUnload(self.library)


_kept: list[LoadedKernel] = []
_held: list[Any] = []  # scratch of captured calls: nobody else knows of it, and graphs do not say when they end
_attributes_lock = threading.Lock()  # one for all: a kernel's own would cost as much as the rest of the object


class beside_captures:
    """Let this thread load and unload while a stream is captured, in this thread or in another one.

    A capture in the driver's global mode, which is torch's default, is broken by any call that might depend on what is
    captured, from whichever thread. Loading and unloading do not: no captured kernel is ever unloaded.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._before = driver.cuThreadExchangeStreamCaptureMode(relaxed)[1]

    def __exit__(self, *_: object) -> None:
        driver.cuThreadExchangeStreamCaptureMode(self._before)


def load(cubin: Cubin, device: int) -> LoadedKernel:
    """Load `cubin` for `device`. The driver needs no current context for it.

    Raises
    ------
    LaunchError
        The cubin is for another architecture, the driver refuses it, or it lacks the kernel.
    """
    own = device_facts(device).arch
    if not runs_on(cubin.arch, own):  # the record's word, before the driver sees a byte
        raise LaunchError("the cubin is for another architecture.", given=cubin.arch, allowed=own)
    with beside_captures():
        status, library = driver.cuLibraryLoadData(cubin.code, [], [], 0, [], [], 0)
    if status:  # asked here, as each of the two checks costs a fifteenth of a load
        checked("load the cubin", (status,))
    try:
        status, handle = driver.cuLibraryGetKernel(library, cubin.entry.encode())
        if status:
            checked("find the kernel", (status,))
        return LoadedKernel(Kernel.from_handle(int(handle)), library, cubin, device)
    except BaseException:
        driver.cuLibraryUnload(library)
        raise


def prepare(grid: Grid, loaded: LoadedKernel) -> LaunchConfig:
    """The launch configuration of `grid`, with the kernel's attributes raised to what it needs."""
    loaded.allow_shared_bytes(grid.shared_memory_bytes)
    if grid.cluster is None:
        return LaunchConfig(
            grid=grid.grid, block=grid.block, shmem_size=grid.shared_memory_bytes, is_cooperative=grid.cooperative
        )
    # cuda.core counts the grid in clusters where one is given; everybody else counts blocks.
    clusters = tuple(g // c for g, c in zip(grid.grid, grid.cluster, strict=True))
    return LaunchConfig(
        grid=clusters,
        cluster=grid.cluster,
        block=grid.block,
        shmem_size=grid.shared_memory_bytes,
        is_cooperative=grid.cooperative,
    )


def resident_blocks(loaded: LoadedKernel, grid: Grid) -> int:
    """Blocks of this kernel that the whole device holds at once: the limit of a cooperative grid."""
    loaded.allow_shared_bytes(grid.shared_memory_bytes)
    threads = grid.block[0] * grid.block[1] * grid.block[2]
    with run_on(loaded.device):
        a_multiprocessor = loaded.kernel.occupancy.max_active_blocks_per_multiprocessor(
            threads, grid.shared_memory_bytes
        )
    return int(a_multiprocessor) * (device_facts(loaded.device).limits.sm_count or 0)


def descriptors(layout: MapLayout) -> Mapping[int, Any]:
    """Tensor maps of `layout` by address, each made when it is first asked for."""
    from cuplate.backend.cuda.maps import Descriptors

    return Descriptors(layout, beside_captures)


streams: dict[int, Stream] = {}
"""cuda.core's streams by pointer: wrapping one costs microseconds, and a wrapper owns nothing."""


def stream_of(pointer: int) -> Stream:
    """cuda.core's stream for a pointer; 0 is the legacy default stream."""
    stream = streams.get(pointer)
    if stream is None:
        if pointer in (0, 1):
            stream = LEGACY_DEFAULT_STREAM
        elif pointer == 2:
            stream = PER_THREAD_DEFAULT_STREAM
        else:
            stream = Stream.from_handle(pointer)
        if len(streams) >= 1024:  # streams come and go
            streams.clear()
        streams[pointer] = stream
    return stream


def device_of_stream(pointer: int) -> int | None:
    """Ordinal of the device of a stream; None for a default stream, of which every device has one."""
    if pointer in _DEFAULT_STREAMS:
        return None
    return int(Stream.from_handle(pointer).device.device_id)  # of a wrapper of its own: pointers are used again


def is_capturing(pointer: int) -> bool:
    """Whether a graph capture is under way on a stream, be it whose it may; an invalidated one counts too."""
    if pointer in _LEGACY_STREAMS:
        return False  # the legacy stream cannot be captured
    (state,) = checked("tell whether a stream is captured", driver.cuStreamIsCapturing(pointer))
    return bool(state != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def joins_capture(pointer: int) -> bool:
    """Whether work on the legacy default stream would have to wait for a stream that is captured, which breaks it."""
    if pointer not in _LEGACY_STREAMS:
        return False
    return bool(driver.cuStreamIsCapturing(0)[0] == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)


def wait(stream: Stream) -> str | None:
    """Wait for all work of a stream; what the driver says of a fault, None where there was none."""
    (status,) = driver.cuStreamSynchronize(stream.handle)
    if status == driver.CUresult.CUDA_SUCCESS:
        return None
    return f"{_text(driver.cuGetErrorName(status))}: {_text(driver.cuGetErrorString(status))}"


def launch_packed(stream: Stream, config: LaunchConfig, kernel: Kernel, *values: int | bytes) -> None:
    """`launch` for kernels that take structs by value, which cuda.core's own has no type for.

    Parameters
    ----------
    stream, config, kernel
        As for `launch`.
    values : int or bytes
        A pointer, or a scalar as the integer with the same bytes; a struct as its bytes.
    """
    room = [C.create_string_buffer(v, len(v)) if isinstance(v, bytes) else C.c_int64(v) for v in values]
    addresses = (C.c_void_p * len(room))(*(C.addressof(one) for one in room))
    native: Any = _to_native_launch_config(config)
    native.hStream = driver.CUstream(int(stream.handle))
    function = driver.CUfunction(int(kernel.handle))
    checked("launch", driver.cuLaunchKernelEx(native, function, C.addressof(addresses), 0))


def zero(pointer: int, size_bytes: int, stream: Stream) -> None:
    """Zero memory in the order of `stream`."""
    if size_bytes:
        checked("zero an output", driver.cuMemsetD8Async(pointer, 0, size_bytes, stream.handle))


class run_on:
    """Make `device` current, and give the caller's context back afterwards.

    A thread without one gets none, or the device would have become its current one; except for device 0, which is what
    such a thread's next call of the CUDA runtime would take anyway.
    """

    __slots__ = ("_before", "device")

    def __init__(self, device: int) -> None:
        self.device = device
        self._before: Any = None

    def __enter__(self) -> None:
        status, context = driver.cuCtxGetCurrent()
        if status == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED:
            context = None
        self._before = context
        Device(self.device).set_current()

    def __exit__(self, *_: object) -> None:
        if self.device or (self._before is not None and int(self._before)):
            driver.cuCtxSetCurrent(driver.CUcontext(0) if self._before is None else self._before)


def _device(device: int) -> Any:
    return checked("find the device", driver.cuDeviceGet(device))[0]


def checked(what: str, result: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = result
    if status == driver.CUresult.CUDA_SUCCESS:
        return tuple(values)
    text = _text(driver.cuGetErrorName(status))
    error = ToolchainError if "INIT" in text or "NO_DEVICE" in text else LaunchError
    raise error(f"the CUDA driver could not {what}: {text}.")


def _text(result: tuple[Any, Any]) -> str:
    """What the driver gives as bytes."""
    return result[1].decode() if isinstance(result[1], bytes) else str(result[1])
