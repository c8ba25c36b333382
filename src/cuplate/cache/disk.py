"""The disk tier: it can only help. It never raises, never waits past its deadline, and returns only what was stored.

Every entry is sealed and stands in one SQLite row. Reads go through a private connection (``reader.py``); diskcache is
imported and opened at the first write (``engine.py``). Whatever goes wrong is a miss, a count and at most one warning
per cause; ``faults.py`` says what each error leads to. What a hit does not need is imported where it is needed: a fresh
process waits for the import.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cuplate.cache import fork
from cuplate.cache.counts import count
from cuplate.cache.directory import (
    FORMAT,
    allocated_bytes,
    check_trust,
    make_private,
    open_lock,
    remove_set_aside,
    set_aside,
)
from cuplate.cache.faults import Fault, classify
from cuplate.cache.health import Health
from cuplate.cache.reader import DATABASE, Identity, Reader, identity
from cuplate.cache.touch import BY_USE, Uses, write_touches
from cuplate.seal import seal, unseal

if TYPE_CHECKING:
    from cuplate.cache.engine import Engine
    from cuplate.cache.flight import NodeFlights
    from cuplate.cache.listing import Listed
    from cuplate.cache.pruning import Pruned

__all__ = ["DiskTier"]

T = TypeVar("T")

_LOOK_AGAIN_S = 1.0
_CLEAR_S = 60.0
_POLL_S = 0.01
_BUSY_UNTIL_REST = 3
_QUARANTINES_UNTIL_OFF = 3


class DiskTier:
    """Sealed entries in one directory. Making a tier touches no disk.

    Parameters
    ----------
    base : str
        The cache directory; the store is its folder ``v1``. Absolute; created, for this user only, at the first write.
    limit_bytes : int
        Sum of the sealed entries after every put. An entry above an eighth of it is not stored.
    eviction : str
        Which entries leave a full store, see `CachePolicy`.
    time_to_live_s : float
        Age at which an entry counts as absent, seconds.
    on_error : str
        ``"warn"`` once a cause, ``"ignore"``, or ``"raise"`` a `CacheError` out of the operation, for debugging.
    secret : bytes, optional
        Key of the seal; with one, a directory that others can write is accepted.
    write_wait_s : float
        Longest wait of a put for locks, seconds, opening included.
    read_wait_s : float
        Longest wait of a get for locks, seconds.
    cooldown_s : float
        How long to stay away after a full disk or an I/O error, seconds.
    single_flight : bool
        One compile per key on this node, see :class:`cuplate.cache.flight.NodeFlights`.
    flight_wait_s : float
        Longest wait for another process's compile, seconds.

    Attributes
    ----------
    directory : str
        The store's own folder.
    """

    def __init__(
        self,
        base: str,
        *,
        limit_bytes: int = 1 << 30,
        eviction: str = "least-recently-used",
        time_to_live_s: float = math.inf,
        on_error: str = "warn",
        secret: bytes = b"",
        write_wait_s: float = 1.0,
        read_wait_s: float = 0.1,
        cooldown_s: float = 30.0,
        single_flight: bool = True,
        flight_wait_s: float = 60.0,
    ) -> None:
        self.base = os.path.abspath(base)
        self.directory = os.path.join(self.base, FORMAT)
        self.limit_bytes = limit_bytes
        self.eviction, self.time_to_live_s = eviction, time_to_live_s
        self._health = Health(self.directory, cooldown_s=cooldown_s, on_error=on_error)
        self._uses = Uses()
        self._remembers = False
        self._secret = secret
        self._single_flight, self._flight_wait_s = single_flight, flight_wait_s
        self._write_wait_s, self._read_wait_s = write_wait_s, read_wait_s
        # Two locks, so that a get never waits for a put. Re-entrant: a finalizer may look up while we hold one.
        self._reading, self._writing = threading.RLock(), threading.RLock()
        self._forking: list[Any] = []
        self._reader: Reader | None = None
        self._looked_at = 0.0
        self._engine: Engine | None = None
        self._engine_identity: Identity | None = None
        self._busy_writes = 0
        fork.register(self)

    @property
    def flights(self) -> NodeFlights | None:
        """The lock of every key; None where each process compiles for itself."""
        if not self._single_flight:
            return None
        found: NodeFlights | None = self.__dict__.get("_flights")
        if found is None:
            from cuplate.cache.flight import NodeFlights  # a hit asks for none

            place, keyed = f"{self.directory}.flights", bool(self._secret)
            made = NodeFlights(place, cap_s=self._flight_wait_s, keyed=keyed, useful=self._health.may_write)
            found = self.__dict__.setdefault("_flights", made)  # one for all threads
        return found

    def __repr__(self) -> str:
        return f"DiskTier({self.base!r}, limit_bytes={self.limit_bytes}, state={self.state()!r})"

    # ---- the four operations -------------------------------------------------------------------------------------

    def get(self, key: bytes, *, again: bool = False) -> bytes | None:
        """The payload stored under a key.

        Parameters
        ----------
        key : bytes
            Digest.
        again : bool
            A second look after a miss, before the compile: if it misses too, that is not counted as another miss.

        Returns
        -------
        bytes or None
            None for anything that is not exactly what was put, and for every trouble. Never raises, but for
            ``on_error="raise"``.
        """
        start = time.perf_counter()
        blob, errors = self._read(Reader.one, key)
        payload = None if blob is None else unseal(key, blob, self._secret)
        if payload is None:
            if blob is not None:  # damaged; the put after the compile overwrites it
                errors = self._health.bad()
            count("disk", misses=not again, errors=errors, seconds=time.perf_counter() - start)
            return None
        count("disk", hits=1, read_bytes=len(payload), seconds=time.perf_counter() - start)
        if self.eviction in BY_USE:
            self._note_use(key)
        return payload

    def put(self, key: bytes, payload: bytes, *, tag: str = "") -> bool:
        """Store a payload, and evict entries down to the limit, in the order of the policy.

        Parameters
        ----------
        key : bytes
            Digest.
        payload : bytes
            A record.
        tag : str
            Function name, for :meth:`entries`; any length.

        Returns
        -------
        bool
            Whether it is stored. Never raises, but for ``on_error="raise"``.
        """
        start = time.perf_counter()
        evicted, errors, stored = self._put(key, payload, tag)
        seconds = time.perf_counter() - start
        written = len(payload) if stored else 0
        count("disk", puts=stored, errors=errors, evictions=len(evicted), written_bytes=written, seconds=seconds)
        self._tell_evicted(evicted)
        return stored

    def _tell_evicted(self, evicted: list[tuple[bytes, str, int]]) -> None:
        if not evicted:
            return
        from cuplate import events

        for gone, function, size in evicted:
            events.emit("evict", function, key=gone.hex(), tier="disk", bytes=size, limit_bytes=self.limit_bytes)
        self._health.evicted(len(evicted), self.limit_bytes)

    def delete(self, key: bytes) -> bool:
        """Remove one entry; whether one was there. Never raises.

        Parameters
        ----------
        key : bytes
            Digest.
        """
        if self._health.may_write() and os.path.lexists(os.path.join(self.directory, DATABASE)):
            return bool(self._write(lambda engine: engine.delete(key), self._write_wait_s)[0])
        return False

    def entries(self, tag: str, *, limit: int = 16) -> Iterator[tuple[bytes, bytes]]:
        """The newest good entries stored with a tag; bad ones are passed over. Never raises.

        Parameters
        ----------
        tag : str
            As given to :meth:`put`.
        limit : int
            Rows looked at, at most.

        Yields
        ------
        tuple of (bytes, bytes)
            Key and payload.
        """
        rows, _ = self._read(Reader.tagged, tag, limit)
        for key, blob in rows or ():
            payload = unseal(key, blob, self._secret) if type(key) is bytes else None
            if type(key) is bytes and payload is not None:
                yield key, payload

    def all(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, tag and payload of every good entry, oldest first. Never raises.

        Yields
        ------
        tuple of (bytes, str, bytes)
            Read one by one: what is evicted meanwhile does not come.
        """
        keys, _ = self._read(Reader.keys, _CLEAR_S)
        for key, tag in keys or ():
            blob, _ = self._read(Reader.one, key)
            payload = unseal(key, blob, self._secret)
            if payload is not None:
                yield key, tag, payload

    def listing(self) -> Iterator[Listed]:
        """Every entry, oldest first, contents unread.

        Yields
        ------
        Listed

        Raises
        ------
        CacheError
            The store is there and cannot be read: locked, damaged, not to be trusted. Nothing is set aside.
        """
        from cuplate.cache.listing import list_rows

        return iter(self._told(lambda reader: list(list_rows(reader, self.directory))) or ())

    def peek(self, key: bytes) -> bytes | None:
        """As `get`; but it is no use of the entry, and counted nowhere.

        Parameters
        ----------
        key : bytes
            Digest.
        """
        blob, _ = self._read(Reader.one, key)
        return None if blob is None else unseal(key, blob, self._secret)

    def sealed(self, key: bytes) -> object:
        """What lies under a key, unchecked; None for nothing. It is no use of the entry.

        Parameters
        ----------
        key : bytes
            Digest.

        Raises
        ------
        CacheError
            As of `listing`.
        """
        return self._told(lambda reader: reader.one(key, self._write_wait_s))

    # ---- housekeeping --------------------------------------------------------------------------------------------

    def orphans(self) -> int:
        """Files that no entry leads to, and stores that were set aside: what `prune` removes."""
        from cuplate.cache.pruning import count_orphans

        return count_orphans(self.directory)

    def clear(self) -> int:
        """Remove every entry and give the room back; how many went. Never raises; a full store takes seconds."""
        if not os.path.lexists(os.path.join(self.directory, DATABASE)):
            return 0
        removed, _ = self._write(lambda engine: engine.empty(), _CLEAR_S)
        return removed or 0

    def prune(self) -> Pruned:
        """Make the files fit: within the limit, a tenth of it and 1 MB. Takes seconds; never raises.

        Returns
        -------
        Pruned
            What went and what is left; zeros when there is no store, or it cannot be written.
        """
        from cuplate.cache.pruning import Pruned, prune, remove_orphans

        if not os.path.lexists(os.path.join(self.directory, DATABASE)):
            return Pruned(limit_bytes=self.limit_bytes)
        self.flush()  # the order of what goes
        before, until = self.volume(), time.monotonic() + _CLEAR_S
        orphans = 0

        def work(engine: Engine) -> list[tuple[bytes, str, int]]:
            nonlocal orphans
            with open_lock(self.directory, until):
                orphans = remove_orphans(self.directory)
            return prune(engine, self.directory, self.limit_bytes, more=lambda: time.monotonic() < until)

        gone = self._write(work, _CLEAR_S)[0] or []
        count("disk", evictions=len(gone))
        self._tell_evicted(gone)
        entries, entry_bytes = self.sums()
        return Pruned(
            removed_entries=len(gone),
            removed_entry_bytes=sum(size for _, _, size in gone),
            removed_orphans=orphans,
            entries=entries,
            entry_bytes=entry_bytes,
            file_bytes_before=before,
            file_bytes=self.volume(),
            limit_bytes=self.limit_bytes,
        )

    def volume(self) -> int:
        """What the store's files take on the disk, bytes: free pages, orphans and set-aside stores included."""
        return allocated_bytes(self.directory)

    def sums(self) -> tuple[int, int]:
        """Number of entries, and the sum of their sealed sizes in bytes; zeros when there is no store."""
        found, _ = self._read(Reader.sums)
        return found or (0, 0)

    def counters(self) -> Mapping[str, int]:
        """In this process, all threads: bad, busy, errors, quarantines, evictions, refused_large, refused_full."""
        return self._health.counters()

    def state(self) -> str:
        """``"on"``, ``"resting"`` after an error, ``"read only"``, or ``"off: "`` and the reason."""
        return self._health.state()

    def close(self) -> None:
        """Write down what was used, and close both connections; the next operation opens them again."""
        with self._reading, self._writing:
            self.flush()
            self._drop_reader()
            self._drop_engine()

    def flush(self, *, wait_s: float = 0.1) -> bool:
        """Write down what was used since the last put, for the next process to know; at the end of a process by itself.

        Parameters
        ----------
        wait_s : float
            Longest wait for locks, seconds.

        Returns
        -------
        bool
            False when it could not be written; what was tried is forgotten then. Never raises, never warns.
        """
        if not len(self._uses):
            return True
        if not self._health.may_write() or not self._writing.acquire(timeout=wait_s):
            return False
        try:
            touches, _ = self._uses.take()
            if self._identity() is None:
                return False
            self._check_trust()
            write_touches(self.directory, touches, wait_s)
        except Exception:
            return False
        finally:
            self._writing.release()
        return True

    def _note_use(self, key: bytes) -> None:
        self._uses.note(key)
        if not self._remembers:  # the first use: what is noted is written down at exit
            self._remembers = True
            _used.add(self)
            fork.at_exit(_flush_all)

    # ---- reading -------------------------------------------------------------------------------------------------

    def _read(self, query: Callable[..., T], *arguments: Any) -> tuple[T | None, int]:
        """What the reader answers and the number of errors; (None, ...) in every trouble."""
        now = time.monotonic()
        if not self._health.may_read(now):
            return None, 0
        if not self._reading.acquire(timeout=self._read_wait_s):
            self._health.count("busy")
            return None, 1
        seen: Identity | None = None
        try:
            reader = self._current_reader(now)
            seen = reader.identity
            answer = query(reader, *arguments)
            self._health.well()
            return answer, 0
        except Exception as error:
            seen = seen or self._identity()
            self._drop_reader()
            failure = error
        finally:
            self._reading.release()
        try:
            return None, self._trouble(failure, seen, query=lambda reader: query(reader, *arguments))
        finally:
            del failure  # else it and this frame hold each other, and the caller's arrays, until the collector comes

    def _told(self, query: Callable[[Reader], T]) -> T | None:
        """The query's answer, None when there is no store; for a person, so trouble is an error and changes nothing."""
        from cuplate.cache.listing import unreadable

        until = time.monotonic() + self._write_wait_s
        with self._reading:
            while True:
                try:
                    return query(self._current_reader(time.monotonic()))
                except Exception as error:
                    self._drop_reader()
                    fault = classify(error)
                    if fault is Fault.ABSENT:
                        return None
                    if fault is not Fault.BUSY or time.monotonic() > until:
                        raise unreadable(self.directory, error) from error
                    time.sleep(_POLL_S)

    def _current_reader(self, now: float) -> Reader:
        if self._reader is not None and now - self._looked_at > _LOOK_AGAIN_S:
            self._looked_at = now
            if self._identity() != self._reader.identity:  # the directory was removed or replaced
                self._drop_reader()
        if self._reader is None:
            self._check_trust()
            largest = self._largest_bytes() + 1024
            self._reader = Reader(
                self.directory,
                busy_s=self._read_wait_s,
                largest_bytes=largest,
                time_to_live_s=self.time_to_live_s,
            )
            self._looked_at = now
        return self._reader

    def _largest_bytes(self) -> int:
        return self.limit_bytes // 8

    # ---- writing -------------------------------------------------------------------------------------------------

    def _put(self, key: bytes, payload: bytes, tag: str) -> tuple[list[tuple[bytes, str, int]], int, bool]:
        if not self._health.may_write():
            return [], 0, False
        evicted: list[tuple[bytes, str, int]] = []

        def store(engine: Engine) -> bool:
            # Taken and put back under the lock of writers: a put of another thread that evicts is to know of all uses.
            touches, due = self._uses.take()
            earlier = {used: times for used, times in touches.items() if used != key}  # a row stored anew has no past
            fits = False
            try:
                fits = engine.write(key, blob, tag, earlier, due=due)
            finally:  # an interrupt too
                if not fits:
                    self._uses.put_back(touches)
                elif earlier and not engine.touched:
                    self._uses.put_back({**earlier, key: 0})
            evicted.extend(engine.evicted)
            return fits

        try:
            blob = seal(key, payload, self._secret)
        except Exception as error:
            return [], self._trouble(error, None, writing=True), False
        if len(blob) > self._largest_bytes():
            self._health.refuse_large(len(blob), tag, self.limit_bytes)
            return [], 0, False
        stored, errors = self._write(store, self._write_wait_s)
        if stored is False:
            self._health.refuse_full(len(blob), tag, self.limit_bytes)
        return evicted, errors, bool(stored)

    def _write(self, operation: Callable[[Engine], T], wait_s: float) -> tuple[T | None, int]:
        """The operation's answer and the number of errors; tried twice if the store vanished or looks damaged."""
        until = time.monotonic() + wait_s
        if not self._writing.acquire(timeout=self._write_wait_s):
            self._health.count("busy")
            return None, 1
        try:
            for last in (False, True):
                seen = self._engine_identity or self._identity()
                try:
                    answer = operation(self._current_engine(until))
                    self._health.well()
                    self._busy_writes = 0
                    return answer, 0
                except Exception as error:
                    seen = self._identity() if seen is None else seen
                    self._drop_engine()
                    failure = error
                    if last or self._fault(error, seen) not in (Fault.ABSENT, Fault.DAMAGED):
                        break
                except BaseException:  # Ctrl-C between BEGIN and COMMIT must not keep the lock of all processes
                    self._drop_engine()
                    raise
        finally:
            self._writing.release()
        try:
            return None, self._trouble(failure, seen, writing=True)
        finally:
            del failure  # as in _read

    def _current_engine(self, until: float) -> Engine:
        if self._engine is not None and self._identity() != self._engine_identity:
            self._drop_engine()
        if self._engine is None:
            make_private(self.directory)
            self._check_trust()
            with open_lock(self.directory, until):
                remove_set_aside(self.directory)
                from cuplate.cache.engine import Engine

                self._engine = Engine(
                    self.directory,
                    limit_bytes=self.limit_bytes,
                    until=until,
                    eviction=self.eviction,
                    time_to_live_s=self.time_to_live_s,
                )
                self._engine_identity = identity(self.directory)
        self._engine.until = until
        return self._engine

    # ---- trouble -------------------------------------------------------------------------------------------------

    def _trouble(
        self,
        error: Exception,
        seen: Identity | None,
        *,
        query: Callable[[Reader], object] | None = None,
        writing: bool = False,
    ) -> int:
        """Do what the error asks for; the number of errors to count. Called with no lock held; never raises."""
        fault = self._fault(error, seen)
        answer: Callable[[], object] | None = None
        if fault is Fault.BUSY and writing:
            answer = self._busy
        elif fault is Fault.ABSENT and self._vanished(seen):
            answer = tuple  # removed again during the second try: this put only
        elif fault is Fault.DAMAGED and seen is not None:
            answer = partial(self._quarantine, seen, query, error)
        return self._health.trouble(error, writing=writing, fault=fault, answer=answer)

    def _fault(self, error: Exception, seen: Identity | None) -> Fault:
        """What an error means: a store that was just removed or replaced is absent, whatever SQLite says of it."""
        fault = classify(error)
        known = fault not in (Fault.BROKEN, Fault.READ_ONLY) or isinstance(error, OSError)
        return fault if known or not self._vanished(seen) else Fault.ABSENT

    def _vanished(self, seen: Identity | None) -> bool:
        return self._identity() != seen if seen is not None else not os.path.lexists(self.directory)

    def _busy(self) -> None:
        self._busy_writes += 1
        if self._busy_writes >= _BUSY_UNTIL_REST:
            self._busy_writes = 0
            self._health.rest_from_writes("busy", "is locked by another process")

    def _quarantine(self, seen: Identity, query: Callable[[Reader], object] | None, error: Exception) -> None:
        """Set the whole directory aside in one rename: under the lock of every opener, and after a second look.

        Without the second look, a process would move away the database that another is creating at that moment.
        """
        try:
            until = time.monotonic() + self._write_wait_s
            with self._both_locks(until), open_lock(self.directory, until):
                self._drop_reader()
                self._drop_engine()
                if self._identity() != seen or not self._still_bad(query):
                    return
                set_aside(self.directory)
        except Exception as failure:
            self._health.rest(failure)
            return
        self._health.count("quarantines")
        self._health.warn("damaged", f"was damaged ({error}) and has been set aside")
        if self.counters()["quarantines"] >= _QUARANTINES_UNTIL_OFF:
            self._health.turn_off(f"damaged {_QUARANTINES_UNTIL_OFF} times, the last: {error}")

    def _still_bad(self, query: Callable[[Reader], object] | None) -> bool:
        if query is None:  # from a write, which has already been tried twice with a fresh connection
            return True
        try:
            reader = Reader(self.directory, busy_s=self._read_wait_s, largest_bytes=self._largest_bytes() + 1024)
            try:
                query(reader)
            finally:
                reader.close()
        except Exception as error:
            return classify(error) is Fault.DAMAGED
        return False

    # ---- files ---------------------------------------------------------------------------------------------------

    def _identity(self) -> Identity | None:
        try:
            return identity(self.directory)
        except OSError:
            return None

    def _check_trust(self) -> None:
        check_trust(self.base, self.directory, keyed=bool(self._secret))

    @contextmanager
    def _both_locks(self, until: float) -> Iterator[None]:
        for lock in (self._reading, self._writing):
            if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
                if lock is self._writing:
                    self._reading.release()
                raise TimeoutError("a thread of this process is inside the store")
        try:
            yield
        finally:
            self._writing.release()
            self._reading.release()

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _drop_engine(self) -> None:
        engine, self._engine, self._engine_identity = self._engine, None, None
        if engine is not None:
            engine.close()

    # ---- fork ----------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Take both locks and close: SQLite's connections and locks must not cross a fork."""
        for lock in (self._reading, self._writing):
            if lock.acquire(timeout=fork.WAIT_S):
                self._forking.append(lock)
        if self._reading in self._forking:
            self._drop_reader()
        if self._writing in self._forking:
            self._drop_engine()

    def after_fork(self, *, child: bool) -> None:
        """Release the locks; in the child, replace what another thread held at the fork.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        taken, self._forking = self._forking, []
        if child:
            self._health.forget_lock()
            self._uses.forget()
            if self._reading not in taken:
                _abandoned.append(self._reader)
                self._reading, self._reader = threading.RLock(), None
            if self._writing not in taken:
                _abandoned.append(self._engine)
                self._writing, self._engine, self._engine_identity = threading.RLock(), None, None
        for lock in taken:
            lock.release()


# Connections of the parent that could not be closed before a fork: closing them in the child would drop its locks.
_abandoned: list[object] = []


_used: weakref.WeakSet[DiskTier] = weakref.WeakSet()


def _flush_all() -> None:
    with suppress(RuntimeError):  # a thread that still runs may add one
        for tier in tuple(_used):
            tier.flush()
