"""What is stored in the background: bounds of the queue, its end, and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from cuplate.cache import offers as module
from cuplate.cache.offers import Offers


class Gated:
    """A queue whose first work waits until it is let go."""

    def __init__(self) -> None:
        self.drops: list[int] = []
        self.done: list[int] = []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.offers = Offers(self.drops.append)
        assert self.offers.add(1, self.wait)
        assert self.begun.wait(10)

    def wait(self) -> None:
        self.begun.set()
        self.gate.wait(30)

    def add(self, number: int, size: int = 1) -> bool:
        return self.offers.add(size, lambda: self.done.append(number))


@pytest.fixture
def gated() -> Iterator[Gated]:
    """Let go at the end."""
    made = Gated()
    yield made
    made.gate.set()
    assert made.offers.flush(30)


def test_all_is_done_in_order_and_the_thread_ends(gated: Gated) -> None:
    """Nobody who adds waits; the next work begins another thread."""
    assert all(gated.add(n) for n in range(100)) and gated.done == []
    assert not gated.offers.flush(0.01)
    gated.gate.set()
    assert gated.offers.flush(30) and gated.done == list(range(100))
    assert not any(thread.name == "cuplate-offers" and thread.is_alive() for thread in _threads())
    assert gated.add(100) and gated.offers.flush(30) and gated.done[-1] == 100


def _threads() -> list[threading.Thread]:
    """Threads, the one that is just ending aside."""
    for thread in threading.enumerate():
        if thread.name == "cuplate-offers":
            thread.join(10)
    return threading.enumerate()


def test_a_full_queue_drops(gated: Gated) -> None:
    """By number and by bytes; what is in it stays."""
    kept = [gated.add(n) for n in range(module._MOST + 3)]
    assert kept == [True] * module._MOST + [False] * 3
    assert gated.drops == [1] * 3
    gated.gate.set()
    assert gated.offers.flush(30) and gated.done == list(range(module._MOST))


def test_bytes_are_bounded_too(gated: Gated) -> None:
    """And given back when the work is done."""
    assert gated.add(0, module._MOST_BYTES) and not gated.add(1, 1)
    gated.gate.set()
    assert gated.offers.flush(30)
    assert gated.add(2, module._MOST_BYTES) and gated.offers.flush(30) and gated.done == [0, 2]


def test_work_that_fails_stops_no_other(gated: Gated) -> None:
    """It ought not to."""
    gated.offers.add(1, lambda: 1 / 0)
    gated.offers.add(1, sys.exit)
    gated.add(2)
    gated.gate.set()
    assert gated.offers.flush(30) and gated.done == [2]


def test_the_end_of_a_process_has_a_bound(gated: Gated) -> None:
    """What has not been done by then is dropped, and counted."""
    for n in range(5):
        gated.add(n)
    gated.offers.end(time.monotonic() + 0.01)
    assert gated.drops == [5] and len(gated.offers) == 0


def test_where_no_thread_begins_it_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    drops: list[int] = []
    queue = Offers(drops.append)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not queue.add(1, lambda: pytest.fail("done")) and drops == [1] and len(queue) == 0


CHILD = """
import os, sys, threading, time
from cuplate.cache.offers import Offers
def say(what): os.write(1, what.encode() + b"\\n")
offers = Offers(lambda number: say(f"dropped {number}"))
"""


def run(code: str) -> list[str]:
    """What a fresh process says."""
    done = subprocess.run([sys.executable, "-c", CHILD + code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_a_process_ends_when_all_is_stored() -> None:
    """The end of the interpreter waits for the queue."""
    code = "for n in range(5): offers.add(1, lambda n=n: (time.sleep(0.02), say(str(n))))"
    assert run(code) == ["0", "1", "2", "3", "4"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_leaves_the_parents_work_to_the_parent() -> None:
    """Forked in the middle of it, from another thread than the writer: nothing is done twice, nothing hangs."""
    code = """
begun, gate = threading.Event(), threading.Event()
offers.add(1, lambda: (begun.set(), gate.wait(30), say("first")))
offers.add(1, lambda: say("second"))
begun.wait(30)
pid = os.fork()
if pid == 0:
    offers.add(1, lambda: say("child"))
    assert offers.flush(30)
    os._exit(0)
os.waitpid(pid, 0)
gate.set()
"""
    assert run(f"import warnings; warnings.simplefilter('ignore')\n{code}") == ["child", "first", "second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_worker_of_multiprocessing_stores_before_it_ends() -> None:
    """It ends without `atexit`."""
    code = """
import multiprocessing
def work(): offers.add(1, lambda: (time.sleep(0.05), say("worker")))
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start(); process.join()
"""
    assert run(code) == ["worker"]
