"""What a trace says of the cache: the miss ratio of every policy and size, the smallest that do, and what fills it."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuplate.cache.policy import SMALLEST_DISK_BYTES
from cuplate.cache.replay import Entry, MemoryReplay, Point, Stream, asked, disk_bytes, memory, play, read_stream
from cuplate.config import CHOICES, UNLIMITED, VARIABLES
from cuplate.errors import CacheError, SettingError

if TYPE_CHECKING:
    from cuplate.cache.trace import Trace

__all__ = ["Cause", "Choice", "Curve", "Point", "Table", "Tier", "Tuning", "Unused", "tune"]

_ENOUGH = 1.01  # misses, as a multiple of the fewest: within 1 % of the best
_LARGEST_SHARE = 8  # an entry above this part of the limit is not stored
_SHOWN = 8  # of a list of causes or entries
_ARRAYS = "(dtypes, layouts, fixed sizes)"


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy at every size.

    Attributes
    ----------
    policy : str
        As in `cuplate.CachePolicy`.
    points : tuple of Point
        By size.
    """

    policy: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy and a size."""

    policy: str
    size: int


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier at every policy and size.

    Attributes
    ----------
    name : str
        ``"memory"`` or ``"disk"``.
    unit : str
        ``"kernels"`` or ``"bytes"``.
    curves : tuple of Curve
    full : int
        The size at which all fits.
    each_bytes : float
        Of an entry, on average: code in memory, the sealed record on disk.
    in_force : Choice
        While the trace was recorded.
    enough : Choice
        The smallest size, of any policy, with at most 1.01 times the fewest misses. Of several below what
        `cuplate.CachePolicy` allows, the first policy.
    """

    name: str
    unit: str
    curves: tuple[Curve, ...]
    full: int
    each_bytes: float
    in_force: Choice
    enough: Choice

    @property
    def tells(self) -> bool:
        """Whether a size can be told from it: of the disk by one hit, of memory if half of the look-ups can be hits.

        Where most look-ups of memory are of something new, the smallest size that does as well as the best says how
        short the trace is, not what the program needs. What goes to the disk has missed memory, so there they may be.
        """
        return self.best.hits > 0 and (self.name == "disk" or self.best.hits >= self.best.misses)

    @property
    def best(self) -> Point:
        """The fewest misses of any policy and size."""
        return min((point for curve in self.curves for point in curve.points), key=lambda point: point.misses)

    def point(self, choice: Choice) -> Point | None:
        """What a choice comes to; above the curve's end, what its end does. None for a size that was not played."""
        (points,) = [curve.points for curve in self.curves if curve.policy == choice.policy]
        return next((p for p in points if p.size == min(choice.size, points[-1].size)), None)


@dataclass(frozen=True, slots=True)
class Cause:
    """A parameter that makes variants.

    Attributes
    ----------
    function, parameter : str
    values : int
        That it has taken.
    examples : tuple of str
        Some of them.
    variants, without : int
        Kernels of the function, and how many there would be without the parameter.
    """

    function: str
    parameter: str
    values: int
    examples: tuple[str, ...]
    variants: int
    without: int


@dataclass(frozen=True, slots=True)
class Unused:
    """An entry that nobody looked up again after its compile.

    Attributes
    ----------
    function, parameters, arch, key : str
        The key in hexadecimal.
    size_bytes : int
        On disk.
    compile_s : float
    """

    function: str
    parameters: str
    arch: str
    key: str
    size_bytes: int
    compile_s: float


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head, those of `numbers` set to the right; ``str()`` sets them in columns."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...]

    def __str__(self) -> str:
        columns = []
        for column in zip(self.head, *self.rows, strict=True):
            width = max(map(len, column))
            columns.append([cell.rjust(width) if column[0] in self.numbers else cell.ljust(width) for cell in column])
        return "\n".join([self.title, *("  ".join(line).rstrip() for line in zip(*columns, strict=True))])


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tune` found; ``str()`` is the report, `to_json` the figures.

    Attributes
    ----------
    look_ups : int
        Of memory, the hot path's included.
    answered : tuple of (str, int)
        By memory (plans included), disk, layer, compile: how many look-ups each has answered while it was recorded;
        those that went to the disk alone are among them.
    processes : int
    seconds : float
        From the first to the last.
    kernels : int
        Different ones.
    compile_s : float
        What compiling each once costs.
    memory, disk : Tier or None
        None if the trace asked no such tier. The disk lies below a memory of `memory_kernels`.
    memory_kernels : int
    causes : tuple of Cause
        The parameter that makes most variants first.
    unused : tuple of Unused
        The dearest first.
    notes : tuple of str
        What makes the replay less than exact, and what could not be read.
    """

    look_ups: int
    answered: tuple[tuple[str, int], ...]
    processes: int
    seconds: float
    kernels: int
    compile_s: float
    memory: Tier | None
    disk: Tier | None
    memory_kernels: int
    causes: tuple[Cause, ...]
    unused: tuple[Unused, ...]
    notes: tuple[str, ...]

    def settings(self) -> dict[str, int | str]:
        """The values of `cuplate.CachePolicy` that are recommended; none of a tier of which the trace tells nothing."""
        found: dict[str, int | str] = {}
        if self.memory is not None and self.memory.tells:
            found["memory_kernels"] = self.memory.enough.size
        if self.disk is not None and self.disk.tells:
            found |= {
                "disk_bytes": max(self.disk.enough.size, SMALLEST_DISK_BYTES),
                "eviction": self.disk.enough.policy,
            }
        return found

    def environment(self) -> tuple[str, ...]:
        """The recommendation as variables of the environment, one a line."""
        return tuple(f"{VARIABLES[name]}={value}" for name, value in self.settings().items())

    def project(self) -> tuple[str, ...]:
        """The recommendation as lines of a pyproject.toml."""
        return ("[tool.cuplate]", *(f"{name} = {json.dumps(value)}" for name, value in self.settings().items()))

    def summary(self) -> str:
        """How much was looked at, in two lines."""
        processes = f"{self.processes} process{'es' if self.processes != 1 else ''}"
        looked = f"{self.look_ups} look-ups of memory by {processes} in {self.seconds:.1f} s"
        answered = ", ".join(f"{tier} {count}" for tier, count in self.answered)
        return f"{looked}; {self.kernels} kernels, {self.compile_s:.1f} s to compile each once\nanswered by {answered}"

    def tables(self) -> Iterator[Table]:
        """Everything but the recommendation."""
        if self.memory is not None:
            yield _memory_table(self.memory)
        if self.disk is not None:
            yield _disk_table(self.disk, self.memory_kernels)
        if self.causes:
            rows = tuple(
                (c.function, c.parameter, str(c.values), str(c.variants), str(c.without), ", ".join(c.examples))
                for c in self.causes[:_SHOWN]
            )
            head = ("function", "parameter", "values", "variants", "without it", "for example")
            more = f", the first {_SHOWN} of {len(self.causes)}" if len(self.causes) > _SHOWN else ""
            yield Table(f"parameters that cause variants{more}", head, rows, head[2:5])
        if self.unused:
            size, seconds = sum(u.size_bytes for u in self.unused), sum(u.compile_s for u in self.unused)
            title = f"never used again after their compile: {len(self.unused)} entries, {size} bytes, {seconds:.1f} s"
            title += f"; the dearest {_SHOWN} of them" if len(self.unused) > _SHOWN else ""
            rows = tuple(
                (u.function, named, u.arch, str(u.size_bytes), f"{u.compile_s:.2f}", u.key[:16])
                for u, named in zip(self.unused[:_SHOWN], _told_apart(self.unused), strict=False)
            )
            head = ("function", "parameters", "arch", "bytes", "compile s", "key")
            yield Table(title, head, rows, head[3:5])

    def __str__(self) -> str:
        parts = [self.summary(), *map(str, self.tables())]
        parts += ["\n".join(("recommended", *self.environment()))] * bool(self.settings())
        return "\n\n".join(parts + ["\n".join(self.notes)] * bool(self.notes))

    def figures(self) -> dict[str, Any]:
        """All of it in dictionaries and lists; sizes in kernels and bytes, times in seconds."""
        return {**dataclasses.asdict(self), "settings": self.settings()}

    def to_json(self) -> str:
        """The `figures`."""
        return json.dumps(self.figures(), indent=2)


def _told_apart(unused: Sequence[Unused]) -> Iterator[str]:
    """The parameters of each; kernels that differ in their arrays, of which a trace holds nothing, are numbered."""
    alike = Counter((u.function, u.parameters, u.arch) for u in unused)
    seen: Counter[tuple[str, str, str]] = Counter()
    for u in unused:
        this = (u.function, u.parameters, u.arch)
        seen[this] += 1
        yield (u.parameters or "-") + (f" (arrays {seen[this]} of {alike[this]})" if alike[this] > 1 else "")


def _marks(tier: Tier, policy: str, point: Point) -> str:
    """What there is to say of a point."""
    marks = ["enough"] * (Choice(policy, point.size) == tier.enough)
    in_force = policy == tier.in_force.policy and point == tier.point(tier.in_force)
    marks += ["in force" if point.size == tier.in_force.size else "as in force"] * in_force  # which may be larger
    marks += ["all fits"] * (point.size >= tier.full)
    return ", ".join(marks)


def _memory_table(tier: Tier) -> Table:
    (curve,) = tier.curves
    rows = []
    for p in curve.points:
        code_bytes = min(p.size, tier.full) * tier.each_bytes
        cells = (str(p.size), f"{code_bytes:.0f}", str(p.misses), _percent(p), str(p.evictions), f"{p.spent_s:.1f}")
        rows.append((*cells, _marks(tier, curve.policy, p)))
    head = ("kernels", "code bytes", "misses", "miss ratio", "evictions", "compile s without a disk", "")
    title = f"memory, {curve.policy} (in force: {_limit(tier.in_force.size)} kernels)"
    return Table(title, head, tuple(rows), head[:-1])


def _disk_table(tier: Tier, memory_kernels: int) -> Table:
    rows = []
    for points in zip(*(curve.points for curve in tier.curves), strict=True):
        best = min(points, key=lambda p: p.misses)
        marks = ", ".join(m for c, p in zip(tier.curves, points, strict=True) if (m := _marks(tier, c.policy, p)))
        marks = ", ".join(dict.fromkeys(marks.split(", ")))
        cells = (str(points[0].size), *map(_percent, points), str(best.evictions))
        rows.append((*cells, f"{best.saved_s:.1f}", f"{best.spent_s:.1f}", marks))
    head = ("bytes", *(c.policy for c in tier.curves), "evictions", "compile s saved", "spent", "")
    force = f"in force: {tier.in_force.policy}, {_limit(tier.in_force.size)} bytes"
    title = f"disk, below {_limit(memory_kernels)} kernels in memory: miss ratios; the rest of the best one ({force})"
    return Table(title, head, tuple(rows), head[:-1])


def _percent(point: Point) -> str:
    return f"{point.miss_ratio:.2%}"


def _limit(size: int) -> str:
    return "unlimited" if size >= UNLIMITED else str(size)


# ---- the replay of a whole trace -------------------------------------------------------------------------------------


def tune(
    trace: Trace,
    *,
    memory_sizes: Collection[int] | None = None,
    memory_kernels: int | None = None,
    disk_sizes: Collection[int] | None = None,
    evictions: Collection[str] | None = None,
    time_to_live_s: float | None = None,
) -> Tuning:
    """Replay a trace against every policy and size. Tiers are empty at first, but for what the trace found loaded.

    Parameters
    ----------
    trace : Trace
        As `cuplate.cache.trace.read_trace` gives it.
    memory_sizes : collection of int, optional
        Limits to show, kernels, each at least 1. The choice is always made among all.
    memory_kernels : int, optional
        Limit of memory above the disk tier; default: the one that is recommended.
    disk_sizes : collection of int, optional
        Limits to play, bytes, each at least 1; default: powers of two and what lies halfway, up to where all fits.
    evictions : collection of str, optional
        Policies to play; default: all.
    time_to_live_s : float, optional
        Default: as it was in force.

    Returns
    -------
    Tuning

    Raises
    ------
    SettingError
        A size or a policy is none.
    CacheError
        The trace was not written by a recording.
    """
    kinds = tuple(CHOICES["eviction"] if evictions is None else evictions)
    _check("a policy", kinds, CHOICES["eviction"].__contains__, ", ".join(CHOICES["eviction"]))
    for name, sizes in (("memory", memory_sizes), ("disk", disk_sizes), ("memory", [memory_kernels or 1])):
        _check(f"a size of the {name} tier", sizes or (), lambda size: type(size) is int and size >= 1, "at least 1")
    try:
        return _tune(trace, memory_sizes, memory_kernels, disk_sizes, kinds, time_to_live_s)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # A good checksum makes no record true.
        reason = f"{type(error).__name__}: {error}"
        raise CacheError("a trace holds what no recording writes.", reason=reason) from error


def _tune(
    trace: Trace,
    memory_sizes: Collection[int] | None,
    memory_kernels: int | None,
    disk_sizes: Collection[int] | None,
    kinds: Sequence[str],
    time_to_live_s: float | None,
) -> Tuning:
    """As `tune`, whose arguments have been checked."""
    entries: dict[bytes, Entry] = {}
    streams = [read_stream(process, entries) for process in trace.processes]
    replays = [memory(stream) for stream in streams]
    policy = trace.processes[0].start.get("policy", {})
    look_ups = sum(len(r.depths) + len(r.failed) for r in replays)
    of_memory = _tune_memory(replays, entries, memory_sizes, policy) if look_ups else None
    above = memory_kernels or (of_memory.enough.size if of_memory is not None else policy.get("memory_kernels", 1))
    places = Counter(e.place for s in streams for e in _asked_entries(s, entries))
    of_disk = None
    if places:
        place = max(places, key=lambda name: (places[name], name or ""))
        ttl = policy.get("time_to_live_s", UNLIMITED) if time_to_live_s is None else time_to_live_s
        of_disk = _tune_disk(replays, entries, place, above, disk_sizes, kinds, ttl, policy)
    kernels = {key: entry for key, entry in entries.items() if entry.facts}
    ends = [float(at) for p in trace.processes for at in (p.start["at"], p.records[-1].at, *p.at[-1:])]
    return Tuning(
        look_ups=look_ups,
        answered=_answered(streams, kernels),
        processes=len(streams),
        seconds=max(ends) - min(ends),
        kernels=len(kernels),
        compile_s=sum(entry.compile_s for entry in kernels.values()),
        memory=of_memory,
        disk=of_disk,
        memory_kernels=above,
        causes=_causes(kernels),
        unused=_unused(streams, kernels),
        notes=(*trace.damage, *_silent(of_memory, of_disk), *_notes(streams, entries, places)),
    )


def _check(what: str, values: Iterable[Any], good: Any, allowed: str) -> None:
    for value in values:
        if not good(value):
            raise SettingError(f"{what} is not one to replay.", given=repr(value), allowed=allowed)


def _tune_memory(
    replays: Sequence[MemoryReplay], entries: dict[bytes, Entry], sizes: Collection[int] | None, policy: dict[str, Any]
) -> Tier:
    """One pass of each process gives the misses of every size."""
    import numpy as np

    depths = np.concatenate([r.depths for r in replays] + [np.array([d for _, d in r.failed], int) for r in replays])
    at_depth = np.bincount(depths, minlength=2)
    full = len(at_depth) - 1
    misses = len(depths) - at_depth[1:].cumsum()  # by size, from 1
    enough = int(np.flatnonzero(misses <= _ENOUGH * misses[-1])[0]) + 1
    compile_s = [
        np.array([e.compile_s if (e := entries.get(key)) else 0.0 for key, _ in r.stream.process.kernels])
        for r in replays
    ]

    def point(size: int) -> Point:
        each = [dataclasses.astuple(r.point(size, c))[1:] for r, c in zip(replays, compile_s, strict=True)]
        names = [f.name for f in dataclasses.fields(Point)][1:]
        return Point(size=size, **dict(zip(names, map(sum, zip(*each, strict=True)), strict=True)))

    in_force = int(policy.get("memory_kernels", UNLIMITED))
    shown = {*(_steps(1, full) if sizes is None else sizes), enough, min(in_force, full)}
    curve = Curve("least-recently-used", tuple(map(point, sorted(shown))))
    loaded = {key for replay in replays for key, _ in replay.stream.process.kernels}
    each = [e.facts["code_bytes"] for key in loaded if (e := entries.get(key)) is not None and e.facts] or [0]
    return Tier(
        name="memory",
        unit="kernels",
        curves=(curve,),
        full=full,
        each_bytes=sum(each) / len(each),
        in_force=Choice(curve.policy, in_force),
        enough=Choice(curve.policy, enough),
    )


def _tune_disk(
    replays: Sequence[MemoryReplay],
    entries: dict[bytes, Entry],
    place: str | None,
    memory_kernels: int,
    sizes: Collection[int] | None,
    kinds: Sequence[str],
    time_to_live_s: float,
    policy: dict[str, Any],
) -> Tier:
    operations = asked(replays, entries, memory_kernels)
    each = [disk_bytes(key, entry, place) for key, entry in entries.items() if entry.asked and entry.place == place]
    full = max(sum(each), _LARGEST_SHARE * max(each))
    in_force = Choice(policy.get("eviction", kinds[0]), int(policy.get("disk_bytes", UNLIMITED)))
    first = max(full // 32, _LARGEST_SHARE // 2 * sorted(each)[len(each) // 2])  # below it little is stored at all
    shown = sorted({*_steps(first, full), min(in_force.size, full)} if sizes is None else {*sizes})

    def point(kind: str, size: int) -> Point:
        return play(
            operations,
            entries,
            limit_bytes=size,
            eviction=kind,
            time_to_live_s=time_to_live_s,
            place=place,
            processes=len(replays),
        )

    curves = tuple(Curve(kind, tuple(point(kind, size) for size in shown)) for kind in kinds)
    fewest = min(p.misses for curve in curves for p in curve.points)
    _, _, i, size = min(
        (max(p.size, SMALLEST_DISK_BYTES), p.misses if p.size > SMALLEST_DISK_BYTES else 0, i, p.size)
        for i, curve in enumerate(curves)
        for p in curve.points
        if p.misses <= _ENOUGH * fewest
    )
    return Tier(
        name="disk",
        unit="bytes",
        curves=curves,
        full=full,
        each_bytes=sum(each) / len(each),
        in_force=in_force,
        enough=Choice(curves[i].policy, size),
    )


def _steps(first: int, full: int) -> Iterator[int]:
    """Powers of two and what lies halfway, from the last below `first` to the first at which all fits."""
    size = 1 << (first.bit_length() - 1)
    while True:
        for step in (size, size + size // 2):
            if step >= first:
                yield step
            if step >= full:
                return
        size *= 2


def _answered(streams: Sequence[Stream], kernels: Collection[bytes]) -> tuple[tuple[str, int], ...]:
    """Who gave the kernels that were looked up."""
    records = [record for stream in streams for record in stream.process.records if "key" in record.told]
    told = Counter(r.told.get("found") or r.what for r in records if bytes.fromhex(r.told["key"]) in kernels)
    missed = sum(record.what == "missed" for record in records)
    failed = sum(step.what == "failed" for stream in streams for step in stream.steps)
    memory = sum(len(stream.process.uses) for stream in streams) - (missed - failed)
    return ("memory", memory), ("disk", told["disk"]), ("layer", told["layer"]), ("compile", told["put"])


def _asked_entries(stream: Stream, entries: dict[bytes, Entry]) -> Iterator[Entry]:
    """What a disk tier was asked for, as often as there was reason to."""
    for key, _ in stream.process.kernels:
        if (entry := entries.get(key)) is not None and entry.asked:
            yield entry
    for step in stream.steps:
        if isinstance(step.key, bytes) and (entry := entries.get(step.key)) is not None:
            yield entry


# ---- what fills the cache --------------------------------------------------------------------------------------------


def _causes(kernels: dict[bytes, Entry]) -> tuple[Cause, ...]:
    """By function, what its kernels differ in."""
    functions: dict[str, list[dict[str, str]]] = defaultdict(list)
    for entry in kernels.values():
        functions[entry.facts["function"]].append(
            {**_parameters(entry.facts["parameters"]), "arch": entry.facts["arch"]}
        )
    found = []
    for function, variants in functions.items():
        for name in dict.fromkeys(name for variant in variants for name in variant):
            values = Counter(variant.get(name, "-") for variant in variants)
            # Kernels with equal parameters differ in their arrays; in which of them cannot be told, so of the values of
            # a parameter the one with most kernels stands for what is left.
            groups: dict[Any, Counter[str]] = defaultdict(Counter)
            for variant in variants:
                rest = tuple(sorted((k, v) for k, v in variant.items() if k != name))
                groups[rest][variant.get(name, "-")] += 1
            without = sum(max(group.values()) for group in groups.values())
            if without < len(variants):
                examples = tuple(value for value, _ in values.most_common(4))
                found.append(Cause(function, name, len(values), examples, len(variants), without))
        alike = Counter(tuple(sorted(variant.items())) for variant in variants)
        if len(alike) < len(variants):
            found.append(Cause(function, _ARRAYS, max(alike.values()), (), len(variants), len(alike)))
    return tuple(sorted(found, key=lambda cause: cause.without - cause.variants))


def _parameters(text: str) -> dict[str, str]:
    """``"tile=16, relu=True"`` by name; what is no Python is split where a name follows."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if isinstance(call, ast.Call):
            return {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg is not None}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    parts = re.split(r", (?=[A-Za-z_]\w*=)", text)
    return {name: value for name, mark, value in (part.partition("=") for part in parts) if mark}


def _unused(streams: Sequence[Stream], kernels: dict[bytes, Entry]) -> tuple[Unused, ...]:
    """Compiled in the trace, and looked up that one time."""
    import numpy as np

    looked: Counter[bytes] = Counter()
    for stream in streams:
        counts = np.bincount(stream.process.uses, minlength=len(stream.process.kernels))
        for (key, _), count in zip(stream.process.kernels, counts.tolist(), strict=True):
            looked[key] += count
        looked.update(step.key for step in stream.steps if step.what.endswith("look"))
    found = [
        Unused(
            function=entry.facts["function"],
            parameters=entry.facts["parameters"],
            arch=entry.facts["arch"],
            key=key.hex(),
            size_bytes=disk_bytes(key, entry, entry.place),
            compile_s=entry.compile_s,
        )
        for key, entry in kernels.items()
        if entry.put and looked[key] <= 1
    ]
    return tuple(sorted(found, key=lambda entry: (-entry.compile_s, -entry.size_bytes, entry.key)))


def _silent(*tiers: Tier | None) -> Iterator[str]:
    for tier in tiers:
        if tier is not None and not tier.tells:
            best = tier.best
            what = "nothing was looked up twice in"
            if best.hits:
                what = f"at any size {best.misses} of {best.hits + best.misses} look-ups are the first of a kernel in"
            yield f"{what} the {tier.name} tier: the trace recommends no size of it"


def _notes(streams: Sequence[Stream], entries: dict[bytes, Entry], places: Counter[str | None]) -> Iterator[str]:
    if any(stream.resident for stream in streams):
        yield "kernels were loaded before the recording began: of these the disk tier's part is not exact"
    warm = sum(entry.asked and not entry.put and not entry.layered for entry in entries.values())
    if warm:
        yield f"{warm} entries were on the disk before the recording began; the replay begins with an empty disk"
    if len(streams) > 1 or any(stream.threads > 1 for stream in streams):
        yield "several threads or processes were at it: nobody waits for another's compile in the replay"
    if len(places) > 1:
        yield f"{sum(places.values()) - max(places.values())} look-ups in other directories are left out"
