"""Recordings: what is written down, that nothing is when nobody asked, and that no trouble of theirs reaches a call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float32

from cuplate import Array, Inline, cache, events, specialize
from cuplate.cache import MemoryTier, front, memory, stats
from cuplate.cache.memory import Entry
from cuplate.cache.recording import Recorded, Recording
from cuplate.cache.trace import Trace, read_trace
from cuplate.errors import CacheError, CacheWarning
from tests.doubles import Gpu, install

KEYS = [(bytes([n]) * 32, 0) for n in range(8)]


@pytest.fixture(autouse=True)
def memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No loaded kernels, and nobody who listens, before and after."""
    monkeypatch.setattr(front._process, "memory", None)
    monkeypatch.setattr(front._process, "followed", False)
    monkeypatch.setattr("cuplate.cache.faults._said", set())  # nothing has been warned of yet
    yield
    for recording in front._process.recordings:
        recording.close()


def uses(trace: Trace) -> list[list[int]]:
    """First bytes of the keys that each process used."""
    return [[p.kernels[n][0][0] for n in p.uses] for p in trace.processes]


def whats(trace: Trace) -> list[str]:
    """Kinds of the records of one process."""
    (process,) = trace.processes
    return [record.what for record in process.records]


# what is told ---------------------------------------------------------------------------------------------------------


def test_each_use_of_an_entry_is_written_down_in_order() -> None:
    """Puts, finds, and the ticks that generated code stores."""
    tier: MemoryTier[str] = MemoryTier(4)
    before = tier.put(KEYS[0], "k")
    with cache.record() as recording:
        assert tier.get(KEYS[1]) is None
        entry = tier.put(KEYS[1], "k")
        entry.tick = memory.next_tick()
        tier.get(KEYS[0])
        before.tick = memory.next_tick()
        tier.discard(KEYS[1])
        tier.clear()
    entry.tick = before.tick = memory.next_tick()
    assert uses(recording.read()) == [[1, 1, 0, 0]]
    assert whats(recording.read()) == ["start", "missed", "dropped", "dropped", "end"]


def test_with_nobody_recording_a_tick_is_a_plain_slot() -> None:
    """Before, after, and after two recordings that end in any order."""
    slot = Entry.__dict__["tick"]
    assert type(slot).__name__ == "member_descriptor"
    first, second = cache.record(), cache.record()
    assert Entry.__dict__["tick"] is not slot
    first.close()
    entry = Entry("k", KEYS[3])
    second.close()
    second.close()
    assert Entry.__dict__["tick"] is slot and events.listeners == []
    assert front._process.recordings == ()
    assert entry.tick < memory.next_tick()
    assert uses(first.read()) == [[]] and uses(second.read()) == [[3]]
    assert not isinstance(cache.disk_tier(), Recorded)


def test_eviction_is_exact_while_somebody_records() -> None:
    """The order of ticks is the same through the property."""
    tier: MemoryTier[str] = MemoryTier(2)
    with cache.record():
        first = tier.put(KEYS[0], "k")
        tier.put(KEYS[1], "k")
        first.tick = memory.next_tick()
        tier.put(KEYS[2], "k")
        assert {entry.key for entry in tier} == {KEYS[0], KEYS[2]}


def test_exclusive_is_written_down() -> None:
    """Where it begins and ends, an exception included."""
    with cache.record() as recording, pytest.raises(KeyError), cache.exclusive():
        raise KeyError
    assert whats(recording.read()) == ["start", "shut", "opened", "end"]


def test_the_disk_tier_is_the_same_and_told_of(tmp_path: Path) -> None:
    """What it answers, its attributes and its counts are unchanged; each operation is a record with its size."""
    cache.reset()
    with cache.record() as recording:
        tier = cache.disk_tier()
        assert tier.directory == front._own_tier(None).directory
        assert tier.get(b"k" * 32) is None
        assert tier.put(b"k" * 32, b"payload", tag="f")
        assert tier.get(b"k" * 32) == b"payload"
        assert tier.delete(b"k" * 32)
        assert cache.clear() == 0
    assert (stats().disk.hits, stats().disk.misses, stats().disk.puts) == (1, 1, 1)
    (process,) = recording.read().processes
    told = [(r.what, r.told.get("found"), r.told.get("bytes")) for r in process.records]
    assert told[1:-1] == [
        ("got", None, None),
        ("put", None, 7),
        ("got", "disk", 7),
        ("deleted", None, None),
        ("cleared", None, None),
    ]


def test_a_layer_that_answers_is_told_apart(tmp_path: Path) -> None:
    """It is the writable tier that a size or a policy decides about."""
    tier = cache.disk_tier()
    tier.put(b"k" * 32, b"payload", tag="f")
    tier.close()
    seed = Path(str(tier.directory)).parent
    with cache.configure(directory=tmp_path / "own", layers=[seed]), cache.record() as recording:
        assert cache.disk_tier().get(b"k" * 32) == b"payload"
    (process,) = recording.read().processes
    assert [r.told["found"] for r in process.records if r.what == "got"] == ["layer"]


# the walk, with a GPU that records ------------------------------------------------------------------------------------


@specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = {{ tile }}; }'), block=32)
def traced(x: Float32[Array, " N"], *, tile: int = 32) -> Float32[Array, " N"]:
    """One array, one parameter."""
    raise NotImplementedError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU."""
    found = install(monkeypatch)
    traced.reload()
    yield found
    traced.reload()


def run(gpu: Gpu) -> tuple[int, ...]:
    """Calls of four kinds, warm ones among them; what the counts say of them."""
    cache.reset()
    x = gpu.array((64,))
    for tile in (1, 1, 1, 2, 2, 1, 3, 3, 3, 3, 1):
        traced(x, tile=tile)
    for _ in range(5):
        traced(x, tile=2)
    traced.compile(tile=9, arch="sm_80")
    found = stats()
    return (
        *(found.memory.hits, found.memory.misses, found.memory.puts),
        *(found.disk.hits, found.disk.misses, found.disk.puts),
        found.compile.compiles,
    )


def test_calls_stay_on_the_hot_path_and_each_is_written_down(gpu: Gpu) -> None:
    """The dispatcher's code and plans are the same; a look-up is a use, whoever answered it."""
    x = gpu.array((64,))
    traced(x)
    code, plans = traced.__code__, traced.__globals__["_plans"]
    hot = len(plans)
    with cache.record() as recording:
        for _ in range(7):
            traced(x)
        traced(x, tile=5)
        assert traced.__code__ is code and len(plans) == hot + 1
    traced(x)
    (process,) = recording.read().processes
    names = [process.kernels[n] for n in process.uses]
    assert len(names) == 8 and len(set(names[:7])) == 1
    resident = next(r for r in process.records if r.what == "resident")
    assert resident.told["facts"] | {"compile_s": 0, "code_bytes": 0, "bytes": 0} == {
        "function": "traced",
        "parameters": "tile=32",
        "arch": "sm_90",
        "compile_s": 0,
        "code_bytes": 0,
        "bytes": 0,
    }


def test_counts_are_the_same_with_and_without(gpu: Gpu, tmp_path: Path) -> None:
    """Hits, misses, puts and compiles of every tier; and a miss of memory is counted once."""
    found = []
    for name in ("without", "with"):
        traced.reload()
        front._process.memory = None
        with cache.configure(directory=tmp_path / name):
            if name == "with":
                with cache.record():
                    found.append(run(gpu))
            else:
                found.append(run(gpu))
    assert found[0] == found[1]
    assert found[0][:3] == (13, 3, 3)


def test_no_secret_and_no_array_is_in_a_trace(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names, parameters, sizes, times."""
    monkeypatch.setenv("CUPLATE_CACHE_SECRET", "geheim")
    with cache.record() as recording:
        traced(gpu.array((64,)), tile=77)
    (process,) = recording.read().processes
    told = repr((process.start, process.records))
    assert "tile=77" in told and "geheim" not in told and "__global__" not in told


# files ----------------------------------------------------------------------------------------------------------------


def test_a_file_is_continued_and_read(tmp_path: Path) -> None:
    """Each recording is a process of its own in it, for its owner's eyes only."""
    path = tmp_path / "trace"
    for number in (1, 2):
        with cache.record(path) as recording:
            Entry("k", KEYS[number])
            Entry("k", KEYS[number]).tick = memory.next_tick()
    assert uses(read_trace(path)) == [[1, 1, 1], [2, 2, 2]]
    assert uses(recording.read()) == uses(read_trace(path))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["text", "folder", "pipe", "nowhere"])
def test_what_cannot_be_a_trace_is_refused(kind: str, tmp_path: Path) -> None:
    """A file with something else in it stays as it is."""
    path = tmp_path / "trace"
    if kind == "text":
        path.write_text("print('mine')\n")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = path / "trace"
    with pytest.raises(CacheError, match=r"a trace (cannot be written|is written to a file of its own)"):
        cache.record(path)
    assert kind != "text" or path.read_text() == "print('mine')\n"
    assert front._process.recordings == ()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_ends_the_recording_with_one_warning(tmp_path: Path) -> None:
    """And no call fails; what was written before is a trace."""
    path = tmp_path / "trace"
    recording = cache.record(path)
    entry = Entry("k", KEYS[0])
    recording.flush()
    os.dup2(os.open("/dev/full", os.O_WRONLY), recording._descriptor)
    entry.tick = memory.next_tick()
    with pytest.warns(CacheWarning, match=r"the trace .* ends here") as caught:
        recording.flush()
        entry.tick = memory.next_tick()
        recording.flush()
    assert len(caught) == 1
    assert Entry.__dict__["tick"].__class__ is not property
    assert uses(read_trace(path)) == [[0]]


def test_blocks_are_written_as_they_fill(tmp_path: Path) -> None:
    """What a killed process loses is what came after the last block."""
    path = tmp_path / "trace"
    with cache.record(path):
        entry = Entry("k", KEYS[0])
        for _ in range(10_000):
            entry.tick = memory.next_tick()
        (found,) = uses(read_trace(path))
        assert len(found) > 10_001 - 4098
    assert len(uses(read_trace(path))[0]) == 10_001


def test_a_block_is_written_when_its_time_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow program too leaves a trace, whatever ends it."""
    monkeypatch.setattr("cuplate.cache.recording._BLOCK_S", -1.0)
    path = tmp_path / "trace"
    with cache.record(path):
        Entry("k", KEYS[0])
        assert uses(read_trace(path)) == [[0]]


def test_threads_write_to_one_trace() -> None:
    """No use is lost, whoever writes the block."""
    with cache.record() as recording:

        def work(number: int) -> None:
            entry = Entry("k", KEYS[number])
            for _ in range(5000):
                entry.tick = memory.next_tick()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (found,) = uses(recording.read())
    assert [found.count(n) for n in range(4)] == [5001] * 4


# processes ------------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys
from cuplate import cache
from cuplate.cache import front, memory
from cuplate.cache.memory import Entry
entry = Entry("k", (bytes([1]) * 32, 0))
cache.memory_tier()  # a first look-up
def use(times):
    for _ in range(times):
        entry.tick = memory.next_tick()
"""


def program(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """A process whose environment asks for a trace."""
    environment = {**os.environ, "CUPLATE_TRACE": str(path)}
    command = [sys.executable, "-W", "error", "-c", PROGRAM + code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_environment_begins_a_trace_at_the_first_look_up(tmp_path: Path) -> None:
    """The use before it is not in it; what comes after is, to the end of the process."""
    done = program("use(3)", tmp_path / "trace")
    assert (done.returncode, done.stderr) == (0, "")
    assert uses(read_trace(tmp_path / "trace")) == [[1, 1, 1]]


def test_nothing_is_opened_at_import(tmp_path: Path) -> None:
    """Importing the cache with the variable set makes no file."""
    environment = {**os.environ, "CUPLATE_TRACE": str(tmp_path / "trace")}
    code = "import sys, cuplate.cache; print('cuplate.cache.recording' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n" and os.listdir(tmp_path) == []


def test_a_trace_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Said once; look-ups go on."""
    monkeypatch.setenv("CUPLATE_TRACE", str(tmp_path / "nowhere" / "trace"))
    with pytest.warns(CacheWarning, match="a trace cannot be written") as caught:
        cache.memory_tier()
        cache.disk_tier()
    assert len(caught) == 1 and front._process.recordings == ()


def test_a_forked_child_has_a_stream_of_its_own(tmp_path: Path) -> None:
    """Nothing is told twice, and nothing is lost."""
    code = "use(2)\nif os.fork() == 0:\n    use(3)\n    sys.exit()\nos.wait()\nuse(4)\n"
    done = program(code, tmp_path / "trace")
    assert (done.returncode, done.stderr) == (0, "")
    trace = read_trace(tmp_path / "trace")
    assert sorted(map(len, uses(trace))) == [3, 6] and trace.damage == ()
    assert len({process.start["pid"] for process in trace.processes}) == 2


def test_a_worker_of_multiprocessing_writes_its_end(tmp_path: Path) -> None:
    """Its process ends without atexit."""
    code = (
        "import multiprocessing as m\np = m.get_context('fork').Process(target=use, args=(5,))\np.start(); p.join()\n"
    )
    done = program(code, tmp_path / "trace")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(len, uses(read_trace(tmp_path / "trace")))) == [0, 5]


def test_a_killed_process_loses_its_tail_only(tmp_path: Path) -> None:
    """The blocks before it are whole."""
    done = program("use(20_000)\nos.kill(os.getpid(), signal.SIGKILL)\n", tmp_path / "trace")
    assert done.returncode == -9
    trace = read_trace(tmp_path / "trace")
    assert 20_000 - 4098 < len(uses(trace)[0]) <= 20_000 and trace.damage == ()


def test_a_fork_of_a_recording_in_memory_ends_it_in_the_child() -> None:
    """Nobody could read it there."""
    code = "r = cache.record()\nuse(1)\nif os.fork() == 0:\n    os._exit(len(front._process.recordings))\n"
    code += "status = os.wait()[1]\nuse(1)\nprint(status, len(r.read().processes[0].uses))\n"
    command = [sys.executable, "-W", "error", "-c", PROGRAM + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0 2\n", done.stderr


def test_an_interrupt_in_a_block_ends_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on to whom it is for; a trace that went on with a hole in it would be read up to the hole only."""

    def interrupt(self: Any, block: bytes) -> None:
        raise KeyboardInterrupt

    recording = cache.record()
    Entry("k", KEYS[0])
    monkeypatch.setattr(Recording, "_write", interrupt)
    with pytest.warns(CacheWarning, match="ends here"), pytest.raises(KeyboardInterrupt):
        recording.flush()
    assert front._process.recordings == ()


def test_a_fault_of_the_recording_itself_reaches_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is."""

    def fail(self: Any, block: bytes) -> None:
        raise RuntimeError("mine")

    with cache.record():
        monkeypatch.setattr(Recording, "_write", fail)
        monkeypatch.setattr("cuplate.cache.recording._NOTES_A_BLOCK", 1)
        with pytest.warns(CacheWarning, match="ends here"):
            Entry("k", KEYS[0])
            Entry("k", KEYS[1])
