"""What a trace is made into: predictions that come true, the smallest sizes that do, causes, and what is never used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, Inline, cache, host, specialize
from cuplate.backend.cuda import nvrtc
from cuplate.cache import front
from cuplate.cache.trace import Encoder, Note, Trace, read_trace
from cuplate.cache.tuning import Choice, tune
from cuplate.errors import CacheError, SettingError
from tests.doubles import Gpu, install

pytest.importorskip("diskcache")

KINDS = ("least-recently-used", "least-recently-stored", "least-frequently-used", "none")
POLICY = {"memory_kernels": 256, "disk_bytes": 1 << 30, "eviction": "least-recently-used", "time_to_live_s": 1 << 62}


KERNEL = """extern "C" __global__ void {{ kernel }}({{ args }}) {
    if (threadIdx.x < N) out[threadIdx.x] = x[threadIdx.x] + {{ tile }}.0f;
}"""


@specialize(Inline(KERNEL), block=32)
def drawn(x: Float32[Array, " N"], *, tile: int = 32) -> Float32[Array, " N"]:
    """One array, one parameter."""
    raise NotImplementedError


@pytest.fixture(autouse=True)
def memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No loaded kernels before or after, and sizes as small as a test needs them."""
    monkeypatch.setattr(front._process, "memory", None)
    monkeypatch.setattr("cuplate.cache.policy.SMALLEST_DISK_BYTES", 1)
    monkeypatch.setattr("cuplate.cache.tuning.SMALLEST_DISK_BYTES", 1)
    yield
    drawn.reload()


def counts(directory: Path, program: Callable[[], None], **policy: Any) -> tuple[int, ...]:
    """What the real tiers count while a program runs, from nothing loaded and nothing stored."""
    drawn.reload()
    front._process.memory = None
    nvrtc._toolchain = None  # what a process asks the store for once
    host._runtimes.clear()
    with cache.configure(directory=directory, **policy):
        cache.reset()
        program()
        found = cache.stats()
        cache.disk_tier().close()
    m, d = found.memory, found.disk
    return m.hits, m.misses, m.evictions, d.hits, d.misses, d.evictions, found.compile.compiles


# predictions that come true -------------------------------------------------------------------------------------------


def test_a_program_on_the_cpu_backend_does_what_its_trace_predicts(tmp_path: Path) -> None:
    """Recorded with room for all, then run with two kernels in memory and a disk of two: every count is as replayed."""
    x = np.ones(4, np.float32)

    def program() -> None:
        for tile in (1, 2, 1, 1, 3, 2, 4, 5, 6, 7, 8, 9, 1, 1, 9, 2, 4):
            drawn(x, tile=tile)
        drawn.compile(tile=2, arch="sm_90")
        drawn(x, tile=2)

    with cache.record() as recording:
        counts(tmp_path / "recorded", program)
    kernel = max(r.told["bytes"] for p in recording.read().processes for r in p.records if r.what == "put")
    limit = 8 * (kernel + 100)
    found = tune(recording.read(), memory_kernels=2, memory_sizes=[2], disk_sizes=[limit])
    assert found.memory is not None and found.disk is not None and found.notes == ()
    memory = found.memory.point(Choice("least-recently-used", 2))
    disk = found.disk.point(Choice("least-recently-used", limit))
    assert memory is not None and disk is not None and memory.evictions > 0 and disk.hits > 0 and disk.evictions > 0
    really = counts(tmp_path / "again", program, memory_kernels=2, disk_bytes=limit)
    assert really[:3] == (memory.hits, memory.misses, memory.evictions)
    assert really[3:6] == (disk.hits, disk.misses, disk.evictions)


@pytest.mark.parametrize("engine", ["diskcache", "files"])
def test_every_policy_does_what_one_trace_predicts(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of launches, renders and compiles on a GPU that records, run again under each policy and limit."""
    gpu: Gpu = install(monkeypatch)
    built: dict[Any, Any] = {}  # one compile of each is enough

    def build(source: Any, options: Any, arch: str, **more: Any) -> Any:
        if (source.text, arch) not in built:
            built[source.text, arch] = really_build(source, options, arch, **more)
        return built[source.text, arch]

    really_build = nvrtc.build
    monkeypatch.setattr(nvrtc, "build", build)
    draw = np.random.default_rng(0)
    order = [int(n) for n in draw.zipf(1.3, 300) if n <= 25]

    def program() -> None:
        x = gpu.array((64,))
        for n, tile in enumerate(order):
            drawn(x, tile=tile)
            if n % 40 == 7:
                drawn.compile(tile=tile, arch="sm_80")
            if n == 100:
                drawn.cache_clear()  # type: ignore[attr-defined]
            if n == 150:
                cache.clear(disk=False)
            if 160 <= n < 170:
                with cache.exclusive():
                    drawn(x, tile=order[-n])

    with cache.record() as recording:
        counts(tmp_path / "recorded", program, engine=engine)
    trace = recording.read()
    sizes = (20_000, 60_000, 120_000)
    seen = 0
    for kernels, size in zip((3, 6, 9), sizes, strict=True):
        found = tune(trace, memory_kernels=kernels, memory_sizes=[kernels], disk_sizes=sizes)
        assert found.memory is not None and found.disk is not None
        memory = found.memory.point(Choice("least-recently-used", kernels))
        for kind in KINDS:
            disk = found.disk.point(Choice(kind, size))
            assert memory is not None and disk is not None
            place = tmp_path / f"{kind} {size}"
            really = counts(place, program, engine=engine, memory_kernels=kernels, disk_bytes=size, eviction=kind)
            assert really[:3] == (memory.hits, memory.misses, memory.evictions)
            assert really[3:6] == (disk.hits, disk.misses, disk.evictions), (kind, size)
            seen += disk.evictions
    assert seen > 20


# what it chooses ------------------------------------------------------------------------------------------------------


def name(number: int) -> tuple[bytes, int]:
    """A kernel."""
    return number.to_bytes(32, "big"), 0


def trace(uses: list[int], *, size: int = 1000, policy: dict[str, Any] | None = None, **facts: Any) -> Trace:
    """One process that used these kernels, each compiled at its first use."""
    notes: list[Note] = [({"what": "start", "pid": 1, "policy": {**POLICY, **(policy or {})}}, 0.0)]
    known: dict[str, Any] = {"function": "f", "arch": "sm_90", "compile_s": 0.5, "code_bytes": 900, **facts}
    for at, number in enumerate(uses):
        key = name(number)[0].hex()
        told: dict[str, Any] = {"place": "/c/v1", "thread": 1, "key": key}
        if number not in uses[:at]:
            notes.append(({"what": "missed", "key": key, "device": 0, "thread": 1}, at * 1.0))
            notes.append(({"what": "got", "again": False, "found": None, **told}, at * 1.0))
            told |= {"bytes": size, "tag": "f", "facts": {"parameters": f"tile={number}", **known}}
            notes.append(({"what": "put", **told}, at * 1.0))
        notes.append((name(number), at * 1.0))
    return read_trace(Encoder().block(notes))


def test_the_smallest_memory_within_a_hundredth_of_the_best_is_chosen() -> None:
    """Ten kernels in a loop need ten; a kernel more that is used once does not change that."""
    found = tune(trace([*range(10)] * 200))
    assert found.memory is not None
    assert (found.memory.enough, found.memory.full) == (Choice("least-recently-used", 10), 10)
    at_nine = tune(trace([*range(10)] * 200), memory_sizes=[9]).memory
    assert at_nine is not None
    point = at_nine.point(Choice("least-recently-used", 9))
    assert point is not None and (point.hits, point.misses) == (0, 2000)
    once = tune(trace([*range(10)] * 200 + [99] + [*range(10)])).memory
    assert once is not None and once.enough.size == 11  # the eleventh costs ten misses of 11: more than a hundredth


def test_a_loop_that_does_not_fit_is_best_kept_by_none() -> None:
    """Of a scan a store that evicts finds nothing; of the policies at one size the best is chosen."""
    found = tune(trace([*range(20)] * 5), memory_kernels=1, disk_sizes=[10_500])
    assert found.disk is not None
    assert found.disk.enough == Choice("none", 10_500)
    best, lru = (found.disk.point(Choice(kind, 10_500)) for kind in ("none", "least-recently-used"))
    assert best is not None and lru is not None
    assert (lru.hits, lru.saved_s, lru.spent_s) == (0, 0.0, 50.0)
    assert best.hits == 4 * 10 and best.saved_s == 20.0 and best.spent_s == 30.0 and best.refused > 0


def test_what_is_recommended_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As variables and as a pyproject.toml, and is then in force."""
    found = tune(trace([*range(20)] * 5), memory_kernels=1)
    assert found.environment() == (
        "CUPLATE_MEMORY_KERNELS=20",
        f"CUPLATE_DISK_BYTES={found.disk.enough.size if found.disk else 0}",
        "CUPLATE_EVICTION=least-recently-used",
    )
    file = tmp_path / "pyproject.toml"
    file.write_text("\n".join(found.project()))
    monkeypatch.setenv("CUPLATE_CONFIG", str(file))
    assert cache.current_policy().memory_kernels == 20
    for line in found.environment():
        monkeypatch.setenv(*line.split("="))
    assert cache.current_policy().source("disk_bytes") == "CUPLATE_DISK_BYTES"


def test_what_was_looked_up_once_recommends_no_size() -> None:
    """Any size would have done; pasted, the smallest would harm the next run."""
    found = tune(trace([*range(20)]))
    assert (found.settings(), found.environment()) == ({}, ())
    assert [note for note in found.notes if "looked up twice" in note] == [
        f"nothing was looked up twice in the {tier} tier: the trace recommends no size of it"
        for tier in ("memory", "disk")
    ]
    assert tune(trace([*range(20)] * 2)).settings() == {"memory_kernels": 20}  # which leaves nothing to the disk


def test_a_trace_that_is_mostly_first_look_ups_recommends_no_size() -> None:
    """One hit in twelve would have said: one kernel is enough."""
    found = tune(trace([*range(11), 10]))
    assert found.memory is not None and found.memory.enough.size == 1
    assert found.settings() == {}
    assert (
        "at any size 11 of 12 look-ups are the first of a kernel in the memory tier: the trace recommends no size of it"
        in found.notes
    )
    assert "memory_kernels" in tune(trace([*range(11), *range(11)])).settings()


def test_what_is_below_the_smallest_disk_is_recommended_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default policy, as all fits."""
    monkeypatch.setattr("cuplate.cache.tuning.SMALLEST_DISK_BYTES", 16_000_000)
    found = tune(trace([*range(20)] * 5), memory_kernels=1)
    assert found.settings() == {
        "memory_kernels": 20,
        "disk_bytes": 16_000_000,
        "eviction": "least-recently-used",
    }


def test_a_time_to_live_costs_what_has_aged() -> None:
    """As it was in force, or as it is asked for."""
    uses = [1, *[2] * 99, 1]
    for given, policy, misses in ((None, {}, 2), (None, {"time_to_live_s": 50.0}, 3), (50.0, {}, 3)):
        found = tune(trace(uses, policy=policy), memory_kernels=1, time_to_live_s=given).disk
        assert found is not None
        assert found.curves[0].points[-1].misses == misses


@pytest.mark.parametrize(
    "choice",
    [
        {"memory_sizes": [0]},
        {"disk_sizes": [1.5]},
        {"memory_kernels": -1},
        {"evictions": ["most-recently-used"]},
    ],
)
def test_what_cannot_be_replayed_is_refused(choice: dict[str, Any]) -> None:
    """With what is allowed."""
    with pytest.raises(SettingError, match="to replay"):
        tune(trace([1]), **choice)


# what fills the cache -------------------------------------------------------------------------------------------------


def test_the_parameter_that_makes_variants_is_named() -> None:
    """How many values it took, and how many kernels there would be without it."""
    parts = [
        read_trace(
            Encoder().block(
                [
                    ({"what": "start", "pid": 1, "policy": POLICY}, 0.0),
                    *(
                        (
                            {
                                "what": "kept",
                                "key": name(number)[0].hex(),
                                "device": 0,
                                "facts": {
                                    "function": "f",
                                    "parameters": f"tile={number % 8}, mode=<Mode.A: {number // 8}>, flag=True",
                                    "arch": "sm_90",
                                    "compile_s": 1.0,
                                    "code_bytes": 1,
                                },
                            },
                            0.0,
                        )
                        for number in range(16)
                    ),
                ]
            )
        )
    ]
    causes = tune(parts[0]).causes
    assert [(c.parameter, c.values, c.variants, c.without) for c in causes] == [("tile", 8, 16, 2), ("mode", 2, 16, 8)]


def test_kernels_that_differ_in_their_arrays_only_are_told_as_such() -> None:
    """Dtypes and layouts are no parameters."""
    (cause,) = tune(trace([1, 2, 3], parameters="tile=16")).causes
    assert (cause.parameter, cause.variants, cause.without) == ("(dtypes, layouts, fixed sizes)", 3, 1)


def test_entries_that_are_never_used_again_are_named_with_their_cost() -> None:
    """The dearest first; what was looked up twice is none of them."""
    found = tune(trace([1, 2, 3, 2, 2]))
    assert sorted(int(u.key, 16) for u in found.unused) == [1, 3]
    assert {(u.parameters, u.size_bytes, u.compile_s) for u in found.unused} == {
        ("tile=1", 1040, 0.5),
        ("tile=3", 1040, 0.5),
    }
    assert "never used again after their compile: 2 entries, 2080 bytes, 1.0 s\n" in str(found)


def test_a_list_that_is_cut_says_so() -> None:
    """Nine entries, of which eight are shown."""
    (table,) = [t for t in tune(trace([*range(9)])).tables() if t.title.startswith("never used")]
    assert table.title.startswith("never used again after their compile: 9 entries, ")
    assert table.title.endswith("; the dearest 8 of them")
    assert len(table.rows) == 8


def test_entries_that_differ_in_their_arrays_only_are_told_apart() -> None:
    """By number: of arrays a trace holds nothing."""
    (table,) = [t for t in tune(trace([1, 2, 3], parameters="tile=16")).tables() if t.title.startswith("never used")]
    assert [row[1] for row in table.rows] == [f"tile=16 (arrays {n} of 3)" for n in (1, 2, 3)]
    (table,) = [t for t in tune(trace([1, 2])).tables() if t.title.startswith("never used")]
    assert {row[1] for row in table.rows} == {"tile=1", "tile=2"}


# how it is told -------------------------------------------------------------------------------------------------------


def test_the_row_in_force_is_the_one_of_that_size() -> None:
    """What is in force and larger than all that was played does what the last row does, and is not that row."""
    policy = {"memory_kernels": 4, "disk_bytes": 1 << 30, "eviction": "least-recently-used"}
    memory, disk = (
        t for t in tune(trace([*range(12)] * 4, policy=policy), memory_kernels=1).tables() if "in force" in t.title
    )
    assert [(row[0], row[-1]) for row in memory.rows if "in force" in row[-1]] == [("4", "in force")]
    (marks,) = [row[-1].split(", ") for row in disk.rows if "in force" in row[-1]]
    assert "as in force" in marks and "in force" not in marks
    assert "1073741824 bytes" in disk.title


def test_the_report_is_text_and_json() -> None:
    """All figures in both."""
    found = tune(trace([*range(12)] * 4), memory_kernels=3)
    text = str(found)
    assert "48 look-ups of memory by 1 process in 47.0 s; 12 kernels, 6.0 s to compile each once" in text
    assert "enough, all fits" in text and text.endswith("CUPLATE_EVICTION=least-recently-used")
    told = json.loads(found.to_json())
    assert told["settings"] == found.settings()
    assert told["memory"]["curves"][0]["points"][0] | {"saved_s": 0, "spent_s": 0} == {
        "size": 1, "hits": 0, "misses": 48, "puts": 48, "evictions": 47, "refused": 0, "saved_s": 0, "spent_s": 0,
    }  # fmt: skip


def test_what_makes_a_replay_inexact_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loaded before, stored before, several threads, another directory, damage."""
    gpu = install(monkeypatch)
    x = gpu.array((64,))
    drawn(x, tile=1)
    drawn.compile(tile=2, arch="sm_80")
    with cache.record() as recording:
        drawn(x, tile=1)
        drawn.compile(tile=2, arch="sm_80")
        thread = threading.Thread(target=lambda: drawn(x, tile=4))
        drawn(x, tile=3)
        thread.start()
        thread.join()
        with cache.configure(directory=tmp_path / "other"):
            drawn.compile(tile=7, arch="sm_80")
    notes = "\n".join(tune(recording.read()).notes)
    for told in ("loaded before", "on the disk before", "several threads", "1 look-ups in other directories"):
        assert told in notes


def test_two_processes_share_a_disk_and_no_memory() -> None:
    """What one has stored the other finds."""
    both = Trace((*trace([1, 2]).processes, *trace([1, 2]).processes))
    found = tune(both)
    assert found.memory is not None and found.disk is not None
    assert found.memory.curves[0].points[-1].misses == 4
    point = found.disk.curves[0].points[-1]
    assert (point.hits, point.misses) == (2, 2)


@pytest.mark.parametrize("name", ["memory_kernels", "disk_bytes", "time_to_live_s"])
@pytest.mark.parametrize("value", [None, float("inf"), float("nan"), "x"])
def test_a_planted_policy_is_refused_or_read(name: str, value: object) -> None:
    """It ends in an error of cuplate's, if in any."""
    look = {"what": "put", "key": "00" * 32, "place": None, "thread": 1, "bytes": 100}
    notes: list[Any] = [({"what": "start", "pid": 1, "policy": {**POLICY, name: value}}, 0.0), (look, 1.0)]
    with suppress(CacheError):
        tune(read_trace(Encoder().block([*notes, ((b"k" * 32, 0), 2.0)])))


@pytest.mark.parametrize("told", [{"what": "got"}, {"what": "missed", "key": "no"}, {"what": "put", "key": [1]}])
def test_a_trace_that_was_planted_is_refused(told: dict[str, Any]) -> None:
    """As an error of cuplate's, whatever is missing in it."""
    planted = Encoder().block([({"what": "start", "pid": 1, "policy": POLICY}, 0.0), (told, 1.0)])
    with pytest.raises(CacheError, match="what no recording writes"):
        tune(read_trace(planted))


def test_a_trace_without_look_ups_is_no_error() -> None:
    """There is nothing to recommend."""
    found = tune(trace([]))
    assert (found.memory, found.disk, found.settings()) == (None, None, {})
    assert str(found)
