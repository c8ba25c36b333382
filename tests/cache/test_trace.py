"""The form of a trace: what is written is read again, and of a damaged one the whole part."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cuplate.cache.trace import Encoder, Note, read_trace
from cuplate.errors import CacheError

START: dict[str, Any] = {"what": "start", "pid": 7, "policy": {"memory_kernels": 4}}


def use(number: int, at: float = 0.0) -> Note:
    """A use of a kernel."""
    return (bytes([number]) * 32, 0), at


def written(*blocks: list[Note], encoder: Encoder | None = None) -> list[bytes]:
    """Blocks of one process, the first with its start."""
    encoder = Encoder() if encoder is None else encoder
    return [encoder.block([({**START}, 0.0), *notes] if n == 0 else notes) for n, notes in enumerate(blocks)]


NOTES = st.lists(
    st.tuples(
        st.one_of(
            st.tuples(st.binary(min_size=32, max_size=32), st.integers(0, 7)),
            st.fixed_dictionaries({"what": st.just("got"), "key": st.text()}),
        ),
        st.floats(0, 1e6),
    ),
    min_size=1,
    max_size=30,
)


@given(st.lists(NOTES, min_size=1, max_size=4))
def test_what_is_written_is_read_again(blocks: list[list[Note]]) -> None:
    """Kernels, order, times to the millisecond, and records with their places, over several blocks."""
    (process,) = read_trace(b"".join(written(*blocks))).processes
    notes = [note for block in blocks for note in block]
    uses = [(what, at) for what, at in notes if isinstance(what, tuple)]
    assert [process.kernels[n] for n in process.uses] == [what for what, _ in uses]
    assert all(abs(got - at) <= 0.00101 for got, (_, at) in zip(process.at, uses, strict=True))
    places, seen = [], 0
    for what, _ in notes:
        if isinstance(what, dict):
            places.append((seen, what["key"]))
        seen += isinstance(what, tuple)
    assert [(r.position, r.told["key"]) for r in process.records[1:]] == places
    assert process.start == {"pid": 7, "policy": {"memory_kernels": 4}, "at": 0.0}


def test_processes_share_a_file() -> None:
    """Their blocks may come in any order between each other; each process is put together again."""
    one = written([use(1)], [use(2)], [use(1)])
    two = written([use(2)], [use(2)])
    trace = read_trace(b"".join([one[0], two[0], two[1], one[1], one[2]]))
    assert sorted(tuple(p.uses.tolist()) for p in trace.processes) == [(0, 0), (0, 1, 0)]
    assert trace.damage == ()


def test_a_cut_trace_is_read_up_to_the_cut() -> None:
    """At whatever byte it ends, the whole blocks are there, and the rest is told."""
    blocks = written([use(1)], [use(2)], [use(3)])
    data = b"".join(blocks)
    for length in range(len(blocks[0]), len(data)):
        trace = read_trace(data[:length])
        whole = 1 + (length >= len(blocks[0]) + len(blocks[1]))
        assert trace.processes[0].uses.tolist() == list(range(whole))
        assert bool(trace.damage) == (length not in (len(blocks[0]), len(blocks[0]) + len(blocks[1])))


def test_a_damaged_byte_costs_what_follows_in_its_process_only() -> None:
    """Wherever it is, nothing raises, what came before is read, and so is the other process."""
    draw = random.Random(0)
    blocks = written(*([use(n)] for n in range(5)))
    other = written([use(9)], [use(9)])
    data = b"".join([blocks[0], other[0], *blocks[1:4], other[1], blocks[4]])
    whole = read_trace(data)
    for _ in range(300):
        place = draw.randrange(len(blocks[0]) + len(other[0]), len(data))
        broken = bytearray(data)
        broken[place] ^= 1 << draw.randrange(8)
        trace = read_trace(bytes(broken))
        assert trace.damage
        for process, before in zip(trace.processes, whole.processes, strict=True):
            assert process.uses.tolist() == before.uses.tolist()[: len(process.uses)]


@given(st.binary(max_size=300))
def test_bytes_that_are_no_trace_are_refused(data: bytes) -> None:
    """One kind of error, that says what was found."""
    with pytest.raises(CacheError, match="no trace to read"):
        read_trace(data)


def test_a_planted_block_that_names_no_kernel_is_left_out() -> None:
    """A good checksum makes no block true."""
    good, planted = written([use(1)]), Encoder()
    planted._known[(b"x" * 32, 0)] = 5  # a number that was never told
    bad = written([((b"x" * 32, 0), 0.0)], encoder=planted)
    trace = read_trace(b"".join(good + bad))
    assert len(trace.processes) == 1 and "a kernel has no name" in trace.damage[0]


def test_a_block_that_unpacks_without_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block may become is bounded."""
    monkeypatch.setattr("cuplate.cache.trace._LARGEST_BYTES", 1000)
    small, large = written([use(1)]), written([use(1)] * 5000)
    trace = read_trace(b"".join(small + large))
    assert len(trace.processes) == 1 and "damaged" in trace.damage[0]


def test_a_trace_of_many_uses_takes_about_a_byte_each() -> None:
    """Ten million look-ups of a day are megabytes."""
    draw = random.Random(0)
    notes = [use(min(199, int(draw.paretovariate(0.8))), n * 1e-5) for n in range(20_000)]
    data = b"".join(written(*(notes[n : n + 4096] for n in range(0, len(notes), 4096))))
    assert len(data) < 2 * len(notes)


def test_a_process_may_be_idle_for_a_year() -> None:
    """And its clock may be set back."""
    (process,) = read_trace(b"".join(written([use(1), use(1, 4e7), use(1, -5.0)]))).processes
    assert process.at.tolist() == [0.0, 4e7, -5.0]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """With its name and the reason."""
    with pytest.raises(CacheError, match=r"(?s)cannot be read.*nowhere.*No such file"):
        read_trace(tmp_path / "nowhere")
