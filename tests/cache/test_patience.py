"""Work that is waited for no longer than a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cuplate.cache.patience import NoThread, within


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What is waited for; opened at the end, and no thread is left behind."""
    opened = threading.Event()
    yield opened
    opened.set()
    for thread in threading.enumerate():
        if thread.name == "cuplate-shared":
            thread.join()


@pytest.mark.parametrize("value", [None, 3])
def test_what_is_in_time_comes_back(value: object) -> None:
    """Nothing is a value too."""
    assert within(10.0, lambda: value) is value


def test_its_error_comes_back() -> None:
    """As it was raised."""
    error = KeyError("x")

    def work() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        within(10.0, work)
    assert caught.value is error


def test_what_ends_a_thread_ends_no_call() -> None:
    """`SystemExit` in code of the user's is an error like any other."""
    with pytest.raises(RuntimeError, match="SystemExit"):
        within(10.0, lambda: exit(3))


def test_what_is_late_is_left_behind(gate: threading.Event) -> None:
    """The caller goes on; what comes then is nobody's."""
    over = threading.Event()

    def work() -> None:
        gate.wait()
        over.set()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        within(0.01, work)
    assert not over.is_set()
    gate.set()
    assert over.wait(10)


def test_where_no_thread_begins_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThread):
        within(10.0, lambda: pytest.fail("begun"))
