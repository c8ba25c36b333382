"""Events reach whoever listens, cost nothing when nobody does, and fail alone."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from cuplate import events
from cuplate.errors import SettingError
from cuplate.events import Event, emit, subscribe


def test_a_subscriber_gets_what_was_emitted() -> None:
    """Every fact of an event arrives, details under their names."""
    seen: list[Event] = []
    with subscribe(seen.append):
        emit("compile", "saxpy", key="ab", seconds=0.5, arch="sm_90a")
    assert [(e.kind, e.function, e.key, e.tier, e.seconds, dict(e.detail)) for e in seen] == [
        ("compile", "saxpy", "ab", None, 0.5, {"arch": "sm_90a"})
    ]


def test_a_closed_subscription_is_silent() -> None:
    """The with block, or close(), ends it; closing twice does nothing."""
    seen: list[Event] = []
    subscription = subscribe(seen.append)
    subscription.close()
    subscription.close()
    emit("launch", "saxpy")
    assert seen == []
    assert events.listeners == []


def test_kinds_filter() -> None:
    """Only the kinds asked for arrive; one may be given as a plain string."""
    seen: list[str] = []
    with subscribe(lambda e: seen.append(e.kind), "miss"), subscribe(lambda e: seen.append(e.kind), ["hit", "evict"]):
        for kind in ("render", "hit", "miss", "evict"):
            emit(kind, "f")  # type: ignore[arg-type]
        assert events.heard("miss")
        assert not events.heard("load")
    assert seen == ["hit", "miss", "evict"]


def test_an_unknown_kind_is_an_error_with_the_nearest_name() -> None:
    """A misspelt kind would be a subscription to nothing."""
    with pytest.raises(SettingError, match=r"(?s)no event of this kind.*compiled.*try\s+'compile'"):
        subscribe(print, ["compiled"])
    assert events.listeners == []


def test_a_failing_subscriber_is_logged_and_the_next_one_still_told(caplog: pytest.LogCaptureFixture) -> None:
    """A callback's exception goes to the log, not into the call."""
    seen: list[Event] = []

    def fail(event: Event) -> None:
        raise RuntimeError("mine")

    with subscribe(fail), subscribe(seen.append):
        emit("load", "f")
    assert len(seen) == 1
    assert "a subscriber failed on load f" in caplog.text
    assert "RuntimeError: mine" in caplog.text


def test_a_subscriber_may_close_itself() -> None:
    """Closing inside the callback does not disturb the others."""
    seen: list[str] = []
    first = subscribe(lambda e: (seen.append("first"), first.close()))
    with subscribe(lambda e: seen.append("second")):
        emit("hit", "f")
        emit("hit", "f")
    assert seen == ["first", "second", "second"]


def test_the_list_of_listeners_is_always_the_same_object() -> None:
    """Generated code binds the list once and tests its truth."""
    bound = events.listeners
    assert not bound
    with subscribe(print):
        assert bound
    assert events.listeners is bound


def test_the_logger_says_every_event_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """One line each on the logger ``cuplate``, and none above DEBUG."""
    with caplog.at_level(logging.INFO, "cuplate"):
        emit("hit", "f", tier="disk")
        assert caplog.text == ""
    with caplog.at_level(logging.DEBUG, "cuplate"):
        emit("hit", "f", tier="disk", key="0123456789abcdef0123", seconds=0.002, why="warm")
    assert caplog.messages == ["hit f tier=disk key=0123456789abcdef 2.000 ms why=warm"]


def test_an_event_cannot_be_changed() -> None:
    """Events are shared between subscribers: frozen, details too."""
    event = Event("hit", "f", detail={"a": 1})
    with pytest.raises(AttributeError):
        event.kind = "miss"  # type: ignore[misc]
    seen: list[Event] = []
    with subscribe(seen.append):
        emit("hit", "f", a=1)
    with pytest.raises(TypeError):
        seen[0].detail["a"] = 2  # type: ignore[index]


def test_emitting_to_nobody_does_not_import_logging() -> None:
    """A process that has not imported ``logging`` cannot have enabled it."""
    script = "import sys; from cuplate import events; events.emit('hit', 'f'); print('logging' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
