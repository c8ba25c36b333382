"""A Redis-protocol server (Redis, Valkey) as a store of bytes: two commands, no retries, and a bound on everything.

The client as it comes waits 26 s for a server that is frozen, and 3.4 s for one that is not there. Its own time-outs
are for one read each, so that a server which sends a byte now and then is never late. Here each call has a deadline and
a number of bytes, and every operation on the socket is held to what is left of them. A few operations behind the
deadline get a moment each: on a node on which many processes start at once it is this process that is late, and the
answer lies there.

The only module that imports ``redis``.
"""

from __future__ import annotations

import socket
import threading
import time
from functools import partial
from typing import Any

from redis._parsers import _RESP2Parser
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ResponseError
from redis.retry import Retry

from cuplate.cache.address import Address
from cuplate.cache.patience import within
from cuplate.cache.remote import LARGEST_BYTES, WAIT_S, BadEntry, Refused

__all__ = ["RedisServer"]

_PUT_WAIT_S = 1.0  # in the background
_SLACK_BYTES = 4096  # what a reply has besides the value
_GRACES, _GRACE_S = 5, 0.01
_IDLE, _IDLE_S = 8, 60.0  # firewalls forget a connection that rests for minutes, and tell nobody
_LONGEST_MS = 10 * 365 * 86400 * 1000


class _Socket:
    """A socket whose owner, a connection, says until when and how much is read."""

    def __init__(self, opened: Any, owner: _Limits) -> None:
        self._socket, self._owner = opened, owner
        self._asked: float | None = opened.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, seconds: float | None) -> None:
        self._asked = seconds
        self._socket.settimeout(seconds)

    def _arm(self) -> None:
        left = self._owner.left_s()
        self._socket.settimeout(left if self._asked is None else min(left, self._asked))

    def _read(self, number: int) -> int:
        self._owner.left_bytes -= number
        if self._owner.left_bytes < 0:
            raise ConnectionAbortedError("the server sends more than was asked for")
        return number

    def recv(self, *arguments: Any) -> bytes:
        self._arm()
        data: bytes = self._socket.recv(*arguments)
        self._read(len(data))
        return data

    def recv_into(self, *arguments: Any) -> int:
        self._arm()
        return self._read(self._socket.recv_into(*arguments))

    def sendall(self, data: Any) -> None:
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                self._arm()
                sent += self._socket.send(view[sent:])


class _Limits:
    """What a connection is to keep to in the call under way."""

    until = used = 0.0
    left_bytes = _graces = 0
    awaited = True  # a put is made in a thread of its own; at the end of the interpreter there can be no other

    def allow(self, until: float, size: int) -> None:
        """Begin a call.

        Parameters
        ----------
        until : float
            ``time.monotonic()``.
        size : int
            Of the value that may come, bytes.
        """
        self.until, self.left_bytes, self._graces = until, size + _SLACK_BYTES, _GRACES

    def left_s(self) -> float:
        """Seconds that the next operation may take.

        Raises
        ------
        TimeoutError
            None.
        """
        left = self.until - time.monotonic()
        if left >= _GRACE_S:
            return left
        if not self._graces:
            raise TimeoutError("the call is over its time")
        self._graces -= 1
        return _GRACE_S


class _Bounded(_Limits):
    def _connect(self) -> Any:
        return _Socket(super()._connect(), self)  # type: ignore[misc]


class _Plain(_Limits, Connection):
    """Without a resolver that knows no bound, and with one time for all addresses of a name."""

    def _connect(self) -> Any:
        failure = OSError("the name has no address")
        for family, kind, protocol, _, where in self._addresses():
            opened = socket.socket(family, kind, protocol)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                opened.settimeout(self.left_s())
                opened.connect(where)
                opened.settimeout(self.left_s())  # of a handshake of TLS, which is one operation
            except BaseException as error:
                opened.close()
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    raise
                failure = error
            else:
                return opened
        raise failure

    def _addresses(self) -> Any:
        resolve = partial(socket.getaddrinfo, self.host, self.port, type=socket.SOCK_STREAM)
        try:
            return resolve(flags=socket.AI_NUMERICHOST)
        except socket.gaierror:  # a name
            return within(self.left_s(), resolve) if self.awaited else resolve()


class _Tcp(_Bounded, _Plain):
    pass


class _Tls(_Bounded, SSLConnection, _Plain):
    pass


class _Unix(_Bounded, UnixDomainSocketConnection):
    pass


class RedisServer:
    """The two commands.

    Parameters
    ----------
    address : Address
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.RLock()
        self._idle: list[Any] = []

    def get(self, key: bytes) -> bytes | None:
        """The value, at most `LARGEST_BYTES` of it; None for none.

        Raises
        ------
        BadEntry
            Something else is stored there, or something too large.
        Exception
            Whatever the client says.
        """
        until = time.monotonic() + WAIT_S
        connection = self._take() or self._open(until)
        try:
            # Not GET: a value of 512 MB, which the server may hold, would have to be read to its end.
            reply = self._ask(connection, until, LARGEST_BYTES, "GETRANGE", key, 0, LARGEST_BYTES)
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise BadEntry("it is no string") from None
            raise
        if reply is not None and len(reply) > LARGEST_BYTES:
            raise BadEntry("it is too large")
        return reply or None  # the command's word for nothing is an empty value, and none of ours is

    def put(self, key: bytes, value: bytes, *, time_to_live_s: float, replace: bool) -> bool:
        """Store a value; False where there is one already.

        Parameters
        ----------
        key, value : bytes
        time_to_live_s : float
            After which the server forgets it.
        replace : bool
            True takes the place of what is there.

        Raises
        ------
        Refused
            The server takes no writes, and may be well otherwise.
        Exception
            Whatever the client says.
        """
        until = time.monotonic() + _PUT_WAIT_S
        connection = self._take() or self._open(until, awaited=False)
        milliseconds = min(time_to_live_s * 1000, 2 * _LONGEST_MS)
        expiry = ("PX", max(1, int(milliseconds))) if milliseconds <= _LONGEST_MS else ()
        try:
            reply = self._ask(connection, until, 0, "SET", key, value, *expiry, *(() if replace else ("NX",)))
        except ResponseError as error:
            raise Refused(str(error)) from None
        return reply is not None

    def forget(self) -> None:
        """In a forked child: close the connections, which leaves them to the parent."""
        self._idle = []

    def close(self) -> None:
        """Close what is open; the next call opens again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _close(connection)

    def _ask(self, connection: Any, until: float, size: int, *command: Any) -> bytes | None:
        connection.allow(until, size)
        try:
            connection.send_command(*command)
            reply = connection.read_response(disable_decoding=True)
            if reply is not None and type(reply) is not bytes:
                raise TypeError(f"the server answers with {type(reply).__name__}")
        except BaseException as error:  # an answer may still come, and would be the next one's
            _close(connection)
            if not isinstance(error, ResponseError):
                self.close()  # what ails one may ail all, and each would cost another wait and a longer rest
            raise
        connection.used = time.monotonic()
        with self._lock:
            self._idle.append(connection)
            surplus = self._idle.pop(0) if len(self._idle) > _IDLE else None
        if surplus is not None:
            _close(surplus)
        return reply

    def _take(self) -> Any:
        """A connection, not idle for long, that the other side has not closed, nor sent something unasked; or None."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            now = time.monotonic()
            connection.allow(now + WAIT_S, 0)
            try:
                if now - connection.used < _IDLE_S and not connection.can_read(timeout=0):
                    return connection
            except Exception:  # it has been closed
                pass
            _close(connection)

    def _open(self, until: float, *, awaited: bool = True) -> Any:
        address = self._address
        given: dict[str, Any] = {
            "db": address.database,
            "username": address.username or None,
            "password": address.password or None,
            "socket_timeout": None,  # the deadline is that of each call
            "socket_connect_timeout": max(0.001, until - time.monotonic()),
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "parser_class": _RESP2Parser,  # hiredis makes room for as many elements as a server announces
        }
        kind: Any = _Tcp
        if address.path:
            kind, given["path"] = _Unix, address.path
        else:
            given |= {"host": address.host, "port": address.port}
        if address.tls:
            kind = _Tls
            given |= _tls(address)
        try:  # else it reads its own version and tells the server, which takes longer than all the rest
            connection: Any = kind(**given, driver_info=None)
        except TypeError:  # an older client
            connection = kind(**given, lib_name=None, lib_version=None)
        connection.allow(until, 0)
        connection.awaited = awaited
        try:
            connection.connect()
        except BaseException:
            _close(connection)
            raise
        return connection


def _tls(address: Address) -> dict[str, Any]:
    told: dict[str, Any] = dict(address.options)
    unchecked = told.get("ssl_cert_reqs") == "none"
    told["ssl_check_hostname"] = told.get("ssl_check_hostname", "true") == "true" and not unchecked
    return told


def _close(connection: Any) -> None:
    try:
        connection.disconnect()
    except Exception:
        return
