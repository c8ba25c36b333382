"""What the tiers would have answered: a trace against any size and policy, look-up for look-up.

Memory keeps the most recently used, so one pass is enough for all sizes: a look-up is a hit in every tier that is at
least as large as the depth at which the kernel lies in the stack of all kernels (Mattson et al. 1970, Evaluation
techniques for storage hierarchies). A disk tier is played through once for each policy and size, with what memory of a
given size would have asked it: entries of any size, uses that are written down with the next put, entries that age.

For one process and one thread, recorded from its first look-up on, the answers are those of the real tiers. Where
several are at it, the order is that of the recorded times, and nobody waits for anybody's compile.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cuplate.cache.files import EXPIRE_EVERY_S, FOLDER
from cuplate.cache.folder import file_bytes
from cuplate.cache.touch import BY_USE, DUE_KEYS, DUE_S, MOST_TOUCHES
from cuplate.cache.trace import Facts, Kernel, Process, Record
from cuplate.config import UNLIMITED
from cuplate.seal import SEAL_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Asked", "Entry", "MemoryReplay", "Point", "Stream", "asked", "disk_bytes", "memory", "play", "read_stream"]

_NEVER = 0  # the depth of a kernel that has not been loaded: no size is enough
_EXPIRED_A_PUT = 64  # as in engine.py
_LARGEST_SHARE = 8  # an entry above this part of the limit is not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a tier of one policy and size comes to.

    Attributes
    ----------
    size : int
        Its limit: kernels of memory, bytes of the disk.
    hits, misses, puts, evictions : int
        As its counts would say; what a layer below a disk tier answers is a hit of it.
    refused : int
        Entries that were too large, or for which nothing may go.
    saved_s, spent_s : float
        Seconds of compiling that its hits spared, and its misses cost; for memory, as if no disk tier lay below it.
    """

    size: int
    hits: int
    misses: int
    puts: int
    evictions: int
    refused: int = 0
    saved_s: float = 0.0
    spent_s: float = 0.0

    @property
    def miss_ratio(self) -> float:
        """Misses of all look-ups, 0 to 1."""
        return self.misses / max(1, self.hits + self.misses)


# ---- from what was told to what was asked ----------------------------------------------------------------------------


@dataclass(slots=True)
class Entry:
    """What a trace tells of one content key.

    Attributes
    ----------
    payload_bytes : int
        What is stored, without its seal; 0 where nothing was stored or found.
    tag : str
    facts : dict
        See `cuplate.cache.trace.Facts`; empty for what is no kernel.
    place : str or None
        The folder of the disk tier that was asked for it.
    asked, put, layered : bool
        Whether a disk tier was asked for it at all; whether it was put there; whether a layer below has it.
    """

    payload_bytes: int = 0
    tag: str = ""
    facts: Facts = field(default_factory=dict)
    place: str | None = None
    asked: bool = False
    put: bool = False
    layered: bool = False

    @property
    def compile_s(self) -> float:
        """Seconds that its compile took."""
        return float(self.facts.get("compile_s", 0.0))


class Step(NamedTuple):
    """One thing between the uses of a process.

    Attributes
    ----------
    position : int
        Uses that came before it.
    at : float
        Seconds since the epoch.
    what : str
        Of memory: ``failed`` (a look-up after which nothing was loaded), ``dropped``, ``shut``, ``opened``. Of the
        disk: ``look`` (found, or else made and put), ``fail`` (found, or else nothing), both also ``quiet`` (a miss is
        not counted), ``put``, ``deleted``, ``cleared``.
    key : Kernel or bytes or None
    """

    position: int
    at: float
    what: str
    key: Any


@dataclass(frozen=True, slots=True)
class Stream:
    """One process, ready to be replayed.

    Attributes
    ----------
    process : Process
    resident : tuple of Kernel
        What was loaded when the recording began, least recently used first.
    steps : tuple of Step
        In order.
    threads : int
        Threads that have missed something.
    """

    process: Process
    resident: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    threads: int


class _Looks:
    """Puts together what belongs to one look-up; what is left over is a step of its own."""

    def __init__(self, process: Process, entries: dict[bytes, Entry]) -> None:
        self.process, self.entries = process, entries
        self.steps: list[Step] = []
        self.resident: list[Kernel] = []
        self.threads: set[int] = set()
        self._missed: dict[int, Step] = {}  # by thread: in memory, and not yet loaded
        self._got: dict[tuple[int, bytes], Step] = {}  # on disk, and not yet put

    def read(self) -> Stream:
        """The whole process."""
        position = 0
        for record in self.process.records:
            if self._missed and record.position > position:
                self._loaded(position, record.position)
            position = record.position
            self._take(record)
        self._loaded(position, len(self.process.uses))
        for thread in list(self._missed):
            self._give_up(thread)
        self.steps += self._got.values()
        self.steps.sort(key=lambda step: step.position)  # stable: those that were given up late belong further up
        return Stream(self.process, tuple(self.resident), tuple(self.steps), len(self.threads))

    def _loaded(self, first: int, last: int) -> None:
        """Look-ups that a use ends: what was missed is loaded now."""
        if self._missed:
            used = {self.process.kernels[number] for number in set(self.process.uses[first:last].tolist())}
            self._missed = {thread: step for thread, step in self._missed.items() if step.key not in used}

    def _take(self, record: Record) -> None:
        told = record.told
        key = bytes.fromhex(told["key"]) if "key" in told else b""
        entry = self.entries.setdefault(key, Entry()) if key else Entry()
        entry.facts = entry.facts or told.get("facts", {})
        kernel = key, told.get("device", 0)
        step = Step(record.position, record.at, record.what, kernel if key else None)
        if record.what == "resident":
            self.resident.append(kernel)
            entry.payload_bytes = entry.payload_bytes or entry.facts.get("bytes", 0)
        elif record.what == "missed":
            self.threads.add(told["thread"])
            self._give_up(told["thread"])
            self._missed[told["thread"]] = step
        elif record.what in ("dropped", "shut", "opened"):
            self.steps.append(step)
        elif record.what in ("got", "put", "deleted", "cleared"):
            self._take_disk(step._replace(key=key), entry, told)

    def _take_disk(self, step: Step, entry: Entry, told: Mapping[str, Any]) -> None:
        entry.place, entry.asked = told["place"], True
        entry.tag = told.get("tag", entry.tag)
        entry.payload_bytes = told.get("bytes", entry.payload_bytes)
        entry.put |= step.what == "put"
        entry.layered |= told.get("found") == "layer"
        thread = told["thread"]
        missed = self._missed.get(thread)
        waiting = thread, step.key
        if step.what == "cleared":
            self.steps.append(step._replace(key=_place_key(told["place"])))
        elif step.what == "deleted":
            self.steps.append(step)
        elif missed is not None and missed.key[0] == step.key:
            pass  # a part of that look-up: it is asked anew when memory is
        elif step.what == "put":
            got = self._got.pop(waiting, None)
            self.steps.append(step if got is None else step._replace(what=got.what.replace("fail", "look")))
        elif told["found"] is not None:
            got = self._got.pop(waiting, None)  # another process has stored it meanwhile
            quiet = told["again"] if got is None else got.what.startswith("quiet")
            self.steps.append(step._replace(what="quiet look" if quiet else "look"))
        elif not told["again"] or waiting not in self._got:  # else the second look of the same look-up
            before = self._got.pop(waiting, None)
            self.steps += [before] if before is not None else []
            self._got[waiting] = step._replace(what="quiet fail" if told["again"] else "fail")

    def _give_up(self, thread: int) -> None:
        missed = self._missed.pop(thread, None)
        if missed is not None:
            self.steps.append(missed._replace(what="failed"))


def _place_key(place: str | None) -> bytes:
    """In the stead of a key, for what is asked of a whole tier."""
    return (place or "").encode("utf-8", "surrogateescape")


def read_stream(process: Process, entries: dict[bytes, Entry]) -> Stream:
    """A process of a trace, its look-ups put together.

    Parameters
    ----------
    process : Process
    entries : dict of bytes to Entry
        Filled with what the process tells of its keys.
    """
    return _Looks(process, entries).read()


# ---- memory ----------------------------------------------------------------------------------------------------------


class _Stack:
    """All kernels by their last use: a tier of n kernels holds the last n.

    A kernel that was dropped leaves its place, as room, to the tiers that held it, and to them only.
    """

    def __init__(self) -> None:
        self.removed: list[int] = []  # depths from which kernels were dropped
        self._now = 0
        self._last: dict[Kernel, int] = {}  # when each was used last
        self._places: list[int] = []  # all of these times, and those of the room, rising
        self._room: list[int] = []  # rising
        self._shut = 0
        self._pending: dict[Kernel, None] = {}  # used while nothing is evicted

    def __contains__(self, kernel: Kernel) -> bool:
        return kernel in self._last

    def use(self, kernel: Kernel) -> int:
        """The depth of a kernel, from 1; it is on top from now on."""
        if not self._shut:
            return self._move(kernel)
        if kernel in self._pending:
            del self._pending[kernel]
            self._pending[kernel] = None
            return 1  # no size is too small
        self._pending[kernel] = None
        return self._depth(kernel) if kernel in self._last else _NEVER

    def _depth(self, kernel: Kernel) -> int:
        return len(self._places) - bisect_left(self._places, self._last[kernel])

    def _move(self, kernel: Kernel) -> int:
        places, room = self._places, self._room
        last = self._last.get(kernel, 0)
        depth = self._depth(kernel) if last else _NEVER
        if room and room[-1] > last:  # filled in the tiers between, and left where the kernel was
            del places[bisect_left(places, room.pop())]
            if last:
                insort(room, last)
        elif last:
            del places[-depth]
        self._now += 1
        places.append(self._now)
        self._last[kernel] = self._now
        return depth

    def drop(self, kernel: Kernel) -> None:
        """Take a kernel out."""
        depth = _NEVER
        if kernel in self._last:
            depth = self._depth(kernel)
            insort(self._room, self._last.pop(kernel))
        if kernel in self._pending:
            del self._pending[kernel]
            depth = 1  # every tier has it
        if depth:
            self.removed.append(depth)

    def clear(self) -> None:
        """Take all out."""
        self.removed += [1] * len(self._pending)
        self.removed += [self._depth(kernel) for kernel in self._last if kernel not in self._pending]
        for kept in (self._last, self._places, self._room, self._pending):
            kept.clear()

    def shut(self) -> None:
        """From now on nothing is evicted."""
        self._shut += 1

    def opened(self) -> None:
        """And now what has piled up is."""
        self._shut = max(0, self._shut - 1)
        if not self._shut:
            for kernel in self._pending:
                self._move(kernel)
            self._pending.clear()


@dataclass(frozen=True, slots=True)
class MemoryReplay:
    """One process's memory at every size.

    Attributes
    ----------
    stream : Stream
    depths : array of int32, shape (n,)
        By use: the smallest tier that has the kernel, kernels; 0 for none.
    failed : tuple of (Step, int)
        Look-ups after which nothing was loaded, each with the kernel's depth.
    removed : array of int64
        Depths from which kernels were dropped or cleared, and those of what is there at the end.
    """

    stream: Stream
    depths: npt.NDArray[np.int32]
    failed: tuple[tuple[Step, int], ...]
    removed: npt.NDArray[np.int64]

    def point(self, kernels: int, compile_s: npt.NDArray[np.float64]) -> Point:
        """What a tier of this size comes to.

        Parameters
        ----------
        kernels : int
        compile_s : array of float64
            By the kernels' numbers.
        """
        found = (self.depths > _NEVER) & (self.depths <= kernels)
        each = compile_s[self.stream.process.uses]
        hits, saved_s = int(found.sum()), float(each[found].sum())
        puts = len(found) - hits
        also = sum(_NEVER < depth <= kernels for _, depth in self.failed)
        put = puts + sum(depth > kernels for _, depth in self.failed) + min(kernels, len(self.stream.resident))
        return Point(
            size=kernels,
            hits=hits + also,
            misses=puts + len(self.failed) - also,
            puts=puts,
            evictions=put - int((self.removed <= kernels).sum()),
            saved_s=saved_s,
            spent_s=float(each.sum()) - saved_s,
        )


def memory(stream: Stream) -> MemoryReplay:
    """The depth of every look-up of a process."""
    import numpy as np

    process, stack = stream.process, _Stack()
    for kernel in stream.resident:
        stack.use(kernel)
    depths = np.zeros(len(process.uses), np.int32)
    failed: list[tuple[Step, int]] = []
    position = 0
    for step in (*stream.steps, Step(len(depths), 0.0, "end", None)):
        _use(stack, process, depths, position, step.position)
        position = step.position
        if step.what == "failed":
            # Where it lies in some tier after all, it would be found there, and is taken for loaded in the others too.
            failed.append((step, stack.use(step.key) if step.key in stack else _NEVER))
        elif step.what == "dropped" and step.key is not None:
            stack.drop(step.key)
        elif step.what == "dropped":
            stack.clear()
        elif step.what == "shut":
            stack.shut()
        elif step.what == "opened":
            stack.opened()
    stack.clear()
    return MemoryReplay(stream, depths, tuple(failed), np.array(stack.removed, np.int64))


def _use(stack: _Stack, process: Process, depths: npt.NDArray[np.int32], first: int, last: int) -> None:
    """Uses from one position to another; of a kernel used again at once, the depth is 1."""
    import numpy as np

    if first == last:
        return
    uses, kernels = process.uses[first:last], process.kernels
    depths[first:last] = 1
    changes = np.flatnonzero(uses[1:] != uses[:-1]) + 1
    for place in (0, *changes.tolist()):
        depths[first + place] = stack.use(kernels[uses[place]])


# ---- disk ------------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """One operation on a disk tier.

    Attributes
    ----------
    at : float
        Seconds since the epoch.
    process : int
    what : str
        As in `Step`, or ``end``, of the process.
    key : bytes
    """

    at: float
    process: int
    what: str
    key: bytes


def asked(replays: Iterable[MemoryReplay], entries: Mapping[bytes, Entry], kernels: int) -> list[Asked]:
    """What a disk tier is asked by processes that keep so many kernels in memory.

    Parameters
    ----------
    replays : iterable of MemoryReplay
    entries : mapping of bytes to Entry
    kernels : int
        Limit of memory.

    Returns
    -------
    list of Asked
        In order; of several processes by the time.
    """
    each = [list(_asked_by(number, replay, entries, kernels)) for number, replay in enumerate(replays)]
    return each[0] if len(each) == 1 else list(heapq.merge(*each, key=lambda operation: operation.at))


def _asked_by(number: int, replay: MemoryReplay, entries: Mapping[bytes, Entry], kernels: int) -> Iterator[Asked]:
    import numpy as np

    stream = replay.stream
    process = stream.process
    missed = np.flatnonzero((replay.depths == _NEVER) | (replay.depths > kernels))
    loads = ((int(i), float(process.at[i]), "look", process.kernels[process.uses[i]][0]) for i in missed)
    failed = {id(step): depth for step, depth in replay.failed}
    steps = []
    for step in stream.steps:
        if step.what == "failed" and not 1 <= failed[id(step)] <= kernels:
            steps.append((step.position, step.at, "fail", step.key[0]))
        elif step.what not in ("failed", "dropped", "shut", "opened"):
            steps.append((step.position, step.at, step.what, step.key))
    at = 0.0
    # A step at a position comes before the use there.
    for _, at, what, key in heapq.merge(steps, loads, key=lambda item: item[0]):
        if what == "cleared" or ((entry := entries.get(key)) is not None and entry.asked):  # else it is never stored
            yield Asked(at, number, what, key)
    yield Asked(max(at, float(process.at[-1]) if len(process.at) else at), number, "end", b"")


def disk_bytes(key: bytes, entry: Entry, place: str | None) -> int:
    """What an entry counts for in a disk tier, bytes.

    Parameters
    ----------
    key : bytes
    entry : Entry
    place : str or None
        The tier's folder, whose name tells the engine.
    """
    blob_bytes = entry.payload_bytes + SEAL_BYTES
    return file_bytes(key, entry.tag, blob_bytes) if _is_files(place) else blob_bytes


def _is_files(place: str | None) -> bool:
    return (place or "").endswith(FOLDER)


def _note(touches: dict[bytes, int], key: bytes, times: int) -> None:
    touches[key] = times
    if len(touches) > MOST_TOUCHES:
        del touches[next(iter(touches))]


class _Disk:
    """`cuplate.cache.disk.DiskTier` without a disk: rows in the order of their puts, and in the order of the policy."""

    def __init__(
        self, sizes: Mapping[bytes, int], limit_bytes: int, eviction: str, time_to_live_s: float, processes: int
    ) -> None:
        self.sizes, self.limit, self.eviction, self.ttl_s = sizes, limit_bytes, eviction, time_to_live_s
        self.total = self.evictions = self.puts = self.refused = 0
        self.rows: OrderedDict[bytes, float] = OrderedDict()  # key -> when it was put
        self._touches: list[dict[bytes, int]] = [{} for _ in range(processes)]
        self._since = [0.0] * processes
        self._used: OrderedDict[bytes, None] = OrderedDict()
        self._ranks: dict[bytes, tuple[int, int]] = {}  # how often, and when, counted in events
        self._heap: list[tuple[tuple[int, int], bytes]] = []
        self._events = 0
        self._latest = 0.0

    def get(self, process: int, key: bytes, at: float) -> bool:
        """Whether it is found; a use is noted."""
        stored = self.rows.get(key)
        if stored is None or self._is_old(stored, at):
            return False
        if self.eviction in BY_USE:
            touches = self._touches[process]
            if not touches:
                self._since[process] = at
            _note(touches, key, touches.pop(key, 0) + 1)
        return True

    def _is_old(self, stored: float, at: float) -> bool:
        return not stored > at - self.ttl_s

    def put(self, process: int, key: bytes, blob_bytes: int, at: float) -> None:
        """Store it, if it may be stored; others leave for it."""
        if blob_bytes > self.limit // _LARGEST_SHARE or not self._make_room(key, blob_bytes, at):
            self.refused += 1
            return
        self.remove(key)
        touches = self._touches[process]
        due = len(touches) >= DUE_KEYS or at - self._since[process] >= DUE_S
        touches.pop(key, None)  # a row that is stored anew has no past
        self._insert(key, at)
        self._expire(at, key)
        if touches and (due or self.total > self.limit):
            self.flush(process)
            self._rank(key, 0)
        elif touches:
            _note(touches, key, 0)
        self._evict(key)
        self.puts += 1

    def _evict(self, spared: bytes) -> None:
        while self.total > self.limit and (victim := self._first(spared)) is not None:
            self.remove(victim)
            self.evictions += 1

    def _make_room(self, key: bytes, blob_bytes: int, at: float) -> bool:
        """Whether it fits where nothing may be evicted; if not, nothing changes."""
        excess = self.total + (0 if key in self.rows else self.sizes[key]) - self.limit
        if self.eviction != "none" or excess <= 0:
            return True
        old = [other for other in self._expired(at) if other != key]
        if sum(map(self.sizes.__getitem__, old[:_EXPIRED_A_PUT])) >= excess:
            return True
        if sum(map(self.sizes.__getitem__, old)) < excess:
            return False
        self._drop(old)
        return True

    def _expired(self, at: float) -> Iterator[bytes]:
        for key, stored in self.rows.items():
            if stored > at - self.ttl_s:
                return
            yield key

    def _expire(self, at: float, spared: bytes) -> None:
        """What has aged goes; after the clock was set back, nothing is from the future."""
        if at < self._latest:
            self.rows = OrderedDict((key, min(stored, at)) for key, stored in self.rows.items())
        self._latest = at
        old = (key for key in self._expired(at) if key != spared)
        self._drop([key for key, _ in zip(old, range(_EXPIRED_A_PUT), strict=False)])

    def _drop(self, keys: list[bytes]) -> None:
        for key in keys:
            self.remove(key)
        self.evictions += len(keys)

    def _insert(self, key: bytes, at: float) -> None:
        self.rows[key] = at
        self.total += self.sizes[key]
        self._rank(key, 0)

    def _rank(self, key: bytes, uses: int) -> None:
        """A row is used, or new."""
        self._events += 1
        if self.eviction == "least-recently-used":
            self._used[key] = None
            self._used.move_to_end(key)
        elif self.eviction == "least-frequently-used":
            self._push(key, (self._ranks.get(key, (0, 0))[0] + uses, self._events))

    def _push(self, key: bytes, rank: tuple[int, int]) -> None:
        self._ranks[key] = rank
        heapq.heappush(self._heap, (rank, key))

    def _first(self, spared: bytes) -> bytes | None:
        """What the policy says goes first."""
        if self.eviction == "least-frequently-used":
            return self._first_of_heap(spared)
        order = self._used if self.eviction == "least-recently-used" else self.rows
        return next((key for key in order if key != spared), None)  # the spared one is the last

    def _first_of_heap(self, spared: bytes) -> bytes | None:
        aside: tuple[tuple[int, int], bytes] | None = None
        found: bytes | None = None
        while self._heap and found is None:
            rank, key = self._heap[0]
            if self._ranks.get(key) != rank or (key == spared and aside is not None):
                heapq.heappop(self._heap)  # an older word about the same row
            elif key == spared:
                aside = heapq.heappop(self._heap)
            else:
                found = key
        if aside is not None:
            heapq.heappush(self._heap, aside)
        return found

    def remove(self, key: bytes) -> None:
        """Drop a row, if it is there."""
        if self.rows.pop(key, None) is not None:
            self.total -= self.sizes[key]
            self._used.pop(key, None)
            self._ranks.pop(key, None)

    def clear(self) -> None:
        """Drop every row."""
        for key in list(self.rows):
            self.remove(key)

    def flush(self, process: int) -> None:
        """Write a process's uses down."""
        touches, self._touches[process] = self._touches[process], {}
        for key, times in touches.items():
            if key in self.rows:
                self._rank(key, times)


class _Files(_Disk):
    """`cuplate.cache.files.FilesTier` without files: each put writes uses down, and old entries go now and then."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._expire_at = [-math.inf] * len(self._touches)

    def put(self, process: int, key: bytes, blob_bytes: int, at: float) -> None:
        if blob_bytes > self.limit // _LARGEST_SHARE:
            self.refused += 1
            return
        self.flush(process)
        more = 0 if key in self.rows else self.sizes[key]
        if self.total + more > self.limit:
            if at >= self._expire_at[process] and self.ttl_s < UNLIMITED:
                self._expire_at[process] = at + EXPIRE_EVERY_S
                self._drop([other for other, stored in self.rows.items() if other != key and self._is_old(stored, at)])
            if self.eviction == "none" and self.total + more > self.limit:
                self.refused += 1
                return
        self.remove(key)
        self._insert(key, at)
        self._evict(key)
        self.puts += 1

    def _is_old(self, stored: float, at: float) -> bool:
        return at - stored > self.ttl_s

    def clear(self) -> None:
        super().clear()
        for touches in self._touches:
            touches.clear()


def play(
    operations: Iterable[Asked],
    entries: Mapping[bytes, Entry],
    *,
    limit_bytes: int,
    eviction: str,
    time_to_live_s: float,
    place: str | None,
    processes: int = 1,
) -> Point:
    """One disk tier, empty at first, asked all this.

    Parameters
    ----------
    operations : iterable of Asked
    entries : mapping of bytes to Entry
    limit_bytes, eviction, time_to_live_s
        As in `cuplate.CachePolicy`.
    place : str or None
        The tier's folder: what was asked of others is passed over, and its name tells the engine.
    processes : int
        That ask.
    """
    here = {
        key: (entry.payload_bytes + SEAL_BYTES, entry.compile_s, entry.layered)
        for key, entry in entries.items()
        if entry.place == place
    }
    sizes = {key: disk_bytes(key, entries[key], place) for key in here}
    disk = (_Files if _is_files(place) else _Disk)(sizes, limit_bytes, eviction, time_to_live_s, processes)
    hits = misses = 0
    saved_s = spent_s = 0.0
    for at, process, what, key in operations:
        known = here.get(key)
        if known is None:
            if what == "end":
                disk.flush(process)
            elif what == "cleared" and key == _place_key(place):
                disk.clear()
            continue
        blob_bytes, compile_s, layered = known
        if what == "put":
            disk.put(process, key, blob_bytes, at)
        elif what == "deleted":
            disk.remove(key)
        elif disk.get(process, key, at) or layered:
            hits += 1
            saved_s += compile_s
        else:
            misses += what in ("look", "fail")
            if what in ("look", "quiet look"):
                spent_s += compile_s
                disk.put(process, key, blob_bytes, at)
    return Point(
        size=limit_bytes,
        hits=hits,
        misses=misses,
        puts=disk.puts,
        evictions=disk.evictions,
        refused=disk.refused,
        saved_s=saved_s,
        spent_s=spent_s,
    )
