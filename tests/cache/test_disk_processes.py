"""Many processes on one directory: opened together, killed, forked. Nobody raises, nobody reads a mixture."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import cuplate
from cuplate import cache
from cuplate.cache import CachePolicy, DiskTier, fork

pytest.importorskip("cuplate.cache.engine")  # imported before the forks below: they start with it loaded
if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

KEY = b"k" * 32
WAIT_S = 60


def together(number: int, work: Callable[[int], object]) -> list[str]:
    """Fork, let all go at once, and give back what each had to say: repr of its result, or its exception."""
    go, release = os.pipe()
    children: list[tuple[int, int]] = []
    for index in range(number):
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(release)
            os.read(go, 1)  # end of file for all at the same moment
            try:
                signal.alarm(WAIT_S)
                text = repr(work(index))
            except BaseException as error:
                text = f"raised {type(error).__name__}: {error}"
            os.write(send, text.encode()[:4000])
            os._exit(0)
        os.close(send)
        children.append((pid, receive))
    os.close(go)
    os.close(release)
    answers = []
    for pid, receive in children:
        with open(receive, "rb") as pipe:
            answers.append(pipe.read().decode() or "died")
        os.waitpid(pid, 0)
    return answers


def test_sixteen_processes_on_one_key_read_nothing_or_all_of_one_writer(tmp_path: Path) -> None:
    """Each puts its own pair of bytes and metadata; every read is one of those pairs, whole (B08)."""
    pairs = [bytes([n]) * 3000 + b"meta of %d" % n for n in range(16)]

    def work(number: int) -> str:
        for base in rounds:
            tier = DiskTier(str(base), write_wait_s=30.0, read_wait_s=1.0)
            for _ in range(3):
                found = tier.get(KEY)
                if found is not None and found not in pairs:
                    return f"mixture {found[:20]!r}"
                if not tier.put(KEY, pairs[number]):
                    return f"put failed: {tier.counters()} {tier.state()}"
            if tier.get(KEY) not in pairs:
                return "nothing after a put"
        return "fine"

    rounds = [tmp_path / str(n) for n in range(6)]
    assert together(16, work) == ["'fine'"] * 16
    for base in rounds:
        assert sorted(os.listdir(base)) == ["v1", "v1.lock"]


def test_many_processes_open_an_empty_directory_at_once(tmp_path: Path) -> None:
    """Released by a barrier, each gets, puts and gets: no exception, no warning, nothing set aside (B09)."""

    def work(number: int) -> tuple[object, ...]:
        tier = DiskTier(str(tmp_path / "cache"), write_wait_s=10.0, read_wait_s=1.0)
        mine = bytes([number]) * 32
        return tier.get(mine), tier.put(mine, b"payload"), tier.get(mine), tier.counters()["errors"]

    assert together(24, work) == ["(None, True, b'payload', 0)"] * 24
    assert sorted(os.listdir(tmp_path / "cache")) == ["v1", "v1.lock"]
    assert DiskTier(str(tmp_path / "cache")).sums()[0] == 24


def test_a_fork_while_other_threads_make_tiers_does_not_deadlock(tmp_path: Path) -> None:
    """Making tiers, counting in new threads and trimming go on in other threads; each child has all locks free."""
    stop = threading.Event()

    def make() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            cache.disk_tier(CachePolicy(directory=tmp_path / str(number % 50), secret=b"%d" % number))
            cache.memory_tier().put(number, number)
            thread = threading.Thread(target=cache.stats)
            thread.start()
            thread.join()

    makers = [threading.Thread(target=make) for _ in range(3)]
    for maker in makers:
        maker.start()
    try:
        answers = []
        for _ in range(15):
            answers += together(
                2,
                lambda n: (
                    cache.disk_tier(CachePolicy(directory=tmp_path)).get(KEY),
                    cache.memory_tier().get("none"),
                    cache.stats(all_threads=True).disk.puts >= 0,
                ),
            )
    finally:
        stop.set()
        for maker in makers:
            maker.join()
        cache.memory_tier().clear()
    assert answers == ["(None, None, True)"] * 30


def test_a_fork_inside_exclusive_of_another_thread_leaves_a_free_gate() -> None:
    """The holder does not exist in the child: clear() does not wait for it, and counts still work."""
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.exclusive():
            inside.set()
            done.wait(WAIT_S)

    before = cache.set_policy(CachePolicy(disk=False))
    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(WAIT_S)
    try:
        answers = together(2, lambda n: (cache.clear(), cache.reset(), cache.stats().memory.hits))
    finally:
        done.set()
        holder.join()
        cache.set_policy(before)
    assert answers == ["(0, None, 0)"] * 2


def test_a_fork_while_another_thread_imports_from_us_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child can import the same module; the lock that the thread held at the fork would be held there for ever."""
    begun = threading.Event()
    monkeypatch.setattr(sys, "begun", begun, raising=False)
    monkeypatch.setattr(cuplate, "__path__", [*cuplate.__path__, str(tmp_path)])
    name = "cuplate.slowly_imported"
    (tmp_path / "slowly_imported.py").write_text("import sys, time\nsys.begun.set()\ntime.sleep(0.2)\nvalue = 7\n")
    thread = threading.Thread(target=importlib.import_module, args=(name,))
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        assert together(2, lambda n: importlib.import_module(name).value) == ["7", "7"]
    finally:
        thread.join()
        del sys.modules[name]


class Slow:
    """A member of each fork that takes its time, once."""

    def __init__(self) -> None:
        self.begun, self.gate, self.ready = threading.Event(), threading.Event(), False
        self.error: BaseException | None = None

    def before_fork(self) -> None:
        self.begun.set()
        self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.ready = True

    def after_fork(self, *, child: bool) -> None:
        self.ready = False


def test_two_threads_fork_one_after_the_other() -> None:
    """Else each holds what the other waits for, and both do so for ever."""
    slow, seen = Slow(), list[bool]()

    def fork_it() -> None:
        fork._before()
        seen.append(slow.ready)
        fork._after(child=False)

    fork.register(slow)
    threads = [threading.Thread(target=fork_it) for _ in range(2)]
    threads[0].start()
    assert slow.begun.wait(WAIT_S)
    threads[1].start()
    threads[1].join(0.1)
    slow.gate.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert seen == [True, True] and fork._held == []


def test_an_interrupt_before_a_fork_leaves_no_lock_held() -> None:
    """Python tells it and forks; the next fork, of another thread, has all that it needs."""
    slow = Slow()
    slow.gate.set()
    slow.error = KeyboardInterrupt()
    fork.register(slow)
    with pytest.raises(KeyboardInterrupt):
        fork._before()
    fork._after(child=False)
    slow.error = None
    thread = threading.Thread(target=lambda: (fork._before(), fork._after(child=False)), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
