"""Raw memory and times of runs on a GPU, for trials of candidates."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cuplate.backend.cuda import importing
from cuplate.backend.cuda.device import beside_captures, checked, run_on, stream_of, wait
from cuplate.errors import DeviceError

with importing:
    from cuda.bindings import driver
    from cuda.core import Device, EventOptions

__all__ = ["Bench", "write"]

_LEAST_FLUSH_BYTES = 64 << 20  # long enough for the launch behind it to be enqueued meanwhile, see `Bench.sample`


class Bench:
    """See `cuplate.autotune.workspace.Bench`.

    Parameters
    ----------
    owner : Owner
        The library of the call's first array: memory comes from its pool.
    device : int
    stream : int
        Pointer of the launch stream, which is not captured.
    order : int or None
        As `Owner.empty` takes it.
    """

    def __init__(self, owner: Any, device: int, stream: int, order: int | None) -> None:
        self._owner, self._device, self._order = owner, device, order
        self._stream = stream_of(stream)
        self.device_id = str(Device(device).uuid)
        with run_on(device):
            options = EventOptions(timing_enabled=True)
            self._events = [Device(device).create_event(options) for _ in range(2)]
            self._flushed = max(_LEAST_FLUSH_BYTES, 2 * int(Device(device).properties.l2_cache_size))
        try:
            self._flush, self._kept = self.allocate(self._flushed)
        except Exception:  # measured with a warm cache, all candidates alike
            self._flush, self._kept = 0, None

    def allocate(self, size_bytes: int) -> tuple[int, Any]:
        """Address of fresh memory, and what keeps it."""
        try:
            array = self._owner.empty((size_bytes,), "uint8", self._device, self._order)
            return self._owner.describe("scratch", array, "tune").pointer, array
        except DeviceError:  # a library that only exports arrays
            block = _Block(size_bytes, self._device)
            return block.pointer, block

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Copy in stream order."""
        if size_bytes:
            with run_on(self._device):
                checked("copy an array", driver.cuMemcpyDtoDAsync(to, source, size_bytes, self._stream.handle))

    def fill(self, to: int, byte: int, size_bytes: int) -> None:
        """Fill in stream order."""
        if size_bytes:
            with run_on(self._device):
                checked("fill an array", driver.cuMemsetD8Async(to, byte, size_bytes, self._stream.handle))

    def read(self, source: int, size_bytes: int) -> Any:
        """The bytes, when the stream has come so far."""
        import numpy as np

        found = np.empty(size_bytes, np.uint8)
        if size_bytes:
            address = found.ctypes.data
            with run_on(self._device):
                checked("read an array", driver.cuMemcpyDtoHAsync(address, source, size_bytes, self._stream.handle))
                checked("read an array", driver.cuStreamSynchronize(self._stream.handle))
        return found

    def once(self, run: Callable[[], object]) -> None:
        """Launch."""
        with run_on(self._device):
            run()

    def sample(self, run: Callable[[], object]) -> float:
        """Seconds between two events around one run, its data out of the L2 cache.

        The flush before it takes the GPU longer than it takes us to enqueue event, launch and event, so that no time of
        the host's is in the figure.
        """
        if self._flush:
            self.fill(self._flush, 0, self._flushed)
        start, end = self._events
        with run_on(self._device):
            self._stream.record(start)
            run()
            self._stream.record(end)
            end.sync()
        return float(end - start) * 1e-3

    def settle(self) -> str | None:
        """Wait for the stream; what the driver says of a fault."""
        with run_on(self._device):
            return wait(self._stream)


class _Block:
    """Memory of the driver's own."""

    def __init__(self, size_bytes: int, device: int) -> None:
        self._device = device
        with run_on(device), beside_captures():
            (pointer,) = checked("allocate memory", driver.cuMemAlloc(size_bytes))
        self.pointer = int(pointer)

    def __del__(self) -> None:
        # At interpreter exit the driver may be gone already, and frees everything by itself.
        if getattr(self, "pointer", 0) and not sys.is_finalizing():
            with run_on(self._device), beside_captures():
                driver.cuMemFree(self.pointer)


def write(pointer: int, data: bytes, device: int) -> None:
    """Put bytes into memory of a device."""
    if data:
        with run_on(device):
            checked("write an array", driver.cuMemcpyHtoD(pointer, data, len(data)))
