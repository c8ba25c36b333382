"""One measurement at a time on a device, and never a wait without end."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from cuplate.autotune.turn import turn


def soon() -> float:
    """A time that does not come while a test runs."""
    return time.monotonic() + 60


def test_a_device_is_one_holders_at_a_time_and_another_device_anybodys() -> None:
    """Threads of one process too: the lock is the file's, not the process's."""
    order: list[str] = []
    inside = threading.Event()

    def other() -> None:
        inside.wait()
        with turn("GPU-1", soon()) as held:
            order.append(f"second {held}")

    thread = threading.Thread(target=other)
    thread.start()
    with turn("GPU-1", soon()) as held, turn("GPU-2", soon()) as both:
        inside.set()
        time.sleep(0.05)  # the other one is at the lock, or will be
        order.append(f"first {held and both}")
    thread.join()
    assert order == ["first True", "second True"]


def test_who_has_waited_long_enough_goes_on_without() -> None:
    """The time is up: no lock, and no error."""
    with turn("GPU-1", soon()) as held, turn("GPU-1", time.monotonic()) as late:
        assert (held, late) == (True, False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_meanwhile_does_not_keep_the_turn() -> None:
    """It has the descriptor too, and may live for days."""
    waits, ends = os.pipe()
    with turn("GPU-3", soon()):
        child = os.fork()
        if child == 0:  # pragma: no cover
            os.close(ends)
            os.read(waits, 1)
            os._exit(0)
    try:
        with turn("GPU-3", time.monotonic()) as held:
            assert held
    finally:
        os.close(ends)
        os.close(waits)
        os.waitpid(child, 0)


@pytest.mark.parametrize("what", ["a directory", "a link", "no folder"])
def test_where_there_can_be_no_lock_there_is_none(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else under its name, or no place at all; nothing is followed, and nothing raised."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / f"cuplate-{os.getuid()}-a-device-of-4-.turn"
    if what == "a directory":
        path.mkdir()
    elif what == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with turn("a device/of (4)", soon()) as held:
        assert not held
    assert not (tmp_path / "elsewhere").exists()
