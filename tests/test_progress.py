"""How far something is: on a terminal, by rich or by a line; elsewhere in silence."""

from __future__ import annotations

import io
import sys

import pytest

from cuplate.progress import progress


class Terminal(io.StringIO):
    """Stderr of a person."""

    def isatty(self) -> bool:
        return True


def told(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None) -> str:
    """What two steps of three write."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("compiling", 3) as advance:
        advance(1)
        advance(2)
    return stream.getvalue() if stream is not None else ""


def test_a_terminal_without_rich_gets_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written over at each step."""
    for name in ("rich", "rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    assert told(monkeypatch, Terminal()) == "\rcompiling: 1 of 3\rcompiling: 2 of 3\n"


def test_a_terminal_with_rich_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is gone at the end."""
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    assert "compiling" in told(monkeypatch, Terminal())


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_no_terminal_hears_nothing(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a process without a stderr fail."""
    assert told(monkeypatch, stream) == ""
