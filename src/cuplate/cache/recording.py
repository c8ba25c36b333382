"""Writes down every look-up while somebody asked for it, and costs nothing else.

The memory tier tells of each use (`cuplate.cache.memory.watch`), the hot path's included; `Recorded` stands in front of
a disk tier and sees what the walk asks of it. What happened goes into a queue, and once a second, or after some
thousands, as one block to the end of the file, with one write: so several processes may share a file, and one that is
killed loses the last second. Whatever fails ends the recording with one warning, and never a call.
"""

from __future__ import annotations

import io
import os
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from time import time
from typing import TYPE_CHECKING, Any

from cuplate.cache import fork
from cuplate.cache.faults import warn_once
from cuplate.cache.memory import Entry
from cuplate.cache.trace import Encoder, Facts, Kernel, Note, Trace, is_trace, read_trace
from cuplate.cubin import Cubin, decode, encode
from cuplate.errors import CacheError

if TYPE_CHECKING:
    from cuplate.cache.policy import EffectivePolicy
    from cuplate.cache.store import NoStore, Tier
    from cuplate.cache.tuning import Tuning

__all__ = ["Recorded", "Recording"]

_NOTES_A_BLOCK = 4096
_BLOCK_S = 1.0
_LONGEST_TEXT = 2000


class Recording:
    """Look-ups being written down, until :meth:`close` or the end of a ``with`` block.

    Parameters
    ----------
    path : str or None
        File to append to; None keeps the trace in memory.
    policy : EffectivePolicy
        In force at the start.
    loaded : callable
        The entries of the memory tier, least recently used first.
    detach : callable
        Called with the recording when it ends, so that nobody tells it any more.

    Raises
    ------
    CacheError
        The file cannot be written, or is something else than a trace.
    """

    def __init__(
        self,
        path: str | None,
        *,
        policy: EffectivePolicy,
        loaded: Callable[[], Iterable[Entry[Any]]],
        detach: Callable[[Recording], object],
    ) -> None:
        self.path = None if path is None else os.path.abspath(path)
        self._policy, self._loaded, self._detach = policy, loaded, detach
        self._descriptor = -1 if self.path is None else _open(self.path)
        self._kept = io.BytesIO()  # of a trace in memory
        self._queue: deque[Note] = deque()
        self._lock = threading.Lock()  # of a block under way; nobody waits for it in a call
        self._open, self._forking = True, False
        self._begin()
        fork.register(self)
        _recordings.add(self)
        fork.at_exit(_close_all)

    def __repr__(self) -> str:
        return f"Recording({self.path or 'in memory'!r}, {'on' if self._open else 'ended'})"

    def _begin(self) -> None:
        """A stream of its own for this process."""
        self._encoder = Encoder()
        self._described: set[bytes] = set()
        self._due = time() + _BLOCK_S
        names = ("memory_kernels", "disk_bytes", "eviction", "time_to_live_s", "directory")
        policy = {name: getattr(self._policy, name) for name in names}
        self._note("start", pid=os.getpid(), policy=policy)
        for entry in self._loaded():
            key: Any = entry.key
            self._note("resident", **_named(key), **self._facts(key[0], entry.value, sized=True))

    def close(self) -> None:
        """Write what is left, and stop; a second time does nothing."""
        if not self._open:
            return
        self._open = False
        self._detach(self)
        self._note("end")
        self.flush()
        with self._lock:  # a thread may be writing what it was told after that
            self._close_file()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self) -> Trace:
        """What has been recorded so far.

        Raises
        ------
        CacheError
            It cannot be read.
        """
        self.flush()
        return read_trace(self._kept.getvalue() if self.path is None else self.path)

    def tune(self, **choice: Any) -> Tuning:
        """What it says of the cache; see `cuplate.cache.tuning.tune`."""
        from cuplate.cache.tuning import tune

        return tune(self.read(), **choice)

    # ---- what the tiers tell -------------------------------------------------------------------------------------

    def used(self, key: Kernel) -> None:
        """A kernel was put, found or run."""
        now = time()
        self._queue.append((key, now))
        if now > self._due or len(self._queue) > _NOTES_A_BLOCK:
            self.flush(wait=False)

    def missed(self, key: Kernel) -> None:
        """A kernel was looked for in memory, and is not there."""
        self._note("missed", **_named(key), thread=threading.get_ident())

    def kept(self, entry: Entry[Any]) -> None:
        """A kernel was loaded."""
        key: Any = entry.key
        facts = self._facts(key[0], entry.value)
        if facts:
            self._note("kept", **_named(key), **facts)

    def dropped(self, key: Kernel | None) -> None:
        """A kernel was taken out of memory though there was room; None for all of them."""
        self._note("dropped", **({} if key is None else _named(key)))

    def gate(self, *, shut: bool) -> None:
        """A block of ``exclusive()`` begins, or ends."""
        self._note("shut" if shut else "opened")

    def asked(self, what: str, key: bytes | None, place: str | None, payload: bytes | None, **told: Any) -> None:
        """Something was asked of a disk tier.

        Parameters
        ----------
        what : str
            ``got``, ``put``, ``deleted`` or ``cleared``.
        key : bytes or None
        place : str or None
            The tier's folder.
        payload : bytes or None
            What was found, or stored.
        **told : object
            More of it.
        """
        if key is not None:
            told["key"] = key.hex()
        if payload is not None and key is not None:
            told |= {"bytes": len(payload), **self._facts(key, payload)}
        self._note(what, place=place, thread=threading.get_ident(), **told)

    def _note(self, what: str, **told: Any) -> None:
        self._queue.append(({"what": what, **told}, time()))
        if time() > self._due or len(self._queue) > _NOTES_A_BLOCK:
            self.flush(wait=False)

    def _facts(self, digest: bytes, value: Any, *, sized: bool = False) -> Facts:
        """What there is to tell of a kernel, once a stream."""
        if digest in self._described:
            return {}
        try:
            cubin = value.cubin if not isinstance(value, bytes) else decode(value, lazily=True)
            facts = _facts_of(cubin)
            if sized:
                facts["bytes"] = len(encode(cubin))
        except Exception:  # no kernel, or a damaged one
            return {}
        self._described.add(digest)
        return {"facts": facts}

    # ---- the file ------------------------------------------------------------------------------------------------

    def flush(self, *, wait: bool = True) -> None:
        """Write what there is, as one block. No fault of it raises.

        Parameters
        ----------
        wait : bool
            False leaves it to a thread that is just at it.
        """
        if not self._lock.acquire(blocking=wait):
            return
        try:
            self._due = time() + _BLOCK_S
            notes = [self._queue.popleft() for _ in range(len(self._queue))]
            if notes and (self.path is None or self._descriptor >= 0):
                self._write(self._encoder.block(notes))
        except BaseException as error:  # an interrupt too: a block that is missing hides all that follow
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._lock.release()

    def _write(self, block: bytes) -> None:
        if self.path is None:
            self._kept.write(block)
        elif (written := os.write(self._descriptor, block)) != len(block):
            raise OSError(f"{written} of {len(block)} bytes were written")

    def _fail(self, error: BaseException) -> None:
        self._open = False
        self._detach(self)
        self._queue.clear()
        self._close_file()
        reason = f"{type(error).__name__}: {error}"
        warn_once(self.path or "", "trace", f"cuplate: the trace {self.path or 'in memory'} ends here ({reason}).")

    def _close_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # ---- fork ----------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Let no block be half written."""
        self._forking = self._lock.acquire(timeout=fork.WAIT_S)

    def after_fork(self, *, child: bool) -> None:
        """Go on; a child begins a stream of its own, and leaves what is not written to its parent.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        taken, self._forking = self._forking, False
        if child and not taken:
            self._lock = threading.Lock()
        elif taken:
            self._lock.release()
        if not child or not self._open:
            return
        self._queue.clear()
        if self.path is None:  # nobody could ever read it
            self._open = False
            self._detach(self)
            return
        self._begin()


class Recorded:
    """A disk tier whose operations are told to recordings; in all else it is the tier.

    Parameters
    ----------
    tier : Tier or NoStore
    recordings : tuple of Recording
    """

    def __init__(self, tier: Tier | NoStore, recordings: tuple[Recording, ...]) -> None:
        self._tier, self._recordings = tier, recordings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def get(self, key: bytes, *, again: bool = False) -> bytes | None:
        """As the tier's."""
        find = getattr(self._tier, "find", None)  # only a tier with layers can tell who answered
        payload, below = (self._tier.get(key, again=again), False) if find is None else find(key, again=again)
        self._tell("got", key, payload, again=again, found=None if payload is None else "layer" if below else "disk")
        return payload

    def put(self, key: bytes, payload: bytes, *, tag: str = "") -> bool:
        """As the tier's."""
        stored = self._tier.put(key, payload, tag=tag)
        self._tell("put", key, payload, tag=tag)
        return stored

    def delete(self, key: bytes) -> bool:
        """As the tier's."""
        gone = self._tier.delete(key)
        self._tell("deleted", key, None)
        return gone

    def clear(self) -> int:
        """As the tier's."""
        gone = self._tier.clear()
        self._tell("cleared", None, None)
        return gone

    def _tell(self, what: str, key: bytes | None, payload: bytes | None, **told: Any) -> None:
        for recording in self._recordings:
            recording.asked(what, key, self._tier.directory, payload, **told)


def _named(key: Any) -> dict[str, Any]:
    return {"key": key[0].hex(), "device": key[1]}


def _facts_of(cubin: Cubin) -> Facts:
    return {
        "function": cubin.function,
        "parameters": cubin.parameters_text[:_LONGEST_TEXT],
        "arch": cubin.arch,
        "compile_s": round(cubin.compile_s, 6),
        "code_bytes": len(cubin.code),
    }


def _open(path: str) -> int:
    """A descriptor to append to.

    Raises
    ------
    CacheError
        It cannot be opened, or holds something else.
    """
    try:
        # Not blocking: a pipe that nobody reads is refused at once. Readable, to see what is there already.
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise CacheError("a trace cannot be written.", file=path, reason=error.strerror) from None
    plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
    if not plain or not is_trace(os.pread(descriptor, 64, 0)):
        os.close(descriptor)
        raise CacheError(
            "a trace is written to a file of its own.",
            file=path,
            given="a file with something else in it" if plain else "no plain file",
            allowed="a new file, or a trace, which is continued",
        )
    return descriptor


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()


def _close_all() -> None:
    for recording in list(_recordings):
        recording.close()
