"""A fleet that starts cold: what the simulation says for 10 to 10,000 nodes, and its small end against a real server.

The tables are those of docs/scale.md. The check starts ``redis-server`` on loopback, lets 4 to 16 processes be the
nodes, with the real client and a sleep for the compile, and compares compiles and the time of the last ready node.
Goal: no prediction is off by more than a quarter.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterable, Iterator

import loopback
from measuring import Goal, Result, read_options, start
from simulation import Fleet, Outcome, Way, order_of, simulate, starting

NODES = (10, 100, 1_000, 10_000)
HEAVY_S = 5.0  # a template library that takes seconds: assumed, not measured here


def main() -> int:
    options = read_options(
        __doc__, ("--check", {"action": "store_true", "help": "only the small end against a real server"})
    )
    result = start("scale", options)
    if not options.check:
        for title, lines in tables(NODES[:2] if options.quick else NODES):
            print(f"\n{title}\n", *lines, sep="\n")
    if (reason := loopback.missing()) is not None:
        result.note(f"The check was left out: {reason}.")
    else:
        check(result, options.quick)
    return result.finish(options)


# the tables of docs/scale.md ------------------------------------------------------------------------------------------


def tables(nodes: tuple[int, ...]) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of each, for fleets of these sizes."""
    plain = Fleet(nodes=1)

    def detailed(fleet: Fleet, ways: Iterable[Way]) -> list[str]:
        rows = [(n, way, simulate(dataclasses.replace(fleet, nodes=n), way)) for n in nodes for way in ways]
        return table(["nodes", "way", *COLUMNS], [[f"{n:,}", way.value, *cells(found)] for n, way, found in rows])

    yield "All nodes at once, 0.34 s a compile", detailed(plain, Way)
    heavy = dataclasses.replace(plain, compile_s=HEAVY_S)
    yield (
        "All nodes at once, 5 s a compile: seconds until the last is ready",
        table(
            ["nodes", *(way.value for way in Way)],
            [
                [f"{n:,}", *(f"{simulate(dataclasses.replace(heavy, nodes=n), way).last_ready_s:.2f}" for way in Way)]
                for n in nodes
            ],
        ),
    )
    yield (
        "Within a minute, 0.34 s a compile",
        detailed(dataclasses.replace(plain, start_spread_s=60.0), (Way.SHARED, Way.SHUFFLED, Way.WARMED)),
    )
    program = dataclasses.replace(plain, nodes=100, slots=1)
    rows = []
    for spread_s in (0.0, 1.0, 10.0, 60.0, 600.0):
        found = simulate(dataclasses.replace(program, start_spread_s=spread_s), Way.SHARED)
        rows.append([f"{spread_s:g} s", f"{found.compiles:,}", f"{found.median_wait_s:.2f}"])
    yield (
        "A program that asks for one kernel after another, 100 nodes: 20,000 compiles and 68 s without the tier",
        table(["start within", "compiles", "median wait, s"], rows),
    )
    if nodes == NODES:
        yield (
            "The largest fleet that fetches at once without a time-out",
            table(
                ["entry", "1 at a time", "8 at a time", "1 at a time, 100 Gbit/s", "8 at a time, 100 Gbit/s"],
                [
                    [f"{size >> 10} KiB", *(f"{limit(size, n, link):,}" for link in (25e9, 100e9) for n in (1, 8))]
                    for size in (6 << 10, 60 << 10, 100 << 10, 1 << 20)
                ],
            ),
        )


COLUMNS = ["compiles", "from the server, GB", "to it, GB", "last ready, s", "median wait, s", "too late", "full"]


def cells(outcome: Outcome) -> list[str]:
    """One row's figures."""
    return [
        f"{outcome.compiles:,}",
        f"{outcome.bytes_out / 1e9:.2f}",
        f"{outcome.bytes_in / 1e9:.2f}",
        f"{outcome.last_ready_s:.2f}",
        f"{outcome.median_wait_s:.2f}",
        f"{outcome.timed_out:,}",
        outcome.saturated,
    ]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """As Markdown."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def limit(entry_bytes: int, slots: int, link_bits_per_s: float) -> int:
    """Nodes up to which a start at one moment, with all keys in the server, has no request that comes too late."""

    def fits(nodes: int) -> bool:
        fleet = Fleet(
            nodes=nodes,
            keys=slots,  # more would only wait for the first
            slots=slots,
            entry_bytes=entry_bytes,
            link_bytes_per_s=link_bits_per_s / 8,
            connections=nodes,
            compile_s=0.0,
            dispatch_s=0.0,
        )
        return simulate(fleet, Way.WARMED).timed_out == 0

    high = 1
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return round(low, min(0, 2 - len(str(low))))


# the small end, for real ----------------------------------------------------------------------------------------------

# Starts that do not coincide, where more depends on who is first than a process's clock can tell. The last is a server
# of 6 ms a command, so that 64 requests at once take longer than a client waits.
SMALL = Fleet(nodes=16, keys=6, slots=1, compile_s=0.3, round_trip_s=0.0, dispatch_s=0.0, link_bytes_per_s=1e11)
APART = dataclasses.replace(SMALL, start_spread_s=0.25)
CHECKS = (  # the first two are the quick ones
    ("4 nodes at once", Way.SHARED, dataclasses.replace(SMALL, nodes=4)),
    ("4 nodes, each in an order of its own", Way.SHUFFLED, dataclasses.replace(APART, nodes=4)),
    ("16 nodes at once", Way.SHARED, SMALL),
    ("16 nodes within 3 s", Way.SHARED, dataclasses.replace(SMALL, start_spread_s=3.0)),
    ("16 nodes, each in an order of its own", Way.SHUFFLED, dataclasses.replace(APART, keys=24, slots=2)),
    ("16 nodes, warmed first", Way.WARMED, dataclasses.replace(SMALL, keys=32, slots=2, compile_s=2.0)),
    ("16 nodes, warmed first, a server too slow for them", Way.WARMED, dataclasses.replace(SMALL, keys=16, slots=4)),
)
SLOW = CHECKS[-1][0]


def check(result: Result, quick: bool) -> None:
    """Predicted against measured; the worst of the ratios is the goal's figure."""
    rows, worst = [], 1.0
    with tempfile.TemporaryDirectory(prefix="cuplate-benchmark-") as folder, loopback.serving(folder) as port:
        costs = loopback.calibrated(port)
        result.note(", ".join(f"{name} {value:.3g}" for name, value in costs.items()) + ": measured here")
        for number, (name, way, small) in enumerate(CHECKS[: 2 if quick else None]):
            fleet, named = dataclasses.replace(small, **costs), f"redis://127.0.0.1:{port}/{number}"
            if name == SLOW:
                fleet = dataclasses.replace(fleet, compile_s=1.0, command_s=loopback.SLOW_S)
                named = "loopback:Slow"
            starts = starting(fleet)
            said = simulate(fleet, way, starts=starts)
            compiles, last_s = measured(fleet, way, starts, named, folder)
            rows.append([name, f"{said.compiles}", f"{compiles}", f"{said.last_ready_s:.3f}", f"{last_s:.3f}"])
            worst = max(worst, said.last_ready_s / last_s, last_s / said.last_ready_s)
    print(*table(["fleet", "compiles predicted", "measured", "last ready predicted, s", "measured"], rows), sep="\n")
    for row in rows:
        result.note("{}: {} compiles predicted, {} measured; last ready {} s predicted, {} measured".format(*row))
    goal = "fleet on loopback: time to the last ready node, predicted / measured, the worst"
    result.goals.append(Goal(goal, worst, 1.25))


def measured(fleet: Fleet, way: Way, starts: list[float], named: str, folder: str) -> tuple[int, float]:
    """Compiles, and when the last node was ready."""
    compiles, spent = 0, 0.0
    if way is Way.WARMED:  # each key on one node
        dealt = [range(fleet.keys)[node :: fleet.nodes] for node in range(fleet.nodes)]
        compiles, spent = loopback.run(fleet, named, [0.0] * fleet.nodes, dealt, folder)
    orders = [order_of(fleet, way, node) for node in range(fleet.nodes)]
    more, last_s = loopback.run(fleet, named, starts, orders, folder)
    return compiles + more, spent + last_s


if __name__ == "__main__":
    sys.exit(main())
