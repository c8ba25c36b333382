"""The tier of plain files: for network file systems, where SQLite corrupts, and where diskcache is not installed.

The same promises as `cuplate.cache.disk.DiskTier`: it never raises and returns only what was stored. There is no lock:
a file is whole or not there, and two processes that evict at once take the same files. Each process keeps a list of
what is in the folder, and reads those parts again that have changed.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuplate import events
from cuplate.cache import fork
from cuplate.cache.counts import count
from cuplate.cache.directory import FOLDER, check_trust, make_private
from cuplate.cache.faults import Fault, Refused, classify
from cuplate.cache.flight import NodeFlights
from cuplate.cache.folder import BadFile, File, Folder, Row, file_bytes
from cuplate.cache.health import Health
from cuplate.cache.touch import Uses
from cuplate.config import UNLIMITED
from cuplate.seal import seal, unseal

if TYPE_CHECKING:
    from cuplate.cache.listing import Listed
    from cuplate.cache.pruning import Pruned

__all__ = ["EXPIRE_EVERY_S", "FOLDER", "FilesTier"]

_TRUST_S = 1.0
_SETTLED_S = 0.02  # a folder may change again within one tick of its clock, and the time of the change stay the same
_SKEW_NS = 60_000_000_000  # by which the clocks of two nodes may well differ
_STEP_NS = 1000  # the finest that the clocks of common file systems tell apart
_LARGEST_BYTES = 1 << 30  # a file that a damaged disk says to be longer would fill the memory
EXPIRE_EVERY_S = 60.0  # a look at the head of every file
_LISTED = 2000


class FilesTier:
    """Sealed entries, a file each. Making a tier touches no disk.

    Parameters
    ----------
    base : str
        The cache directory; the store is its folder ``v1.files``. Absolute; created, for this user only, at the first
        write.
    limit_bytes : int
        Sum of the files after every put. An entry above an eighth of it is not stored.
    secret : bytes, optional
        Key of the seal; with one, a directory that others can write is accepted.
    eviction : str
        As in `cuplate.CachePolicy`.
    time_to_live_s : float
        Older entries count as absent.
    write_wait_s : float
        Longest wait of a put for other threads, seconds.
    cooldown_s : float
        How long to stay away after a full disk or an I/O error, seconds.
    single_flight, flight_wait_s
        As in `cuplate.CachePolicy`.
    flight_directory : str or None
        Where the locks of the flights lie, on a local file system; None: beside the store.
    on_error : str
        As in `cuplate.CachePolicy`.

    Attributes
    ----------
    directory : str
        The store's own folder.
    flights : NodeFlights or None
        The lock of every key.
    """

    def __init__(
        self,
        base: str,
        *,
        limit_bytes: int = 1 << 30,
        secret: bytes = b"",
        eviction: str = "least-recently-used",
        time_to_live_s: float = UNLIMITED,
        write_wait_s: float = 1.0,
        cooldown_s: float = 30.0,
        single_flight: bool = True,
        flight_wait_s: float = 60.0,
        flight_directory: str | None = None,
        on_error: str = "warn",
    ) -> None:
        self.base = os.path.abspath(base)
        self.directory = os.path.join(self.base, FOLDER)
        self.limit_bytes = limit_bytes
        self._secret, self._eviction, self._time_to_live_s = secret, eviction, time_to_live_s
        self._write_wait_s = write_wait_s
        self._folder = Folder(self.directory)
        self._health = Health(self.directory, cooldown_s=cooldown_s, on_error=on_error)
        self._trusted_until = 0.0
        self._lock = threading.RLock()  # of the list; a get takes it for no longer than a dictionary's entry
        self._list = _Listing(self._folder)
        self._uses = Uses()
        self._expire_at = 0.0
        self._swept = self._forking = False
        place = flight_directory or f"{self.directory}.flights"
        self.flights = (
            NodeFlights(
                place,
                cap_s=flight_wait_s,
                keyed=bool(secret) and flight_directory is None,  # a place of this node is nobody else's
                useful=self._health.may_write,
            )
            if single_flight
            else None
        )
        fork.register(self)
        _tiers.add(self)

    def __repr__(self) -> str:
        return f"FilesTier({self.base!r}, limit_bytes={self.limit_bytes}, state={self.state()!r})"

    # ---- the four operations -------------------------------------------------------------------------------------

    def get(self, key: bytes, *, again: bool = False) -> bytes | None:
        """The payload stored under a key; None for everything else. Never raises.

        Parameters
        ----------
        key : bytes
            Digest.
        again : bool
            A second look at the same miss, which is not counted.
        """
        start = time.perf_counter()
        payload, errors = self._get(key)
        seconds = time.perf_counter() - start
        if payload is None:
            count("disk", misses=not again, errors=errors, seconds=seconds)
        else:
            count("disk", hits=1, read_bytes=len(payload), seconds=seconds)
            if self._eviction in ("least-recently-used", "least-frequently-used"):
                self._uses.note(key)
        return payload

    def put(self, key: bytes, payload: bytes, *, tag: str = "") -> bool:
        """Store a payload and evict others down to the limit; whether it is stored. Never raises.

        Parameters
        ----------
        key : bytes
            Digest.
        payload : bytes
            A record.
        tag : str
            Function name.
        """
        start = time.perf_counter()
        stored, errors, gone = self._put(key, payload, tag)
        seconds = time.perf_counter() - start
        written = len(payload) if stored else 0
        count("disk", puts=stored, errors=errors, evictions=len(gone), written_bytes=written, seconds=seconds)
        self._tell_evicted(gone)
        return stored

    def _tell_evicted(self, gone: list[Row]) -> None:
        for row in gone:
            events.emit("evict", "", key=row.name, tier="disk", bytes=row.size, limit_bytes=self.limit_bytes)
        self._health.evicted(len(gone), self.limit_bytes)

    def delete(self, key: bytes) -> bool:
        """Remove one entry; whether one was there. Never raises.

        Parameters
        ----------
        key : bytes
            Digest.
        """
        if not self._health.may_write():
            return False
        try:
            self._check_trust()
            with self._lock:
                self._list.forget(key.hex())
                return self._folder.remove(key.hex())
        except Exception as error:
            self._trouble(error, writing=not isinstance(error, FileNotFoundError))
            return False

    def entries(self, tag: str, *, limit: int = 16) -> Iterator[tuple[bytes, bytes]]:
        """The newest good entries stored with a tag, of the newest 2000 of all. Never raises.

        Parameters
        ----------
        tag : str
            As given to `put`.
        limit : int
            At most.

        Yields
        ------
        tuple of (bytes, bytes)
            Key and payload.
        """
        found = 0
        for row in heapq.nlargest(_LISTED, self.rows(), key=lambda row: row.time_ns):
            file = self._file(row.name)
            payload = unseal(file.key, file.blob, self._secret) if file is not None and file.tag == tag else None
            if file is not None and payload is not None:
                yield file.key, payload
                found += 1
                if found >= limit:
                    return

    # ---- housekeeping --------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Every entry's file. Never raises."""
        if not self._health.may_read():
            return []
        try:
            self._check_trust()
            return list(self._folder.all_rows())
        except Exception as error:
            self._trouble(error)
            return []

    def all(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, tag and payload of every good entry. Never raises."""
        for row in self.rows():
            file = self._file(row.name)
            payload = unseal(file.key, file.blob, self._secret) if file is not None else None
            if file is not None and payload is not None:
                yield file.key, file.tag, payload

    def listing(self) -> Iterator[Listed]:
        """Every entry, contents unread.

        Yields
        ------
        Listed

        Raises
        ------
        CacheError
            The folder is there and cannot be read, or is not to be trusted.
        """
        from cuplate.cache.listing import list_folder, unreadable

        oldest_s = time.time() - self._time_to_live_s
        try:
            self._check_trust()
            yield from (found for found in list_folder(self._folder, self.directory) if found.stored_s > oldest_s)
        except FileNotFoundError:
            return
        except (OSError, Refused) as error:
            raise unreadable(self.directory, error) from error

    def peek(self, key: bytes) -> bytes | None:
        """As `get`; but it is no use of the entry, and counted nowhere.

        Parameters
        ----------
        key : bytes
            Digest.
        """
        return self._get(key)[0]

    def sealed(self, key: bytes) -> object:
        """What lies under a key, unchecked; None for nothing. It is no use of the entry.

        Parameters
        ----------
        key : bytes
            Digest.

        Raises
        ------
        CacheError
            As of `listing`, or the file is no entry.
        """
        from cuplate.cache.listing import sealed_in

        return sealed_in(self._folder, key, self._largest_bytes())

    def orphans(self) -> int:
        """Files of puts that never ended: what `prune` removes."""
        return len(self._folder.half_written())

    def prune(self) -> Pruned:
        """Bring the files within the limit, and remove what is expired or half written. Never raises."""
        from cuplate.cache.pruning import Pruned

        before, gone, orphans = self.volume(), list[Row](), 0
        if self._health.may_write() and before:
            try:
                self._check_trust()
                orphans = self._folder.sweep()
                with self._lock:
                    self._prune(gone)
            except Exception as error:
                self._trouble(error, writing=not isinstance(error, FileNotFoundError))
        self._tell_evicted(gone)
        count("disk", evictions=len(gone))
        entries, entry_bytes = self.sums()
        return Pruned(
            removed_entries=len(gone),
            removed_entry_bytes=sum(row.size for row in gone),
            removed_orphans=orphans,
            entries=entries,
            entry_bytes=entry_bytes,
            file_bytes_before=before,
            file_bytes=self.volume(),
            limit_bytes=self.limit_bytes,
        )

    def _prune(self, gone: list[Row]) -> None:
        from cuplate.cache.pruning import target_bytes

        self._list.refresh(all_parts=True)
        self._flush()
        gone += self._expire()
        gone += self._evict(spare="")
        # A file takes whole blocks of the disk, so the sum of the sizes can be well below what they take.
        while self._list.rows and (excess := self.volume() - target_bytes(self.limit_bytes)) > 0:
            gone += self._evict(spare="", down_to=self._list.total - excess)

    def clear(self) -> int:
        """Remove every entry, half-written ones too; how many went. Never raises."""
        if not self._health.may_write():
            return 0
        removed = 0
        try:
            self._check_trust()
            self._folder.sweep(older_s=0.0)
            with self._lock:
                self._uses.take()
                for row in self._folder.all_rows():
                    removed += self._folder.remove(row.name)
                self._list = _Listing(self._folder)
        except Exception as error:
            self._trouble(error, writing=not isinstance(error, FileNotFoundError))
        return removed

    def volume(self) -> int:
        """What the store's files take on the disk, bytes, half-written ones included."""
        return self._folder.allocated_bytes()

    def sums(self) -> tuple[int, int]:
        """Number of entries, and the sum of their sizes in bytes; zeros when there is no store."""
        rows = self.rows()
        return len(rows), sum(row.size for row in rows)

    def counters(self) -> Mapping[str, int]:
        """Troubles in this process, all threads: bad, busy, errors, quarantines, evictions, refused_large."""
        return self._health.counters()

    def state(self) -> str:
        """``"on"``, ``"resting"`` after an error, ``"read only"``, or ``"off: "`` and the reason."""
        return self._health.state()

    def close(self) -> None:
        """Write down the hits that no put has written down yet."""
        if len(self._uses) and self._health.may_write():
            with self._lock:
                self._flush()

    # ---- reading -------------------------------------------------------------------------------------------------

    def _get(self, key: bytes) -> tuple[bytes | None, int]:
        if not self._health.may_read():
            return None, 0
        try:
            self._check_trust()
            file = self._folder.read(key, self._largest_bytes())
            if file is None or self._expired(file):
                return None, 0
            payload = unseal(key, file.blob, self._secret)
            if payload is None:
                return None, self._health.bad("its seal is wrong")
        except BadFile as error:
            return None, self._health.bad(str(error))
        except Exception as error:
            return None, self._trouble(error)
        self._health.well()
        return payload, 0

    def _file(self, name: str) -> File | None:
        try:
            file = self._folder.read_name(name, self._largest_bytes())
        except (BadFile, OSError):
            return None
        return None if file is None or file.key.hex() != name or self._expired(file) else file

    def _expired(self, file: File) -> bool:
        return self._is_old(file.stored_ns)

    def _is_old(self, stored_ns: int) -> bool:
        return self._time_to_live_s < UNLIMITED and time.time_ns() - stored_ns > self._time_to_live_s * 1e9

    def _largest_bytes(self) -> int:
        return min(self.limit_bytes // 8, _LARGEST_BYTES)

    # ---- writing -------------------------------------------------------------------------------------------------

    def _trouble(self, error: Exception, *, writing: bool = False) -> int:
        """What `Health.trouble` does; but a file server that does not answer is no lock that will go."""
        stuck = classify(error) is Fault.BUSY and getattr(error, "errno", None) is not None
        return self._health.trouble(error, writing=writing, fault=Fault.BROKEN if stuck else None)

    def _put(self, key: bytes, payload: bytes, tag: str) -> tuple[bool, int, list[Row]]:
        if not self._health.may_write():
            return False, 0, []
        if not self._lock.acquire(timeout=self._write_wait_s):
            self._health.count("busy")
            return False, 1, []
        try:
            blob = seal(key, payload, self._secret)
            if len(blob) > self._largest_bytes():
                self._health.refuse_large(len(blob), tag, self.limit_bytes)
                return False, 0, []
            try:
                return self._store(key, blob, tag)
            except FileNotFoundError:  # somebody removed the folder under this put
                return self._store(key, blob, tag)
        except Exception as error:
            return False, self._trouble(error, writing=True), []
        finally:
            self._lock.release()

    def _store(self, key: bytes, blob: bytes, tag: str) -> tuple[bool, int, list[Row]]:
        self._prepare()
        self._list.refresh()
        self._flush()
        gone: list[Row] = []
        size = file_bytes(key, tag, len(blob))
        if not self._list.fits(key.hex(), size, self.limit_bytes):
            if time.monotonic() >= self._expire_at:
                gone += self._expire(spare=key.hex())
            if self._eviction == "none" and not self._list.fits(key.hex(), size, self.limit_bytes):
                self._health.refuse_full(len(blob), tag, self.limit_bytes)
                return False, 0, gone
        row = self._folder.write(key, tag, blob, time_ns=self._list.next_ns())
        self._list.note(row)
        self._health.well()
        return True, 0, gone + self._evict(spare=row.name)

    def _prepare(self) -> None:
        make_private(self.directory)
        self._check_trust()
        if not self._swept:
            self._swept = True
            self._folder.sweep()

    def _evict(self, *, spare: str, down_to: int | None = None) -> list[Row]:
        gone: list[Row] = []
        limit = self.limit_bytes if down_to is None else down_to
        while self._list.total > limit and (row := self._first_to_go(spare)) is not None:
            self._list.forget(row.name)
            if self._folder.remove(row.name):
                gone.append(row)
        return gone

    def _first_to_go(self, spare: str) -> Row | None:
        """What the policy says, asked of the file itself: another process may have used it meanwhile."""
        while (row := self._list.first(self._eviction, spare)) is not None:
            now_ns = self._folder.time_ns(row.name)
            if now_ns == row.time_ns:
                return row
            self._list.forget(row.name)
            if now_ns is not None:
                self._list.note(Row(row.name, row.size, now_ns))
        return None

    def _expire(self, spare: str = "") -> list[Row]:
        """Remove what is past its time to live; its head says how old it is."""
        gone: list[Row] = []
        if self._time_to_live_s < UNLIMITED:
            self._expire_at = time.monotonic() + EXPIRE_EVERY_S
            for row in list(self._list.rows.values()):
                stored_ns = self._folder.uses(row.name)[1]
                if row.name != spare and stored_ns is not None and self._is_old(stored_ns):
                    self._list.forget(row.name)
                    if self._folder.remove(row.name):
                        gone.append(row)
        return gone

    def _flush(self) -> None:
        """Write down the hits since the last put, as later than all that is known."""
        for key, hits in self._uses.take()[0].items():
            used_ns = self._list.next_ns()  # by which another process sees that the hits have changed, too
            self._folder.note_use(key.hex(), used_ns, hits)
            self._list.used(key.hex(), used_ns)

    def _check_trust(self) -> None:
        now = time.monotonic()
        if now < self._trusted_until:
            return
        check_trust(self.base, self.directory, keyed=bool(self._secret))
        self._trusted_until = now + _TRUST_S

    # ---- fork ----------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Take the lock, so that no child inherits a list half changed."""
        self._forking = self._lock.acquire(timeout=fork.WAIT_S)

    def after_fork(self, *, child: bool) -> None:
        """Release; in the child, begin with an empty list, and leave the parent's hits to the parent.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        taken, self._forking = self._forking, False
        if child:
            self._uses.forget()
            self._health.forget_lock()
            if not taken:
                self._lock, self._list = threading.RLock(), _Listing(self._folder)
        if taken:
            self._lock.release()


@dataclass(frozen=True, slots=True)
class _Part:
    """A folder of entries as it was read; `seen_s` and `read_s` by this process's own clock, not a file server's."""

    changed_ns: int
    seen_s: float
    read_s: float


class _Listing:
    """What one process knows of a folder; guarded by the tier's lock."""

    def __init__(self, folder: Folder) -> None:
        self.total = 0
        self.rows: dict[str, Row] = {}
        self._folder = folder
        self._known: dict[str, _Part] = {}
        self._names: dict[str, set[str]] = {}  # by part: of `rows`, whoever wrote them
        self._latest_ns = 0
        self._rule = ""
        self._order: dict[str, tuple[int, int]] = {}
        self._heap: list[tuple[tuple[int, int], str]] = []

    def refresh(self, *, all_parts: bool = False) -> None:
        """Read the parts that have changed."""
        parts = self._folder.parts()
        for part, changed_ns in parts.items():
            known = self._known.get(part)
            if all_parts or known is None or known.changed_ns != changed_ns or known.read_s < known.seen_s + _SETTLED_S:
                self._read(part, changed_ns)
        for part in self._names.keys() - parts.keys():
            self._known.pop(part, None)
            for name in self._names.pop(part):
                self.forget(name)
        now_ns = time.time_ns()
        if self._latest_ns > now_ns + _SKEW_NS:
            self._pull_back(now_ns)

    def _pull_back(self, now_ns: int) -> None:
        """After the clock was set back, old files would look newer than all to come; they keep their order."""
        late = sorted((r for r in self.rows.values() if r.time_ns > now_ns + _SKEW_NS), key=lambda row: row.time_ns)
        rest = (row.time_ns for row in self.rows.values() if row.time_ns <= now_ns + _SKEW_NS)
        self._latest_ns = max(rest, default=0)
        for row in late:
            time_ns = self.next_ns()
            self._folder.note_use(row.name, time_ns, 0, stored_by_ns=now_ns)
            self.note(Row(row.name, row.size, time_ns))

    def next_ns(self) -> int:
        """A time later than that of every file: now, unless the clock was set back."""
        self._latest_ns = max(time.time_ns(), self._latest_ns + _STEP_NS)
        return self._latest_ns

    def _read(self, part: str, changed_ns: int) -> None:
        now_s, known = time.monotonic(), self._known.get(part)
        rows = self._folder.rows(part)
        names = {row.name for row in rows}
        for name in self._names.get(part, set[str]()) - names:
            self.forget(name)
        for row in rows:
            if self.rows.get(row.name) != row:
                self.note(row)
        seen_s = known.seen_s if known is not None and known.changed_ns == changed_ns else now_s
        self._known[part] = _Part(changed_ns, seen_s, now_s)

    def note(self, row: Row) -> None:
        """A file as it is now."""
        before = self.rows.get(row.name)
        self.total += row.size - (before.size if before is not None else 0)
        self.rows[row.name] = row
        self._names.setdefault(row.name[:2], set()).add(row.name)
        self._latest_ns = max(self._latest_ns, row.time_ns)
        if self._rule:
            self._rank(row)

    def forget(self, name: str) -> None:
        """A file is gone."""
        row = self.rows.pop(name, None)
        self._order.pop(name, None)
        if row is not None:
            self.total -= row.size
            self._names.get(name[:2], set[str]()).discard(name)

    def used(self, name: str, used_ns: int) -> None:
        """Hits of this process, which are written down already."""
        row = self.rows.get(name)
        if row is not None:
            self.note(Row(name, row.size, used_ns))

    def fits(self, name: str, size: int, limit_bytes: int) -> bool:
        """Whether a file of a size has room without evicting."""
        before = self.rows.get(name)
        return self.total - (before.size if before is not None else 0) + size <= limit_bytes

    def first(self, rule: str, spare: str) -> Row | None:
        """The row that goes first by a rule of eviction, one that is spared aside."""
        if rule != self._rule or len(self._heap) > 4 * len(self.rows) + 64:
            self._rule, self._heap = rule, []
            for row in self.rows.values():
                self._rank(row)
        spared = []
        found: Row | None = None
        while self._heap and found is None:
            order, name = self._heap[0]
            if self._order.get(name) != order:  # an older word about the same file, or about one that is gone
                heapq.heappop(self._heap)
            elif name == spare:
                spared.append(heapq.heappop(self._heap))
            else:
                found = self.rows[name]
        for item in spared:
            heapq.heappush(self._heap, item)
        return found

    def _rank(self, row: Row) -> None:
        hits = self._folder.uses(row.name)[0] if self._rule == "least-frequently-used" else 0
        order = hits, row.time_ns
        self._order[row.name] = order
        heapq.heappush(self._heap, (order, row.name))


_tiers: weakref.WeakSet[FilesTier] = weakref.WeakSet()


def _close_all() -> None:
    for tier in list(_tiers):
        tier.close()


fork.at_exit(_close_all)
