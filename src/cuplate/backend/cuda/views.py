"""Arrays of any library that exports them by DLPack, through cuda.core's `StridedMemoryView`."""

from __future__ import annotations

from collections import deque
from typing import Any

from cuplate.backend.cuda import importing

with importing:
    from cuda.core.utils import StridedMemoryView

__all__ = ["hold", "order", "view_of"]

NO_ORDER = -1  # to an exporter: do not make any stream wait
LEGACY_STREAM = 1  # DLPack's name for stream 0, which it forbids


def view_of(array: Any) -> StridedMemoryView:
    """`array` as memory: pointer, shape, strides in elements, dtype, device. Orders nothing.

    Raises
    ------
    Exception
        Whatever the exporter raises for an array that it cannot export.
    """
    return StridedMemoryView.from_dlpack(array, stream_ptr=NO_ORDER)


def order(array: Any, stream: int) -> None:
    """Make `stream` wait until the data of `array` is there, as its exporter knows.

    Parameters
    ----------
    array : object
        With ``__dlpack__``, on a GPU.
    stream : int
        Pointer; 0 for the legacy default stream.
    """
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
