"""A fleet that starts cold, as a discrete-event simulation: who compiles what, and when the last node has every kernel.

One event is one request at the shared server, or one compile that ends. The server answers in the order of arrival:
first its one thread, then its network link. A node asks in `slots` places at once, as a warm-up does, or in one, as a
program does that needs one kernel after another; what it cannot get it compiles there. An answer later than the
client's time-out is a miss, and closes the node's way to the server for a while, by the rule of the real client.

Left out: the sharing of one node's entries between its processes, which its disk tier and node lock do; differences
between kernels and between nodes; lost packets. Equal inputs give equal results.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cuplate.cache.breaker import Breaker
from cuplate.cache.remote import WAIT_S

__all__ = ["Fleet", "Outcome", "Way", "order_of", "simulate", "starting"]


class Way(Enum):
    """How a fleet comes to its kernels."""

    ALONE = "no shared tier"
    SHARED = "shared tier, one order"  # every node asks for the same key first
    SHUFFLED = "shared tier, shuffled"  # every node in an order of its own
    WARMED = "warmed through a cluster"  # each key is handed to one node first; then all fetch
    BUNDLE = "bundle, fetched"  # built before; every node fetches one file from the server
    SHIPPED = "bundle, in the image"  # on the node before it starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The inputs; docs/scale.md says where each default comes from.

    Attributes
    ----------
    nodes, keys : int
        Machines that start, and kernels that each of them needs.
    slots : int
        Keys that one node asks for, and compiles, at once: its cores in a warm-up, 1 in a program.
    compile_s : float
        One compile.
    entry_bytes : int
        One entry as it is stored.
    start_spread_s : float
        Nodes start at random moments of so many seconds.
    round_trip_s : float
        Between a node and the server.
    client_s : float
        What one request costs the node beside that.
    command_s, thread_bytes_per_s : float
        What one command, and what each byte of its payload costs the server's only thread.
    link_bytes_per_s : float
        The server's network, in each direction.
    connections : int
        How many nodes the server admits; the others go without.
    time_out_s : float
        After how long an answer is a miss.
    dispatch_s : float
        What the cluster's scheduler needs for one task, one after another.
    mount_s : float
        A bundle becomes a layer.
    seed : int
    """

    nodes: int
    keys: int = 200
    slots: int = 8
    compile_s: float = 0.34
    entry_bytes: int = 61_440
    start_spread_s: float = 0.0
    round_trip_s: float = 0.3e-3
    client_s: float = 0.2e-3
    command_s: float = 7e-6
    thread_bytes_per_s: float = 5e9
    link_bytes_per_s: float = 25e9 / 8
    connections: int = 10_000
    time_out_s: float = WAIT_S
    dispatch_s: float = 3.5e-3
    mount_s: float = 5e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it.

    Attributes
    ----------
    compiles : int
        In the whole fleet.
    bytes_out, bytes_in : int
        From and to the server.
    last_ready_s : float
        When the last node has all its kernels. A cluster's warm-up counts; a bundle's build does not.
    longest_wait_s, median_wait_s : float
        From a node's own start until then.
    timed_out : int
        Requests that were answered too late.
    busy : dict of str to float
        How much of that time the server's thread, its link (the fuller direction) and the nodes' slots were at work.
    """

    compiles: int
    bytes_out: int
    bytes_in: int
    last_ready_s: float
    longest_wait_s: float
    median_wait_s: float
    timed_out: int
    busy: dict[str, float]

    @property
    def saturated(self) -> str:
        """The fullest of the three; a dash where each rests more than half of the time."""
        name = max(self.busy, key=lambda name: self.busy[name])
        return name if self.busy[name] > 0.5 else "-"


def simulate(fleet: Fleet, way: Way, *, starts: Sequence[float] | None = None) -> Outcome:
    """One cold start.

    Parameters
    ----------
    fleet : Fleet
    way : Way
    starts : sequence of float or None
        The moment at which each node starts; None draws them (`starting`).

    Examples
    --------
    >>> simulate(Fleet(nodes=4, keys=8, slots=8, compile_s=0.5), Way.ALONE).compiles
    32
    """
    starts = starting(fleet) if starts is None else starts
    if way in (Way.BUNDLE, Way.SHIPPED):
        return _bundled(fleet, starts, fetched=way is Way.BUNDLE)
    run = _Run(fleet, starts)
    if way is Way.WARMED:
        run.warm_up()
    for node in range(fleet.nodes):
        if way is Way.ALONE or node >= fleet.connections:
            run.alone(node)
        else:
            run.enter(node, order_of(fleet, way, node))
    run.drain()
    return run.outcome()


def starting(fleet: Fleet) -> list[float]:
    """A moment for each node."""
    rng = random.Random(fleet.seed)
    return [rng.random() * fleet.start_spread_s for _ in range(fleet.nodes)]


def order_of(fleet: Fleet, way: Way, node: int) -> Sequence[int]:
    """The keys of a node, as it asks for them."""
    if way is Way.SHUFFLED:
        return random.Random(f"{fleet.seed} {node}").sample(range(fleet.keys), fleet.keys)
    return range(fleet.keys)


def _bundled(fleet: Fleet, starts: Sequence[float], *, fetched: bool) -> Outcome:
    """One file a node: a single long answer, which no time-out cuts short, then a mount."""
    size = fleet.keys * fleet.entry_bytes
    starts = sorted(starts)
    ready, free, moved = [], 0.0, 0
    for start in starts:
        end = start
        if fetched:
            free = max(free, start + fleet.round_trip_s / 2) + size / fleet.link_bytes_per_s
            end = free + fleet.round_trip_s / 2 + fleet.client_s
            moved += size
        ready.append(end + fleet.mount_s)
    busy = {"thread": 0.0, "link": moved / fleet.link_bytes_per_s / max(ready), "nodes": 0.0}
    return Outcome(0, moved, 0, *_times(starts, ready), 0, busy)


_ASK, _PUT, _STORE = range(3)


class _Run:
    """The clock, the server, and where each node is."""

    def __init__(self, fleet: Fleet, starts: Sequence[float]) -> None:
        self.fleet, self.starts = fleet, list(starts)
        self.wanted = starts  # what the starts were before a warm-up
        self.stored = bytearray(fleet.keys)
        self.thread_free = self.out_free = self.in_free = 0.0
        self.thread_busy = 0.0
        self.gets_hit = self.puts = self.compiles = self.timed_out = 0
        self.orders: list[Sequence[int]] = [()] * fleet.nodes
        self.place = [0] * fleet.nodes  # in its order
        self.breakers = [Breaker() for _ in range(fleet.nodes)]
        self.ready = [0.0] * fleet.nodes
        self.queue: list[tuple[float, int, int, int, int]] = []  # moment, tie-break, what, node, key
        self.number = 0

    # what nodes do ----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Hand each key to the next free slot of the cluster; every node then starts from there."""
        fleet = self.fleet
        free = [start for start in self.starts for _ in range(fleet.slots)]
        heapq.heapify(free)
        dispatched, last = min(self.starts), 0.0
        for key in range(fleet.keys):
            dispatched += fleet.dispatch_s
            end = max(heapq.heappop(free), dispatched) + fleet.round_trip_s + fleet.client_s + fleet.compile_s
            heapq.heappush(free, end)
            self.compiles += 1
            self.put(end, key)
            last = max(last, end)
        self.drain()
        last = max(last, self.thread_free)
        self.starts = [max(start, last) for start in self.starts]

    def enter(self, node: int, order: Sequence[int]) -> None:
        """A node that uses the server begins."""
        self.orders[node] = order
        for _ in range(min(self.fleet.slots, self.fleet.keys)):
            self.go_on(node, self.starts[node])

    def alone(self, node: int) -> None:
        """A node that meets nobody."""
        fleet = self.fleet
        self.compiles += fleet.keys
        self.ready[node] = self.starts[node] + -(-fleet.keys // fleet.slots) * fleet.compile_s

    def go_on(self, node: int, moment: float) -> None:
        """A slot of a node takes the node's next key, or rests."""
        place = self.place[node]
        if place < len(self.orders[node]):
            self.place[node] = place + 1
            self.push(moment + self.fleet.round_trip_s / 2, _ASK, node, self.orders[node][place])
        else:
            self.ready[node] = max(self.ready[node], moment)

    def compile(self, node: int, key: int, begin: float) -> None:
        """In this slot; the entry is offered in the background, and the slot goes on."""
        end = begin + self.fleet.compile_s
        self.compiles += 1
        if not self.breakers[node].left_s(end):
            self.put(end, key)
        self.go_on(node, end)

    def put(self, moment: float, key: int) -> None:
        self.push(moment + self.fleet.round_trip_s / 2, _PUT, -1, key)

    # what the server does ---------------------------------------------------------------------------------------------

    def push(self, moment: float, what: int, node: int, key: int) -> None:
        self.number += 1
        heapq.heappush(self.queue, (moment, self.number, what, node, key))

    def drain(self) -> None:
        """Until nothing is left to happen."""
        queue = self.queue
        while queue:
            moment, _, what, node, key = heapq.heappop(queue)
            if what == _ASK:
                self.answer(moment, node, key)
            elif what == _PUT:  # the thread is free for others until all its bytes are there
                self.in_free = max(self.in_free, moment) + self.fleet.entry_bytes / self.fleet.link_bytes_per_s
                self.push(self.in_free, _STORE, node, key)
            else:  # the first of equal ones stays
                self.serve(moment, self.fleet.entry_bytes)
                self.puts += 1
                self.stored[key] = 1

    def answer(self, moment: float, node: int, key: int) -> None:
        """A get, and what the node does with the answer."""
        fleet = self.fleet
        sent, breaker = moment - fleet.round_trip_s / 2, self.breakers[node]
        turn = breaker.ask(sent)
        if turn is None:
            self.compile(node, key, sent)
            return
        hit = self.stored[key] == 1
        done = self.serve(moment, fleet.entry_bytes if hit else 0)
        if hit:
            self.gets_hit += 1
            done = self.out_free = max(self.out_free, done) + fleet.entry_bytes / fleet.link_bytes_per_s
        back = done + fleet.round_trip_s / 2
        if back - sent > fleet.time_out_s:
            self.timed_out += 1
            late = sent + fleet.time_out_s
            breaker.fail(turn, late)
            self.compile(node, key, late)
            return
        breaker.well(turn)
        if hit:
            self.go_on(node, back + fleet.client_s)
        else:
            self.compile(node, key, back + fleet.client_s)

    def serve(self, moment: float, size: int) -> float:
        """The thread's next piece of work; when it is done."""
        work = self.fleet.command_s + size / self.fleet.thread_bytes_per_s
        self.thread_busy += work
        self.thread_free = max(self.thread_free, moment) + work
        return self.thread_free

    def outcome(self) -> Outcome:
        fleet, last = self.fleet, max(self.ready)
        bytes_out, bytes_in = self.gets_hit * fleet.entry_bytes, self.puts * fleet.entry_bytes
        end = max(last, self.thread_free, self.out_free)  # what was offered last may come in later
        busy = {
            "thread": self.thread_busy / end,
            "link": max(bytes_out, bytes_in) / fleet.link_bytes_per_s / end,
            "nodes": self.compiles * fleet.compile_s / (end * fleet.nodes * fleet.slots),
        }
        times = _times(self.wanted, self.ready)
        return Outcome(self.compiles, bytes_out, bytes_in, *times, self.timed_out, busy)


def _times(starts: Sequence[float], ready: Sequence[float]) -> tuple[float, float, float]:
    """The last moment, and the longest and the median wait."""
    waits = sorted(end - start for start, end in zip(starts, ready, strict=True))
    return max(ready), waits[-1], waits[len(waits) // 2]
