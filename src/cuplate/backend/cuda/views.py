"""Arrays of any library that exports them by DLPack, through cuda.core's `StridedMemoryView`."""

from __future__ import annotations

from collections import deque
from typing import Any

from cuplate.backend.cuda import importing
from cuplate.backend.cuda.device import is_capturing, run_on

with importing:
    from cuda.core import Device, Stream
    from cuda.core.utils import StridedMemoryView

__all__ = ["hold", "order", "view_of"]

ON_HOST = 1  # DLPack's number of a device without streams
NO_STREAM = -1
LEGACY_STREAM = 1  # DLPack's name for stream 0, which it forbids

_idle: dict[int, Stream] = {}


def _idle_stream(device: int) -> Stream:
    """A stream on which nothing ever runs: an export may make it wait."""
    stream = _idle.get(device)
    if stream is None:
        with run_on(device):
            stream = _idle[device] = Device(device).create_stream()
    return stream


def view_of(array: Any) -> StridedMemoryView:
    """`array` as memory: pointer, shape, strides in elements, dtype, device. Orders nothing, and waits for nothing.

    DLPack has -1 for an export without any order, but JAX takes that for the address of a stream, and without a stream
    it waits until the data is there. So one is given, which has nothing to do.

    Raises
    ------
    Exception
        Whatever the exporter raises for an array that it cannot export.
    """
    kind, number = array.__dlpack_device__()
    on_host = int(kind) == ON_HOST
    stream = NO_STREAM if on_host else int(_idle_stream(int(number)).handle)
    return StridedMemoryView.from_dlpack(array, stream_ptr=stream)


def order(array: Any, stream: int) -> None:
    """Make `stream` wait until the data of `array` is there, as its exporter knows.

    Not while a graph captures the stream: it may not wait for what is outside of the graph, whose inputs have to be
    there when it is replayed.

    Parameters
    ----------
    array : object
        With ``__dlpack__``, on a GPU.
    stream : int
        Pointer; 0 for the legacy default stream.
    """
    if not is_capturing(stream):
        StridedMemoryView.from_dlpack(array, stream_ptr=stream or LEGACY_STREAM)


_held: deque[tuple[Any, Any]] = deque()  # (event, views), oldest first
_kept: list[Any] = []


def hold(views: list[Any], stream: Any, *, capturing: bool) -> None:
    """Keep `views` until what has been enqueued on `stream` has run.

    An exporter may give memory away once nobody holds an export of it, in the order of its own streams, which know
    nothing of ours. What has run is let go at a later call.

    Parameters
    ----------
    views : list
        Of `view_of`.
    stream : cuda.core.Stream
    capturing : bool
        True for a launch that a graph captures: it may run at any time, so they are kept for good.
    """
    if capturing:
        _kept.append(views)
        return
    _held.append((stream.record(), views))
    for _ in range(len(_held)):
        event, old = _held.popleft()
        if not event.is_done:
            _held.appendleft((event, old))
            break
