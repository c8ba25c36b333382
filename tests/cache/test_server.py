"""One far end for the process: made once, left alone when it fails, and nothing told that is not to be told."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cuplate.cache import server as module
from cuplate.cache.breaker import FIRST_S
from cuplate.cache.remote import Unusable
from cuplate.cache.server import Server, server_of


class Clock:
    """In place of the clock of breakers."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """It stands still."""
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process has none."""
    monkeypatch.setattr(module._servers, "known", {})
    yield


def test_policies_that_name_one_server_share_it() -> None:
    """Its rests, its queue and its connections; another name is another server."""
    assert server_of("redis://host") is server_of("redis://host")
    assert server_of("redis://host") is not server_of("redis://host/1")


def test_making_one_loads_no_client() -> None:
    """Nor does it open anything."""
    import subprocess

    code = "import sys; from cuplate.cache.server import Server; Server('redis://host'); print('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_states(clock: Clock) -> None:
    """In words, with the reason; the way to them and back."""
    server = Server("redis://host")
    assert server.state() == "not asked yet"
    turn = server.ask()
    assert turn is not None
    server.well(turn)
    assert server.state() == "on"
    assert server.fail(ValueError("no"), turn) == "failed (ValueError: no) and is left alone for 30 s"
    assert server.state() == "resting for 30 s: ValueError: no"
    assert server.ask() is None and server.ask_to_write() is None
    clock.now += FIRST_S
    turns = server.ask_to_write()
    assert turns is not None
    server.well(*turns)
    assert server.state() == "on"
    turns = server.ask_to_write()
    assert turns is not None
    assert server.refuse(module.Unusable("full"), turns[1]) == "takes no writes (full); none for 30 s"
    assert server.state() == "takes no writes" and server.ask_to_write() is None
    turn = server.ask()
    assert turn is not None
    assert server.fail(Unusable("no client"), turn) == "is off for this process: no client"
    assert server.state() == "off: no client" and server.ask() is None and server.ask_to_write() is None


def test_a_failure_is_told_once_a_rest(clock: Clock) -> None:
    """By the first of those who met it."""
    server = Server("redis://host")
    turns = [server.ask() for _ in range(3)]
    told = [server.fail(TimeoutError("late"), turn) for turn in turns if turn is not None]
    assert [said is not None for said in told] == [True, False, False]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("ERR unknown command `AUTH`, with args beginning with: `me` `hunter2`", "`***` `***`"),
        ("a\r\nb\x1b[31m", "a  b [31m"),
        ("x" * 1000, "x..."),
    ],
)
def test_what_a_server_says_is_not_told_as_it_is(said: str, shown: str) -> None:
    """No password that it repeats, no line or colour of its own, and no novel."""
    text = Server("redis://me:hunter2@host").said(ValueError(said))
    assert text.endswith(shown) and "hunter2" not in text and len(text) < 300 and text.isprintable()


def test_nothing_of_it_prints_a_password() -> None:
    """Nor the user."""
    server = Server("redis://secretuser:hunter2@host:7000/2")
    for text in (repr(server), server.place, server.state()):
        assert "hunter2" not in text and "secretuser" not in text
    assert server.place == "redis://***@host:7000/2"


def test_without_the_client_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    load: Callable[..., Any] = builtins.__import__

    def refuse(name: str, *more: Any, **keywords: Any) -> Any:
        if name.split(".")[0] == "redis":
            raise ImportError("No module named 'redis'")
        return load(name, *more, **keywords)

    monkeypatch.delitem(sys.modules, "cuplate.cache.redis_server", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(Unusable, match=r"pip install 'cuplate\[redis\]'"):
        Server("redis://host").remote()


def test_locks_that_are_held_at_a_fork_stop_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the parent may be making the client just then."""
    monkeypatch.setattr("cuplate.cache.fork.WAIT_S", 0.01)
    server = Server("redis://host")
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with server._making:
            held.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    server.before_fork()
    server.after_fork(child=True)
    assert server._making.acquire(blocking=False)
    over.set()
    thread.join()
    for child in (False, True):
        server.before_fork()
        server.after_fork(child=child)
        assert server.ask() is not None
