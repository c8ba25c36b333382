"""The simulated fleet does what can be worked out by hand, the same each time; docs/scale.md shows what it says."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers import Served

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    """A file of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


simulation = load("simulation")
Fleet, Way, simulate = simulation.Fleet, simulation.Way, simulation.simulate
SERVED = (Way.SHARED, Way.SHUFFLED, Way.WARMED)
FREE = {"round_trip_s": 0.0, "client_s": 0.0, "command_s": 0.0, "thread_bytes_per_s": math.inf, "dispatch_s": 0.0}
INSTANT = Fleet(nodes=4, keys=12, slots=2, compile_s=1.0, link_bytes_per_s=math.inf, **FREE)


@pytest.fixture(scope="module")
def scale() -> Iterator[ModuleType]:
    """benchmarks/scale.py, which imports its neighbours."""
    names = ("measuring", "loopback", "scale")
    measuring, _, module = map(load, names)
    yield module
    measuring._bytecode().cleanup()
    for name in names:
        del sys.modules[name]


def test_a_server_that_costs_nothing_leaves_the_compiles() -> None:
    """Alone and in one order each node compiles all, in keys / slots compile times; one cluster compiles each once."""
    alone, shared, warmed = (simulate(INSTANT, way) for way in (Way.ALONE, Way.SHARED, Way.WARMED))
    assert (alone.compiles, alone.last_ready_s, alone.bytes_in) == (48, 6.0, 0)
    assert (shared.compiles, shared.last_ready_s, shared.bytes_out) == (48, 6.0, 0)
    assert (warmed.compiles, warmed.last_ready_s) == (12, 2.0)  # 12 keys on 8 slots
    assert (warmed.bytes_in, warmed.bytes_out) == (12 * INSTANT.entry_bytes, 48 * INSTANT.entry_bytes)


def test_a_later_node_finds_what_an_earlier_one_has_compiled() -> None:
    """It fetches until it has caught up, and from there compiles beside the first: nobody waits for anybody."""
    pair = replace(INSTANT, nodes=2, keys=10, slots=1)
    found = simulate(pair, Way.SHARED, starts=[0.0, 3.5])
    assert (found.compiles, found.last_ready_s) == (10 + 7, 10.5)
    assert simulate(pair, Way.SHARED, starts=[0.0, 20.0]).compiles == 10


def test_an_order_of_its_own_divides_the_work() -> None:
    """Two nodes that ask for two keys the other way round compile each once."""
    pair = replace(INSTANT, nodes=2, keys=2, slots=1)
    seed = next(s for s in range(99) if len({tuple(order(replace(pair, seed=s), node)) for node in (0, 1)}) == 2)
    found = simulate(replace(pair, seed=seed), Way.SHUFFLED, starts=[0.0, 0.25])
    assert (found.compiles, found.last_ready_s) == (2 + 1, 2.0)
    many = replace(INSTANT, nodes=50, keys=100, slots=1)
    assert simulate(many, Way.SHUFFLED).compiles < simulate(many, Way.SHARED).compiles / 4


def order(fleet: Any, node: int) -> Any:
    """The shuffled keys of a node."""
    return simulation.order_of(fleet, Way.SHUFFLED, node)


def test_the_thread_the_link_and_the_round_trip_are_paid_for() -> None:
    """One node, one key that is there: half a round trip, the thread, the link, half a round trip, the client."""
    fleet = Fleet(nodes=1, keys=1, slots=1, compile_s=0.0, dispatch_s=0.0)
    size = fleet.entry_bytes
    thread, link = fleet.command_s + size / fleet.thread_bytes_per_s, size / fleet.link_bytes_per_s
    put = fleet.round_trip_s + fleet.client_s + fleet.round_trip_s / 2 + link + thread
    get = fleet.round_trip_s + thread + link + fleet.client_s
    assert simulate(fleet, Way.WARMED).last_ready_s == pytest.approx(put + get)


def test_an_entry_on_its_way_in_is_not_there_and_keeps_nobody_waiting() -> None:
    """Its bytes take the link a second; who asks meanwhile is told at once that there is none."""
    pair = replace(INSTANT, nodes=2, keys=1, slots=1, entry_bytes=1_000_000, link_bytes_per_s=1e6)
    found = simulate(pair, Way.SHARED, starts=[0.0, 1.5])
    assert (found.compiles, found.timed_out, found.last_ready_s) == (2, 0, 2.5)


def test_many_nodes_are_held_by_what_saturates_first() -> None:
    """With small entries the thread is the bound, with large ones the link."""
    many = Fleet(nodes=2000, keys=10, slots=1, compile_s=0.0, dispatch_s=0.0)
    small = simulate(replace(many, entry_bytes=1024), Way.WARMED)
    large = simulate(replace(many, entry_bytes=200_000, time_out_s=math.inf), Way.WARMED)
    assert (small.saturated, large.saturated) == ("thread", "link")
    assert large.last_ready_s >= large.bytes_out / many.link_bytes_per_s
    assert simulate(INSTANT, Way.ALONE).saturated == "nodes"
    assert simulate(INSTANT, Way.SHIPPED).saturated == "-"


def test_an_answer_that_comes_too_late_sends_the_node_to_its_own_compiler() -> None:
    """It compiles for the time that the way is closed, then asks once more; the next rest is twice as long."""
    found = simulate(replace(INSTANT, nodes=1, keys=8, slots=1, command_s=0.3, compile_s=12.0), Way.SHARED)
    # asks at 0, compiles to 12.2, 24.2, 36.2; asks there, and compiles from 36.4 with the way closed for 60 s
    assert (found.compiles, found.timed_out) == (8, 2)
    assert found.last_ready_s == pytest.approx(0.2 + 3 * 12 + 0.2 + 5 * 12)


def test_connections_that_the_server_refuses_compile() -> None:
    """Nodes beyond the limit are as without a server."""
    found = simulate(replace(INSTANT, connections=1), Way.WARMED)
    assert found.compiles == 12 + 3 * 12


fleets = st.builds(
    Fleet,
    nodes=st.integers(1, 6),
    keys=st.integers(1, 9),
    slots=st.integers(1, 4),
    compile_s=st.floats(0.01, 3),
    entry_bytes=st.integers(100, 10_000_000),
    start_spread_s=st.floats(0, 5),
    round_trip_s=st.floats(0, 0.1),
    command_s=st.floats(0, 0.1),
    connections=st.integers(0, 6),
    seed=st.integers(0, 99),
)


@settings(max_examples=60)
@given(fleets)
def test_no_fleet_gains_or_loses_without_a_cause(fleet: Any) -> None:
    """Runs repeat; each key is compiled somewhere; nothing is busier than always; time-outs bound what is lost."""
    alone = simulate(fleet, Way.ALONE)
    for way in SERVED:
        found = simulate(fleet, way)
        assert found == simulate(fleet, way)
        assert fleet.keys <= found.compiles <= fleet.keys * (fleet.nodes + (way is Way.WARMED))
        assert all(share <= 1 + 1e-9 for share in found.busy.values())
        served = min(fleet.nodes, fleet.connections)
        assert found.bytes_out <= served * fleet.keys * fleet.entry_bytes
        if way is not Way.WARMED:  # each key may wait for one time-out, besides what alone takes
            rounds = -(-fleet.keys // fleet.slots)
            assert found.longest_wait_s <= alone.longest_wait_s + rounds * (fleet.time_out_s + fleet.client_s) + 1e-9


def test_the_small_end_is_run_for_real(scale: ModuleType, served: Served, tmp_path: Path) -> None:
    """Two processes, of which the second starts when the first is long done: it fetches all, as was said."""
    pair = Fleet(nodes=2, keys=3, slots=1, compile_s=0.1)
    starts = [0.0, 1.5]
    said = simulate(pair, Way.SHARED, starts=starts)
    compiles, last_s = scale.loopback.run(pair, served.url, starts, [range(3)] * 2, str(tmp_path))
    assert compiles == said.compiles == 3
    assert last_s >= starts[1]


def test_the_page_shows_what_the_simulation_says(scale: ModuleType) -> None:
    """Every table for up to 100 nodes stands in docs/scale.md, line for line; the rest of each is of the same kind."""
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8").splitlines()
    for title, lines in scale.tables(scale.NODES[:2]):
        assert f"**{title}**" in page
        assert [line for line in lines if line not in page] == [], title


def test_the_page_names_the_inputs_that_the_simulation_takes() -> None:
    """docs/scale.md has a row for each input with a default, and for nothing else."""
    import re

    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", text, re.M)
    with_default = [f.name for f in Fleet.__dataclass_fields__.values() if f.name not in ("nodes", "seed")]
    assert named == with_default
