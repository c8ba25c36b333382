"""One compile per key on a node: processes that miss together, and holders of the lock that fail, freeze or die."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuplate.cache import DiskTier, flight
from cuplate.cache.flight import NodeFlights
from tests.cache.children import WAIT_S, Children

fcntl = pytest.importorskip("fcntl")
pytest.importorskip("cuplate.cache.engine")  # imported before the forks below: they start with it loaded

KEY = b"k" * 32


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """Nobody is left behind."""
    with Children(tmp_path / "log") as running:
        yield running


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder never counts as frozen: what ends a wait must be something else."""
    monkeypatch.setattr(flight, "_LEAST_PATIENCE_S", 1000.0)


def obtain(base: Path, children: Children, *, compile_s: float = 0.0, payload: bytes = b"cubin", cap_s: float = 60.0):
    """What a process does on a miss: the flight, with a compile that says so and stores."""
    tier = DiskTier(str(base), write_wait_s=10.0, read_wait_s=1.0, flight_wait_s=cap_s)

    def compile_it() -> bytes:
        children.say("compile")
        time.sleep(compile_s)
        assert tier.put(KEY, payload)
        return payload

    assert tier.flights is not None
    return tier.flights.run(KEY, lambda: tier.get(KEY, again=True), compile_it)


def test_sixteen_processes_cold_on_one_key_compile_once_forty_times(tmp_path: Path, children: Children) -> None:
    """40 rounds of 16 processes, a fresh key each: 40 compiles, and everybody has the bytes (B12)."""
    rounds, processes = 40, 16
    go = [os.pipe() for _ in range(rounds)]

    def work() -> str:
        tier = DiskTier(str(tmp_path / "cache"), write_wait_s=10.0, read_wait_s=1.0)
        for number in range(rounds):
            os.close(go[number][1])
            os.read(go[number][0], 1)  # end of file for all at the same moment
            key = bytes([number]) * 32

            def compile_it(number: int = number, key: bytes = key) -> bytes:
                children.say(f"compile {number}")
                time.sleep(0.01)
                assert tier.put(key, key * 100)
                return key * 100

            assert tier.flights is not None
            found = tier.get(key)
            if found is None:
                found = tier.flights.run(key, lambda key=key: tier.get(key, again=True), compile_it)
            if found != key * 100:
                return f"wrong bytes in round {number}"
            children.say(f"ready {number}")
        return "fine"

    for _ in range(processes):
        children.start(work)
    for number in range(rounds):
        os.close(go[number][0])
        os.close(go[number][1])
        children.until(f"ready {number}", processes)
    said = children.finish()
    assert said.count("done 'fine'") == processes
    assert [said.count(f"compile {number}") for number in range(rounds)] == [1] * rounds
    assert os.listdir(tmp_path / "cache" / "v1.flights") == []


def test_obtain_compiles_once_for_all_processes(tmp_path: Path, children: Children, patient: None) -> None:
    """One of eight processes compiles; the others have its cubin from the disk, ingredients and all."""
    from cuplate.compile import obtain
    from cuplate.cubin import Cubin
    from cuplate.key import Key

    wanted = Key(b"d" * 32, (("source", "s"),))

    def build() -> Cubin:
        children.say("compile")
        time.sleep(0.3)
        return Cubin(b"\x7fELF" + bytes(1000), "k", "sm_90", "f")

    def work() -> tuple[str, object]:
        tier = DiskTier(str(tmp_path / "cache"), write_wait_s=10.0, read_wait_s=1.0)
        got = obtain(wanted, store=tier, build=build, function="f")
        return got.origin, got.cubin.ingredients

    for _ in range(8):
        children.start(work)
    said = children.finish()
    assert said.count("compile") == 1
    assert said.count("done ('compile', (('source', 's'),))") == 1
    assert said.count("done ('disk', (('source', 's'),))") == 7


def test_a_killed_holder_is_taken_over_at_once(tmp_path: Path, children: Children, patient: None) -> None:
    """The system frees the lock with the process, and one of the waiters compiles; patience plays no part (B11)."""
    holder = children.start(lambda: obtain(tmp_path / "cache", children, compile_s=WAIT_S))
    children.until("compile")
    for _ in range(4):
        children.start(lambda: obtain(tmp_path / "cache", children))
    time.sleep(0.1)
    assert children.lines() == ["compile"]
    os.kill(holder, signal.SIGKILL)
    said = children.finish()
    assert said.count("compile") == 2
    assert said.count("done b'cubin'") == 4


def test_a_child_that_outlives_a_killed_holder_does_not_keep_its_lock(
    tmp_path: Path, children: Children, patient: None
) -> None:
    """A forked child has a copy of every descriptor; it closes this one."""
    release = tmp_path / "release"

    def hold() -> None:
        def compile_it() -> bytes:
            if os.fork() == 0:
                while not release.exists():
                    time.sleep(0.01)
                os._exit(0)
            children.say("compile")
            time.sleep(WAIT_S)
            return b""

        NodeFlights(str(tmp_path / "cache")).run(KEY, lambda: None, compile_it)

    holder = children.start(hold)
    children.until("compile")
    os.kill(holder, signal.SIGKILL)
    answer = NodeFlights(str(tmp_path / "cache")).run(KEY, lambda: None, lambda: "mine")
    release.touch()
    assert answer == "mine"


def test_a_frozen_holder_costs_one_duplicate_compile(
    tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that wait for it one compiles, the others wait for that one; its late release disturbs nobody."""
    monkeypatch.setattr(flight, "_LEAST_PATIENCE_S", 1.0)
    holder = children.start(lambda: obtain(tmp_path / "cache", children, compile_s=0.2))
    children.until("compile")
    os.kill(holder, signal.SIGSTOP)
    for _ in range(5):
        children.start(lambda: obtain(tmp_path / "cache", children, compile_s=0.2))
    children.until("done b'cubin'", 5)
    assert children.lines().count("compile") == 2
    os.kill(holder, signal.SIGCONT)
    assert children.finish().count("done b'cubin'") == 6
    assert os.listdir(tmp_path / "cache" / "v1.flights") == []


def test_a_holder_at_work_is_waited_for_beyond_the_patience(
    tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long compile is no frozen one: its process touches the file."""
    monkeypatch.setattr(flight, "_LEAST_PATIENCE_S", 1.0)
    children.start(lambda: obtain(tmp_path / "cache", children, compile_s=2.5))
    children.until("compile")
    assert obtain(tmp_path / "cache", children) == b"cubin"
    assert children.finish().count("compile") == 1


def test_the_cap_ends_every_wait(tmp_path: Path, children: Children, patient: None) -> None:
    """A compile that never ends costs the policy's cap, then one compile of one's own."""
    children.start(lambda: obtain(tmp_path / "cache", children, compile_s=WAIT_S))
    children.until("compile")
    assert obtain(tmp_path / "cache", children, payload=b"own", cap_s=0.6) == b"own"  # above the time between two beats
    assert children.lines().count("compile") == 2


@pytest.mark.parametrize(("longest_s", "patience_s"), [(0.0, 2.0), (0.5, 2.0), (4.0, 12.0), (100.0, 30.0)])
def test_patience_follows_the_longest_compile_seen(
    monkeypatch: pytest.MonkeyPatch, longest_s: float, patience_s: float
) -> None:
    """max(2 s, three times the longest), and never above the policy's cap."""
    monkeypatch.setattr(flight, "_longest_s", longest_s)
    assert NodeFlights("/nowhere", cap_s=30.0).patience_s() == patience_s


def test_a_compile_counts_for_the_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that failed does not."""
    monkeypatch.setattr(flight, "_longest_s", 0.0)
    flights = NodeFlights(str(tmp_path / "f"))
    with pytest.raises(ZeroDivisionError):
        flights.run(KEY, lambda: None, lambda: (time.sleep(0.02), 1 // 0))
    assert flight._longest_s == 0.0
    flights.run(KEY, lambda: None, lambda: time.sleep(0.02) or 1)
    assert flight._longest_s >= 0.02


def test_nobody_queues_for_a_holder_that_stored_nothing(tmp_path: Path, children: Children, patient: None) -> None:
    """A refused source, a full disk: the waiters do not compile one after the other, but side by side."""
    finish, inside = tmp_path / "finish", 6

    def hold() -> None:
        def fail() -> bytes:
            children.say("compile")
            while not finish.exists():
                time.sleep(0.005)
            raise ValueError("refused")

        NodeFlights(str(tmp_path / "f")).run(KEY, lambda: None, fail)

    def wait() -> None:
        def compile_it() -> None:
            children.say("side by side")
            children.until("side by side", inside)  # each waits for all the others inside its own compile

        NodeFlights(str(tmp_path / "f")).run(KEY, lambda: children.say("look"), compile_it)

    children.start(hold)
    children.until("compile")
    for _ in range(inside):
        children.start(wait)
    children.until("look", inside)
    time.sleep(0.2)
    finish.touch()
    said = children.finish()
    assert said.count("raised ValueError('refused')") == 1
    assert said.count("done None") == inside


def test_errors_of_look_and_work_come_out_and_free_the_lock(tmp_path: Path) -> None:
    """And nothing of the flight's own."""
    flights = NodeFlights(str(tmp_path / "f"))
    with pytest.raises(ZeroDivisionError):
        flights.run(KEY, lambda: 1 // 0, lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        flights.run(KEY, lambda: None, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert os.listdir(tmp_path / "f") == []
    assert flights.run(KEY, lambda: None, lambda: 2) == 2
    assert flights.counters() == {"led": 2, "joined": 0, "overtaken": 0, "alone": 0, "errors": 0}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSPC, errno.EIO, errno.EACCES])
def test_where_locks_do_not_work_everybody_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No exception; tried no more at once where it cannot work, after three failures else."""
    tried: list[int] = []

    def fail(descriptor: int, operation: int) -> None:
        tried.append(1)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(flight.fcntl, "flock", fail)
    flights = NodeFlights(str(tmp_path / "f"))
    assert [flights.run(KEY, lambda: None, lambda: 7) for _ in range(6)] == [7] * 6
    assert len(tried) == (1 if number in (errno.ENOLCK, errno.EOPNOTSUPP) else 3)


@pytest.mark.parametrize("moment", ["with the lock just had", "at the end", "in a wait"])
def test_an_interrupt_leaves_no_lock_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: None, moment: str
) -> None:
    """Ctrl-C, once or twice, in whatever line: the next one who wants the key has it at once, in this process too."""
    folder, flights = tmp_path / "f", NodeFlights(str(tmp_path / "f"))
    function = "still" if moment == "at the end" else "_try_to_lock"
    owner = flight._Held if moment == "at the end" else NodeFlights
    before = getattr(owner, function)

    def interrupt(*arguments: object) -> None:
        before(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, open(folder.parent / "held", "w") as held:
        if moment == "in a wait":
            folder.mkdir(0o700)
            (folder / f"{KEY.hex()}.0").hardlink_to(held.name)
            fcntl.flock(held, fcntl.LOCK_EX)
        patch.setattr(owner, function, interrupt)
        with pytest.raises(KeyboardInterrupt):
            flights.run(KEY, lambda: None, lambda: 1)
    assert flights._open == set()
    assert [NodeFlights(str(folder)).run(KEY, lambda: None, lambda: 2), flights.run(KEY, lambda: None, lambda: 3)] == [
        2,
        3,
    ]


def test_a_thread_does_not_wait_for_itself(tmp_path: Path, patient: None) -> None:
    """Work that asks for its own key does it again, with no lock."""
    flights = NodeFlights(str(tmp_path / "f"))
    assert flights.run(KEY, lambda: None, lambda: flights.run(KEY, lambda: None, lambda: 7)) == 7
    assert (flights.counters()["led"], flights.counters()["alone"]) == (1, 1)


def test_without_a_thread_for_the_heartbeat_everybody_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter, or with all threads in use: no lock is kept, and nothing raises."""

    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    flights = NodeFlights(str(tmp_path / "f"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert flights.run(KEY, lambda: None, lambda: 7) == 7
    assert flights.counters()["errors"] == 1
    assert NodeFlights(str(tmp_path / "f")).run(KEY, lambda: None, lambda: 8) == 8


@pytest.mark.parametrize("place", ["a plain file", "a directory in the lock's place", "a link in the lock's place"])
def test_what_stands_in_the_way_costs_the_lock_only(tmp_path: Path, place: str) -> None:
    """Work goes on without it, and nothing is followed or removed."""
    folder = tmp_path / "f"
    if place == "a plain file":
        folder.write_text("mine")
    else:
        folder.mkdir(0o700)
        lock = folder / f"{KEY.hex()}.0"
        lock.mkdir() if "directory" in place else lock.symlink_to(tmp_path / "outside")
    assert NodeFlights(str(folder)).run(KEY, lambda: None, lambda: 7) == 7
    assert not (tmp_path / "outside").exists()


def test_a_directory_that_others_can_write_is_not_used_without_a_secret(tmp_path: Path) -> None:
    """Whoever can hold its locks could make everybody wait."""
    folder = tmp_path / "f"
    folder.mkdir()
    folder.chmod(0o777)
    flights = NodeFlights(str(folder))
    assert flights.run(KEY, lambda: None, lambda: os.listdir(folder)) == []
    assert NodeFlights(str(folder), keyed=True).run(KEY, lambda: None, lambda: len(os.listdir(folder))) == 1


def test_a_process_that_can_store_nothing_makes_nobody_wait(tmp_path: Path) -> None:
    """No lock file for what will not be found afterwards."""
    flights = NodeFlights(str(tmp_path / "f"), useful=lambda: False)
    assert flights.run(KEY, lambda: None, lambda: (tmp_path / "f").exists()) is False


def test_what_killed_holders_left_is_removed_after_a_day(tmp_path: Path) -> None:
    """Once a process, and never a file that somebody holds, nor one that is no lock."""
    folder = tmp_path / "f"
    folder.mkdir(0o700)
    old, held, new, stranger = "aa.0", "bb.0", "cc.0", "notes.0"
    for name in (old, held, new, stranger):
        (folder / name).touch()
    for name in (old, held, stranger):
        os.utime(folder / name, (0, 0))
    with open(folder / held) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        NodeFlights(str(folder)).run(KEY, lambda: None, lambda: 1)
    assert sorted(os.listdir(folder)) == [held, new, stranger]
