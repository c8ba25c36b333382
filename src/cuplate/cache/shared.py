"""The shared tier: sealed entries on a server of the user's, asked when the disk has missed, written behind.

As with the disk, it can only help: whatever goes wrong is a miss, a count and one warning a cause, and costs one
bounded wait. It has no lock over the fleet: that makes nobody faster, and adds a lease to wait for when a node dies.
"""

from __future__ import annotations

import time

from cuplate.cache.counts import count
from cuplate.cache.faults import tell
from cuplate.cache.offers import FLUSH_S
from cuplate.cache.remote import LARGEST_BYTES, BadEntry, Refused
from cuplate.cache.server import Server
from cuplate.errors import CacheError
from cuplate.seal import seal, unseal

__all__ = ["SCHEMA", "SharedTier"]

SCHEMA = b"cuplate:1"
"""In front of every key: another number where the seal, or what is sealed, is no longer what older versions read."""

_SETTING = "CUPLATE_SHARED or CachePolicy(shared=...)"
_BAD_KEPT = 1024


class SharedTier:
    """One policy's view of a server: its secret, and how long an entry lives. Making one loads and opens nothing.

    Parameters
    ----------
    server : Server
    secret : bytes
        Key of the seal, not empty. Keys carry a mark of it, so that two secrets on one server do not meet.
    time_to_live_s : float
        After which the server forgets an entry, seconds.
    on_error : str
        As in `cuplate.CachePolicy`. What fails in the background is at most a warning.
    """

    def __init__(
        self, server: Server, *, secret: bytes, time_to_live_s: float = float("inf"), on_error: str = "warn"
    ) -> None:
        if not secret:
            raise ValueError("a shared tier needs a secret")
        self.server = server
        self._secret, self._time_to_live_s, self._on_error = secret, time_to_live_s, on_error
        mark = seal(b"cuplate shared tier", b"", secret)[-8:].hex().encode()
        self._prefix = b"%s:%s:" % (SCHEMA, mark)
        self._bad: set[bytes] = set()

    def __repr__(self) -> str:
        return f"SharedTier({self.server.place!r}, {self.state()})"

    @property
    def place(self) -> str:
        """Where it is, without user and password."""
        return self.server.place

    def state(self) -> str:
        """See `Server.state`."""
        return self.server.state()

    def name(self, key: bytes) -> bytes:
        """What an entry is called on the server.

        Parameters
        ----------
        key : bytes
            Digest.
        """
        return self._prefix + key.hex().encode()

    def get(self, key: bytes) -> bytes | None:
        """The payload under a key, or None. Waits 0.2 s at most, and raises for ``on_error="raise"`` only.

        Parameters
        ----------
        key : bytes
            Digest.
        """
        start = time.perf_counter()
        try:
            payload, errors = self._get(key)
        except CacheError:
            count("shared", misses=1, errors=1, seconds=time.perf_counter() - start)
            raise
        seconds = time.perf_counter() - start
        if payload is None:
            count("shared", misses=1, errors=errors, seconds=seconds)
        else:
            count("shared", hits=1, read_bytes=len(payload), seconds=seconds)
        return payload

    def _get(self, key: bytes) -> tuple[bytes | None, int]:
        turn = self.server.ask()
        if turn is None:
            return None, 0
        told: str | None = None
        try:
            blob = self.server.remote().get(self.name(key))
        except BadEntry as error:
            self.server.well(turn)
            return None, self._damaged(key, str(error))
        except Exception as error:
            told = self.server.fail(error, turn)
        else:
            self.server.well(turn)
            payload = None if blob is None else unseal(key, blob, self._secret)
            return payload, 0 if blob is None or payload is not None else self._damaged(key, "its seal is wrong")
        self._tell("error", told, self._on_error)  # behind the handler: an error of ours holds none of the client's
        return None, 1

    def offer(self, key: bytes, payload: bytes, *, replace: bool = False) -> bool:
        """Have a payload stored soon, by a thread in the background. Never raises, never waits for the server.

        Parameters
        ----------
        key : bytes
            Digest.
        payload : bytes
            A record.
        replace : bool
            True takes the place of what is there; by default who came first stays, unless it was bad.

        Returns
        -------
        bool
            False when it was dropped.
        """
        blob = seal(key, payload, self._secret)
        if len(blob) > LARGEST_BYTES:
            count("shared", drops=1)
            return False
        self.server.prepare()
        replace = replace or key in self._bad
        self._bad.discard(key)
        return self.server.offers.add(len(blob), lambda: self._put(key, blob, replace))

    def _put(self, key: bytes, blob: bytes, replace: bool) -> None:
        turns = self.server.ask_to_write()
        if turns is None:
            count("shared", drops=1)
            return
        start = time.perf_counter()
        stored, errors, cause, told = False, 0, "error", None
        reads, writes = turns
        try:
            lives_s = self._time_to_live_s
            stored = self.server.remote().put(self.name(key), blob, time_to_live_s=lives_s, replace=replace)
            self.server.well(reads, writes)
        except Refused as error:
            self.server.well(reads)
            errors, cause, told = 1, "write", self.server.refuse(error, writes)
        except Exception as error:
            errors, told = 1, self.server.fail(error, reads)
        written = len(blob) if stored else 0
        count("shared", puts=stored, errors=errors, written_bytes=written, seconds=time.perf_counter() - start)
        self._tell(cause, told, _quiet(self._on_error))

    def check(self) -> str:
        """Ask for something that is not there, counting nothing; the state after that."""
        turn = self.server.ask()
        if turn is not None:
            try:
                self.server.remote().get(SCHEMA)
                self.server.well(turn)
            except BadEntry:
                self.server.well(turn)
            except Exception as error:
                self.server.fail(error, turn)
        return self.state()

    def flush(self, wait_s: float = FLUSH_S) -> bool:
        """Wait until all offers are stored; False when some are not.

        Parameters
        ----------
        wait_s : float
            Longest wait, seconds.
        """
        return self.server.offers.flush(wait_s)

    def _damaged(self, key: bytes, reason: str) -> int:
        """What lies under a key is not ours; the number of errors to count. What is compiled now takes its place."""
        if len(self._bad) >= _BAD_KEPT:
            self._bad.clear()
        self._bad.add(key)
        self._tell("bad entry", f"holds an entry that is not to be believed ({reason})", self._on_error)
        return 1

    def _tell(self, cause: str, what: str | None, on_error: str) -> None:
        if what is None:
            return
        tell(
            on_error,
            self.place,
            cause,
            f"cuplate: the shared tier {self.place} {what}. Kernels are compiled, as without it. "
            f"Setting: {_SETTING}; off for none.",
        )


def _quiet(on_error: str) -> str:
    """In the background there is nobody to raise to."""
    return "warn" if on_error == "raise" else on_error
