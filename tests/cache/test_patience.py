"""Work that is waited for no longer than a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cuplate.cache import patience
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
    assert within(10.0, lambda: value, discard=lambda _: pytest.fail("thrown away")) is value


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


def test_what_is_late_is_thrown_away(gate: threading.Event) -> None:
    """The caller goes on; what comes then is closed, or whatever `discard` does."""
    gone, thrown = threading.Event(), []

    def work() -> str:
        gate.wait()
        return "late"

    def discard(value: str) -> None:
        thrown.append(value)
        gone.set()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        within(0.01, work, discard=discard)
    assert thrown == []
    gate.set()
    assert gone.wait(10) and thrown == ["late"]


def test_an_interrupted_wait_throws_away_what_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the end of the work and its use leaks nothing."""
    thrown: list[str] = []

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            super().wait(10)
            raise KeyboardInterrupt

    monkeypatch.setattr(patience._Errand, "__init__", _with(Interrupted))
    with pytest.raises(KeyboardInterrupt):
        within(10.0, lambda: "value", discard=thrown.append)
    assert thrown == ["value"]


def _with(event: type[threading.Event]):
    made = patience._Errand.__init__

    def init(self: patience._Errand[str], *arguments: object) -> None:
        made(self, *arguments)  # type: ignore[arg-type]
        self.done = event()

    return init


def test_where_no_thread_begins_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThread):
        within(10.0, lambda: pytest.fail("begun"))
