"""One far end for the whole process, however many policies name it: made once, left alone when it fails.

What is wrong with it is told here, because here is what must not be told: a server may put the password that it was
sent into its answer.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from cuplate.cache import address, fork
from cuplate.cache.breaker import Breaker
from cuplate.cache.counts import count
from cuplate.cache.offers import Offers
from cuplate.cache.remote import Foreign, Remote, Unusable

__all__ = ["Server", "server_of"]

_LONGEST_REASON = 200
_MAKING_WAIT_S = 10.0


class Server:
    """What a policy's ``shared`` leads to. Making one loads no client and opens no connection.

    Parameters
    ----------
    named : str
        A URL, or ``module:Class``, as `cuplate.cache.address.check` accepts it.

    Attributes
    ----------
    place : str
        It for people.
    offers : Offers
        What is to be stored there.
    """

    def __init__(self, named: str) -> None:
        self.place = address.shown(named)
        self._named = named
        self._hidden: tuple[str, ...] = ()
        if address.is_url(named):
            told = address.parse(named)
            self._hidden = tuple(filter(None, (told.password, told.username)))
        self._lock = threading.RLock()
        self._making = threading.RLock()  # of its own: making may take long, and breakers are asked meanwhile
        self._remote: Remote | None = None
        self._off: str | None = None
        self._reason = ""
        self._asked = False
        self._reads, self._writes = Breaker(), Breaker()
        self._forking: list[Any] = []
        self.offers = Offers(lambda number: count("shared", drops=number))
        fork.register(self)

    def __repr__(self) -> str:
        return f"Server({self.place!r}, {self.state()})"

    def remote(self) -> Remote:
        """The far end, made at the first call.

        Raises
        ------
        Unusable
            There never will be one in this process.
        Exception
            What the making of it raised.
        """
        if self._remote is None:
            if not self._making.acquire(timeout=_MAKING_WAIT_S):
                raise TimeoutError("another thread has not ended making it")
            try:
                if self._remote is None:
                    self._remote = self._make()
            finally:
                self._making.release()
        return self._remote

    def prepare(self) -> None:
        """Make the far end now, in this thread: at the end of the interpreter the client cannot be imported any more.

        Why it cannot be made is told by who asks it.
        """
        with self._lock:
            wanted = self._remote is None and self._off is None and not self._reads.left_s(time.monotonic())
        if wanted:
            with suppress(Exception):
                self.remote()

    def _make(self) -> Remote:
        if not address.is_url(self._named):
            return Foreign(self._named)
        try:
            from cuplate.cache.redis_server import RedisServer
        except ImportError as error:
            raise Unusable(f"it needs redis ({error}): pip install 'cuplate[redis]'") from None
        return RedisServer(address.parse(self._named))

    # ---- who may ask, and how it went ------------------------------------------------------------------------------

    def ask(self) -> int | None:
        """A turn to look up; None: not now, or never."""
        with self._lock:
            return None if self._off is not None else self._reads.ask(time.monotonic())

    def ask_to_write(self) -> tuple[int, int] | None:
        """A turn to store, which is one of each breaker; None: not now, or never."""
        with self._lock:
            now = time.monotonic()
            if self._off is not None or self._writes.left_s(now):
                return None
            reads = self._reads.ask(now)
            writes = None if reads is None else self._writes.ask(now)
            return None if reads is None or writes is None else (reads, writes)

    def well(self, reads: int, writes: int | None = None) -> None:
        """It answered."""
        with self._lock:
            self._asked = True
            self._reads.well(reads)
            if writes is not None:
                self._writes.well(writes)

    def fail(self, error: Exception, turn: int) -> str | None:
        """It failed: what to tell; None if it has been told already."""
        with self._lock:
            self._asked = True
            if isinstance(error, Unusable):
                self._off = self.said(error)
                return f"is off for this process: {self._off}"
            rest_s = self._reads.fail(turn, time.monotonic())
            if rest_s is None:
                return None
            self._reason = self.said(error)
            return f"failed ({self._reason}) and is left alone for {rest_s:g} s"

    def refuse(self, error: Exception, turn: int) -> str | None:
        """It takes no writes: what to tell; None if it has been told already."""
        with self._lock:
            rest_s = self._writes.fail(turn, time.monotonic())
            return None if rest_s is None else f"takes no writes ({self.said(error)}); none for {rest_s:g} s"

    def said(self, error: Exception) -> str:
        """An error in words, without what is not to be told."""
        name = "" if type(error).__module__.startswith("cuplate") else f"{type(error).__name__}: "
        text = str(error)
        for hidden in self._hidden:
            text = text.replace(hidden, "***")
        text = "".join(character if character.isprintable() else " " for character in f"{name}{text}")
        return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."

    def state(self) -> str:
        """``"on"``, ``"not asked yet"``, ``"takes no writes"``; ``"resting for N s"`` or ``"off"``, and why."""
        with self._lock:
            now = time.monotonic()
            if self._off is not None:
                return f"off: {self._off}"
            if left := self._reads.left_s(now):
                return f"resting for {left:.0f} s: {self._reason}"
            if self._writes.left_s(now):
                return "takes no writes"
            return "on" if self._asked else "not asked yet"

    def close(self) -> None:
        """Wait a moment for what is under way, and close what is open; the next call opens again."""
        self.offers.flush()
        if self._remote is not None:
            self._remote.close()

    # ---- fork ----------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Take the locks."""
        self._forking = [lock for lock in (self._making, self._lock) if lock.acquire(timeout=fork.WAIT_S)]

    def after_fork(self, *, child: bool) -> None:
        """Release them; a child has new ones, and connections of its own.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        taken, self._forking = self._forking, []
        if not child:
            for lock in taken:
                lock.release()
            return
        self._lock, self._making = threading.RLock(), threading.RLock()
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.forget()


class _Servers:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.known: dict[str, Server] = {}
        fork.register(self)

    def before_fork(self) -> None:
        self.lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        self.lock.release()


_servers = _Servers()


def server_of(named: str) -> Server:
    """The process's one server of a name.

    Parameters
    ----------
    named : str
        As of `Server`.
    """
    server = _servers.known.get(named)
    if server is None:
        # Made with no lock held: a fork stops the making of members first, and takes the other locks then.
        made = Server(named)
        with _servers.lock:
            server = _servers.known.setdefault(named, made)
    return server
