"""Tells a checked image which memory a launch may use, and turns what it found into reports.

The structures are those of ``shim/checker.cpp``. Shadow memory is one reservation per process and launch at a time, of
which only touched pages cost anything: up to 24 bytes for each element of an array that the kernel may write, and of
shared memory. It is never cleared: the checker's clock never falls, so what an earlier launch left is old.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import mmap
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cuplate.backend.cpu.reports import Other, Report
from cuplate.backend.cpu.symbols import Image
from cuplate.cache import fork

__all__ = ["Checker", "Watch"]

_SHARED, _UNDEFINED, _READ_ONLY, _DYNAMIC, _THREAD, _IMAGE = 1, 2, 4, 8, 16, 32
_OURS = 0xFFFFFFFF  # id of a range that is the runtime's own
_KINDS = (
    "",
    "out of bounds",
    "data race",
    "uninitialised read",
    "misaligned",
    "write to const",
    "index out of range",
    "division by zero",
    "shift out of range",
    "never written",
)
_WRITE, _ATOMIC, _VOLATILE = 1, 2, 4

_CELL_BYTES = 24
_REPORTS = 256
_OWN_REGIONS = 8  # that the runtime adds
_MAX_BLOCKS = 1 << 20  # whose time of running is kept; more do not end within any sensible budget
_MAX_THREADS = 1 << 24
_KEPT_BYTES = 64 << 20  # shadow memory that stays mapped between launches
_LAST_TIME = 0xC0000000  # start over before the clock ends
_FAR_BYTES = 1 << 20  # an access further than this from an array has nothing to do with it


class _Array(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def pointer(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def written(self) -> bool: ...
    @property
    def fresh(self) -> bool: ...


class _Region(C.Structure):
    _fields_ = (
        ("low", C.c_uint64),
        ("bytes", C.c_uint64),
        ("cells", C.c_uint64),
        ("shift", C.c_uint),
        ("flags", C.c_uint),
        ("since", C.c_uint),
        ("defined_since", C.c_uint),
        ("id", C.c_uint),
        ("plain", C.c_uint),
        ("ends", C.c_uint64 * 5),
    )


class _Place(C.Structure):
    _fields_ = (
        ("pc", C.c_uint64),
        ("file", C.c_char_p),
        ("line", C.c_uint),
        ("column", C.c_uint),
        ("block", C.c_uint64),
        ("thread", C.c_uint),
        ("access", C.c_uint),
    )


class _Report(C.Structure):
    _fields_ = (
        ("kind", C.c_uint),
        ("bytes", C.c_uint),
        ("address", C.c_uint64),
        ("offset", C.c_int64),
        ("region", C.c_uint),
        ("first_look", C.c_uint),
        ("count", C.c_uint64),
        ("here", _Place),
        ("other", _Place),
        ("text", C.c_char * 64),
    )


class _CheckLaunch(C.Structure):
    _fields_ = (
        ("regions", C.c_uint64),
        ("region_count", C.c_uint64),
        ("reports", C.c_uint64),
        ("report_capacity", C.c_uint64),
        ("report_count", C.c_uint64),
        ("dropped", C.c_uint64),
        ("blocks", C.c_uint64),
        ("block_capacity", C.c_uint64),
        ("thread_fences", C.c_uint64),
        ("thread_capacity", C.c_uint64),
        ("anchor", C.c_uint64),
        ("data_low", C.c_uint64),
        ("data_high", C.c_uint64),
        ("full", C.c_uint),
        ("now", C.c_uint),
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """A region, and what Python knows of it."""

    name: str
    memory: str
    low: int
    size_bytes: int
    itemsize: int
    shape: tuple[int, ...]
    flags: int
    symbol: int = -1  # index in Image.variables
    arrays: tuple[_Array, ...] = ()


class _Shadow:
    """Memory that the checker keeps its notes in, and the clock that makes old notes old."""

    def __init__(self) -> None:
        self.now = 1
        self.touched = 0
        self.blocks = _Reservation(_MAX_BLOCKS * 16)
        self.thread_fences = _Reservation(_MAX_THREADS * 4)
        self.cells = _Reservation(_KEPT_BYTES)
        self.regions = (_Region * 64)()
        self.reports = (_Report * _REPORTS)()

    def room(self, cells: int, regions: int) -> None:
        """Room for a launch; fresh memory where there is too little."""
        if self.cells.size < cells * _CELL_BYTES:
            self.cells = _Reservation(cells * _CELL_BYTES)
        if len(self.regions) < regions:
            self.regions = (_Region * (2 * regions))()

    def trim(self, touched: int) -> bool:
        """Gives large memory back; False: this shadow must not be used again."""
        if touched * _CELL_BYTES > _KEPT_BYTES:
            self.cells = _Reservation(_KEPT_BYTES)
        return self.now < _LAST_TIME


class _Reservation:
    """Zeroed memory of which untouched pages cost nothing."""

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        flags |= getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
        self._memory = mmap.mmap(-1, self.size, flags=flags)
        self._pin = C.c_char.from_buffer(self._memory)
        self.address = C.addressof(self._pin)


class Watch:
    """One launch under the checker's eyes.

    Attributes
    ----------
    reports : tuple of Report
        What was found, in the order of finding; set when the launch is over.
    """

    def __init__(self) -> None:
        self.reports: tuple[Report, ...] = ()


class Checker:
    """The checker of one loaded image.

    Parameters
    ----------
    data : bytes
        The image.
    library : ctypes.CDLL
        The same, loaded.
    """

    def __init__(self, data: bytes, library: C.CDLL) -> None:
        self._image = Image(data)
        self._check = library.cuplate_check
        self._check.argtypes = (C.c_void_p,)
        self._check.restype = None
        self._lock = threading.RLock()  # the image's checker has one state
        self._owner = 0
        fork.register(self)

    @property
    def interrupted(self) -> bool:
        """Whether this very thread is within `watch`, so that a handler of a signal asks."""
        return self._owner == threading.get_ident()

    def before_fork(self) -> None:
        """Nothing: a launch of another thread may take long."""

    def after_fork(self, *, child: bool) -> None:
        """A child begins anew: the thread that was launching is gone."""
        if child and not self.interrupted:
            self._lock, self._owner = threading.RLock(), 0

    @contextlib.contextmanager
    def watch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arrays: Sequence[_Array],
        *,
        full: bool,
        private: Sequence[tuple[int, int]] = (),
    ) -> Iterator[Watch]:
        """Run the launch inside of this; then `Watch.reports` says what was found.

        Parameters
        ----------
        grid, block : tuple of int, (x, y, z)
        shared_bytes : int
            Dynamic shared memory of a block.
        arrays : sequence of ArrayArgument
            All memory of the caller that the kernel may touch. Arrays may overlap.
        full : bool
            False: only bounds, alignment and writes to const.
        private : sequence of (address, bytes)
            Memory of the launcher that instrumented code reads: where the arguments are.
        """
        watch = Watch()
        with self._lock, _borrowed() as shadow:
            known = _merged(arrays) + self._own(shared_bytes)
            launch = _CheckLaunch(full=full, now=shadow.now, report_capacity=_REPORTS)
            touched = _lay_out(shadow, launch, known, private, full)
            launch.reports = C.addressof(shadow.reports)
            launch.blocks, launch.thread_fences = shadow.blocks.address, shadow.thread_fences.address
            launch.block_capacity, launch.thread_capacity = _MAX_BLOCKS, _MAX_THREADS
            launch.anchor = self._image.anchor
            launch.data_low, launch.data_high = self._image.writable
            self._owner = threading.get_ident()
            try:
                self._check(C.addressof(launch))
                yield watch
            finally:
                self._check(None)
                self._owner = 0
                shadow.now = max(shadow.now, launch.now)
                decode = _Decoder(self._image, known, grid, block)
                found = [decode(shadow.reports[i]) for i in range(launch.report_count)]
                watch.reports = _distinct(found, launch.dropped)
                shadow.touched = touched

    def _own(self, shared_bytes: int) -> list[_Known]:
        """What the kernel's source brings along: its variables, and dynamic shared memory."""
        found = []
        for number, variable in enumerate(self._image.variables):
            memory = "shared" if variable.shared else "global"
            flags = _SHARED | _UNDEFINED | _THREAD if variable.shared else _IMAGE
            if variable.guard:
                memory, flags = "", _THREAD | _READ_ONLY  # without cells, and nobody's
            found.append(_Known(variable.name, memory, variable.offset, variable.size_bytes, 0, (), flags, number))
        if shared_bytes:
            flags = _SHARED | _UNDEFINED | _DYNAMIC
            found.append(_Known("dynamic shared memory", "dynamic shared", 0, shared_bytes, 0, (), flags))
        return found


_idle: list[_Shadow] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # private memory is copied page by page: rather start anew


@contextlib.contextmanager
def _borrowed() -> Iterator[_Shadow]:
    try:
        shadow = _idle.pop()
    except IndexError:
        shadow = _Shadow()
    shadow.touched = 0
    try:
        yield shadow
    finally:
        if shadow.trim(shadow.touched):
            _idle.append(shadow)


def _merged(arrays: Sequence[_Array]) -> list[_Known]:
    """Regions of the arguments: arrays that overlap are one, for an access that one of them allows is allowed."""
    found: list[_Known] = []
    for array in sorted(arrays, key=lambda a: (a.pointer, -a.size_bytes)):
        last = found[-1] if found else None
        if last is not None and array.pointer < last.low + last.size_bytes:
            both = (*last.arrays, array)
            end = max(last.low + last.size_bytes, array.pointer + array.size_bytes)
            itemsize = min(a.itemsize for a in both)
            found[-1] = replace(last, size_bytes=end - last.low, itemsize=itemsize, flags=_flags(both), arrays=both)
        else:
            one = (array,)
            found.append(
                _Known(
                    array.name,
                    "argument",
                    array.pointer,
                    array.size_bytes,
                    array.itemsize,
                    array.shape,
                    _flags(one),
                    arrays=one,
                )
            )
    return found


def _flags(arrays: tuple[_Array, ...]) -> int:
    flags = 0 if any(array.written for array in arrays) else _READ_ONLY
    # With an argument that overlaps, something is in it.
    return flags | (_UNDEFINED if len(arrays) == 1 and arrays[0].fresh else 0)


def _lay_out(
    shadow: _Shadow, launch: _CheckLaunch, known: Sequence[_Known], private: Sequence[tuple[int, int]], full: bool
) -> int:
    """Fills the table of regions; returns how many cells may be touched."""
    watched = [full and not region.flags & _READ_ONLY for region in known]
    # A cell per byte at most: the checker refines where small accesses turn up.
    room = sum(region.size_bytes + 1 for region, wanted in zip(known, watched, strict=True) if wanted)
    shadow.room(room, len(known) + len(private) + _OWN_REGIONS)
    table = shadow.regions
    at = shadow.cells.address
    touched = 0
    for number, (region, wanted) in enumerate(zip(known, watched, strict=True)):
        shift = _shift(region)
        table[number] = _Region(region.low, region.size_bytes, at if wanted else 0, shift, region.flags, 0, 0, number)
        if not region.memory:
            table[number].flags, table[number].id = region.flags & ~_READ_ONLY, _OURS
        if wanted:
            at += (region.size_bytes + 1) * _CELL_BYTES
            touched += (region.size_bytes >> shift) + 1
    for number, (low, size) in enumerate(private, len(known)):
        table[number] = _Region(low, size, 0, 0, 0, 0, 0, _OURS)
    launch.regions = C.addressof(table)
    launch.region_count = len(known) + len(private)
    return touched


def _shift(region: _Known) -> int:
    """log2 of the bytes that a cell stands for: those of an element, if the array is aligned to it."""
    unit = region.itemsize or 4
    unit = min(unit & -unit, 8)
    if region.low:
        unit = min(unit, region.low & -region.low)
    return unit.bit_length() - 1


def _distinct(reports: Sequence[Report], dropped: int) -> tuple[Report, ...]:
    """One report for each pair of lines: unrolled and inlined code has several instructions of one line."""
    found: dict[object, Report] = {}
    for report in reports:
        other = report.other
        lines = [(report.file, report.line)] + ([(other.file, other.line)] if other else [])
        key = (report.kind, report.array, *sorted(lines))
        first = found.get(key)
        found[key] = report if first is None else replace(first, count=first.count + report.count)
    known = tuple(found.values())
    if dropped:
        known += (Report("more", "", 0, "", None, (), 0, None, None, "", 0, count=dropped),)
    return known


class _Decoder:
    """Turns the checker's records into reports."""

    def __init__(
        self, image: Image, known: Sequence[_Known], grid: tuple[int, int, int], block: tuple[int, int, int]
    ) -> None:
        self._image, self._known, self._grid, self._block = image, known, grid, block

    def __call__(self, record: _Report) -> Report:
        kind = _KINDS[record.kind]
        file, line = self._line(record.here)
        name, memory, index, elements, shape = self._element(record)
        detail = _type_name(record.text.decode("utf-8", "replace"))
        if kind in ("index out of range", "division by zero", "shift out of range"):
            index = _signed(record.address)
        if kind == "index out of range":
            name, shape = self._indexed(record, detail)
        somebody = kind != "never written"
        thread = _coordinates(record.here.thread, self._block) if somebody else None
        block = _coordinates(record.here.block, self._grid) if somebody else None
        other = self._other(record) if kind == "data race" else None
        same_block = other is not None and other.block == block
        return Report(
            kind=kind,
            access=_access(record.here.access),
            size_bytes=record.bytes,
            array=name,
            index=index,
            shape=shape,
            elements=elements,
            thread=thread,
            block=block,
            file=file,
            line=line,
            column=record.here.column or self._column(record.here),
            memory=memory,
            address=record.address,
            detail=detail,
            other=other,
            same_warp=same_block and record.here.thread // 32 == record.other.thread // 32,
            count=record.count,
        )

    def _other(self, record: _Report) -> Other:
        file, line = self._line(record.other)
        unknown = record.other.block == 0xFFFFFFFFFFFFFFFF
        block = None if unknown else _coordinates(record.other.block, self._grid)
        return Other(_access(record.other.access), _coordinates(record.other.thread, self._block), block, file, line)

    def _line(self, place: _Place) -> tuple[str, int]:
        file = place.file.decode("utf-8", "replace") if place.file else ""
        if file and _SHIM not in file:
            return file, place.line
        return self._image.line(place.pc - 1, _SHIM) if place.pc else ("", 0)

    def _column(self, place: _Place) -> int:
        return self._image.column(place.pc - 1, _SHIM) if place.pc else 0

    def _indexed(self, record: _Report, detail: str) -> tuple[str, tuple[int, ...]]:
        """Name and extents of the array of which a declared extent was left: the one in scope that has such rows."""
        extents = tuple(map(int, _EXTENTS.findall(detail)))
        arrays = self._image.arrays_at(record.here.pc - 1)
        fitting = [(name, shape) for name, shape in arrays.items() if extents and shape[-len(extents) :] == extents]
        return fitting[0] if len(fitting) == 1 else ("", extents)

    def _element(self, record: _Report) -> tuple[str, str, int | None, int, tuple[int, ...]]:
        """Name, memory, index, count of elements and shape."""
        if record.region == _OURS:
            return "", "", None, 0, ()
        region = self._known[record.region]
        offset, size = record.offset, region.size_bytes
        if not -_FAR_BYTES <= offset < size + _FAR_BYTES:
            return "", "", None, 0, ()
        if region.arrays:
            array = _meant(region.arrays, record.address)
            offset, size = record.address - array.pointer, array.size_bytes
            return array.name, "argument", offset // array.itemsize, size // array.itemsize, array.shape
        itemsize = record.bytes
        shape: tuple[int, ...] = ()
        if region.symbol >= 0:
            layout = self._image.layout(self._image.variables[region.symbol])
            if layout is not None:
                itemsize, shape = layout
        itemsize = itemsize or 1
        return region.name, region.memory, offset // itemsize, size // itemsize, shape


_SHIM = "cuplate/backend/cpu/shim/"  # wherever the package was when the image was built
_EXTENTS = re.compile(r"\[(\d+)\]")


def _meant(arrays: tuple[_Array, ...], address: int) -> _Array:
    """Of arrays that overlap, the smallest that has the address; else the first."""
    having = [a for a in arrays if a.pointer <= address < a.pointer + a.size_bytes]
    return min(having, key=lambda a: a.size_bytes) if having else arrays[0]


def _type_name(text: str) -> str:
    """A type without what compilers put around it: 'const struct float4' is float4, 'float[8]' is float [8]."""
    plain = re.sub(r"\b(const|volatile|struct|class|union) ", "", text.strip("'"))
    return re.sub(r"(\w)\[", r"\1 [", plain)


def _access(bits: int) -> str:
    if bits & _ATOMIC:
        return "atomic operation"
    word = "write" if bits & _WRITE else "read"
    return f"volatile {word}" if bits & _VOLATILE else word


def _coordinates(linear: int, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = extents
    return linear % x, linear // x % y, linear // x // y


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
