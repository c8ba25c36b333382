"""The form of a trace: look-ups in, blocks of bytes out, and back.

A trace is a sequence of blocks, each whole in itself: a head with a checksum, and compressed below it two columns
(which kernel was used, and when) and the rarer records between them as JSON. Processes append blocks to one file, in
whatever order; each has a *stream* of its own, in which kernels have numbers from their first mention on. So a reader
that finds a block missing knows nothing of what follows in that stream, and keeps what came before.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cuplate.errors import CacheError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Encoder", "Facts", "Kernel", "Note", "Process", "Record", "Trace", "is_trace", "read_trace"]

Kernel: TypeAlias = tuple[bytes, int]
"""What the memory tier keeps a kernel under: content key and device."""

Facts: TypeAlias = dict[str, Any]
"""What a trace tells of a kernel: ``function``, ``parameters``, ``arch``, ``compile_s``, ``code_bytes``."""

Note: TypeAlias = tuple[Kernel | dict[str, Any], float]
"""One thing that happened, and when (seconds since the epoch): a kernel that was used, or a record."""

_MAGIC = b"CUPTRC\x00\x01"  # the last byte is the version
_HEAD = struct.Struct("<8s8sIII")  # magic, stream, number of the block in it, length and checksum of the rest
_LENGTHS = struct.Struct("<II")  # bytes of the JSON, and rows of the columns: 4 bytes a kernel, 8 bytes a time
_LEVEL = 1  # of zlib; a higher one takes a tenth less room and three times as long
_LARGEST_BYTES = 64 << 20  # of a block, unpacked: more was planted


class Encoder:
    """One stream: what happened in a process, from the start of its recording on."""

    def __init__(self) -> None:
        self.stream = os.urandom(8)
        self._number = 0
        self._known: dict[Kernel, int] = {}

    def block(self, notes: Sequence[Note]) -> bytes:
        """The next block of the stream.

        Parameters
        ----------
        notes : sequence of Note
            In order, at least one.

        Returns
        -------
        bytes
            To be written at once.
        """
        known, start = self._known, notes[0][1]
        new: list[tuple[str, int]] = []
        records: list[tuple[int, int, dict[str, Any]]] = []
        numbers, delays = array("I"), array("q")
        for what, at in notes:
            delay_ms = int((at - start) * 1e3)
            if type(what) is dict:
                records.append((len(numbers), delay_ms, what))
                continue
            number = known.get(what)  # type: ignore[arg-type]
            if number is None:
                number = known[what] = len(known)  # type: ignore[index]
                new.append((what[0].hex(), what[1]))  # type: ignore[index]
            numbers.append(number)
            delays.append(delay_ms)
        text = json.dumps({"at": start, "new": new, "records": records}, separators=(",", ":")).encode()
        body = b"".join((_LENGTHS.pack(len(text), len(numbers)), text, numbers.tobytes(), delays.tobytes()))
        packed = zlib.compress(body, _LEVEL)
        head = _HEAD.pack(_MAGIC, self.stream, self._number, len(packed), zlib.crc32(packed))
        self._number += 1
        return head + packed


# ---- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that is no plain use.

    Attributes
    ----------
    position : int
        Uses of its process that came before it.
    at : float
        Seconds since the epoch.
    what : str
        ``start``, ``resident``, ``kept``, ``missed``, ``got``, ``put``, ``deleted``, ``cleared``, ``dropped``,
        ``shut``, ``opened``, ``end``; see `cuplate.cache.recording`.
    told : dict
        The rest.
    """

    position: int
    at: float
    what: str
    told: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Process:
    """What one process looked up, in order.

    Attributes
    ----------
    start : dict
        Its ``start`` record: ``pid``, and the ``policy`` in force.
    kernels : tuple of Kernel
        By their numbers.
    uses : array of int32, shape (n,)
        Numbers of the kernels that were used.
    at : array of float64, shape (n,)
        When, seconds since the epoch, to the millisecond.
    records : tuple of Record
    """

    start: dict[str, Any]
    kernels: tuple[Kernel, ...]
    uses: npt.NDArray[np.int32]
    at: npt.NDArray[np.float64]
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What was read of one or more files.

    Attributes
    ----------
    processes : tuple of Process
        In the order of their starts.
    damage : tuple of str
        What could not be read; empty for a whole trace.
    """

    processes: tuple[Process, ...]
    damage: tuple[str, ...] = ()


def read_trace(*sources: str | os.PathLike[str] | bytes) -> Trace:
    """The whole part of a trace; what is damaged or cut is passed over, and said in `Trace.damage`.

    Parameters
    ----------
    *sources : path or bytes
        Files as `cuplate.cache.record` writes them, or what stands in one.

    Returns
    -------
    Trace

    Raises
    ------
    CacheError
        A file cannot be opened, or there is no whole block in any.
    """
    streams: dict[bytes, _Stream] = {}
    damage: list[str] = []
    for source in sources:
        name = "the trace" if isinstance(source, bytes) else os.fspath(source)
        for stream, number, body in _blocks(_bytes_of(source), name, damage):
            try:
                streams.setdefault(stream, _Stream()).add(number, body)
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error) as error:
                damage.append(f"{name}: a block cannot be read ({type(error).__name__}: {error})")
    processes = [stream.process() for stream in streams.values() if stream.start is not None]
    lost = sum(stream.lost for stream in streams.values())
    if lost:
        damage.append(f"{lost} blocks follow a lost one of their process, and are left out")
    if not processes:
        raise CacheError(
            "there is no trace to read.",
            given=", ".join("bytes" if isinstance(s, bytes) else os.fspath(s) for s in sources) or "nothing",
            allowed="a file that cuplate.cache.record() or CUPLATE_TRACE has written, of this version",
            found="; ".join(damage) or "no block",
        )
    return Trace(tuple(sorted(processes, key=lambda process: process.start["at"])), tuple(damage))


def is_trace(beginning: bytes) -> bool:
    """Whether a file that begins so is a trace, or empty."""
    return not beginning or beginning.startswith(_MAGIC)


def _bytes_of(source: str | os.PathLike[str] | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        with open(source, "rb") as file:
            return file.read()
    except OSError as error:
        raise CacheError("a trace cannot be read.", file=os.fspath(source), reason=error.strerror) from None


def _blocks(data: bytes, name: str, damage: list[str]) -> Iterator[tuple[bytes, int, bytes]]:
    """Stream, number and unpacked body of every whole block; after a damaged one, from the next magic on."""
    at = 0
    while at < len(data):
        head = data[at : at + _HEAD.size]
        reason = "cut"
        if len(head) == _HEAD.size:
            magic, stream, number, length, checksum = _HEAD.unpack(head)
            packed = data[at + _HEAD.size : at + _HEAD.size + length]
            if magic != _MAGIC:
                reason = "no block of this version"
            elif len(packed) == length:
                body = _unpacked(packed) if zlib.crc32(packed) == checksum else None
                if body is not None:
                    yield stream, number, body
                    at += _HEAD.size + length
                    continue
                reason = "damaged"
        following = data.find(_MAGIC, at + 1)
        following = len(data) if following < 0 else following
        damage.append(f"{name}: {following - at} bytes from byte {at} on are left out: {reason}")
        at = following


def _unpacked(packed: bytes) -> bytes | None:
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(packed, _LARGEST_BYTES)
    except zlib.error:
        return None
    return body if unpacker.eof else None


@dataclass(slots=True)
class _Stream:
    """One process's blocks, put together again."""

    start: dict[str, Any] | None = None
    kernels: list[Kernel] = field(default_factory=list)
    uses: list[npt.NDArray[np.int32]] = field(default_factory=list)
    at: list[npt.NDArray[np.float64]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    number: int = 0
    position: int = 0
    lost: int = 0

    def add(self, number: int, body: bytes) -> None:
        """The next block; one that follows a gap is counted and left out."""
        import numpy as np

        if number != self.number:
            self.lost += 1
            return
        self.number = -1  # should this one turn out to be damaged
        text_bytes, count = _LENGTHS.unpack_from(body)
        columns = _LENGTHS.size + text_bytes
        told = json.loads(body[_LENGTHS.size : columns])
        kernels = [(bytes.fromhex(key), int(device)) for key, device in told["new"]]
        uses = np.frombuffer(body, "<u4", count, columns).astype(np.int32)
        at = np.frombuffer(body, "<i8", count, columns + 4 * count) * 1e-3 + float(told["at"])
        if count and not 0 <= int(uses.min()) <= int(uses.max()) < len(self.kernels) + len(kernels):
            raise ValueError("a kernel has no name")
        records = list(self._records(told["records"], float(told["at"])))
        if self.start is None:
            first = records[0]
            self.start = {**first.told, "at": first.at}
        self.kernels += kernels
        self.uses.append(uses)
        self.at.append(at)
        self.records += records
        self.position += count
        self.number = number + 1

    def _records(self, told: Iterable[Any], start: float) -> Iterator[Record]:
        for position, delay_ms, record in told:
            what = str(record.pop("what"))
            yield Record(self.position + int(position), start + int(delay_ms) * 1e-3, what, record)

    def process(self) -> Process:
        import numpy as np

        uses = np.concatenate(self.uses) if self.uses else np.empty(0, np.int32)
        at = np.concatenate(self.at) if self.at else np.empty(0)
        return Process(self.start or {}, tuple(self.kernels), uses, at, tuple(self.records))
