"""What the tiers and the compiler have done, as frozen values; `cuplate.cache.counts` counts it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from cuplate.cache import counts

__all__ = ["CacheInfo", "CacheStats", "CompileStats", "SharedStats", "TierStats", "stats"]


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier.

    Attributes
    ----------
    hits, misses : int
        Look-ups answered and not answered, whatever the reason.
    puts : int
        Entries stored.
    evictions : int
        Entries dropped for want of room.
    errors : int
        Operations that failed: damaged entry, no lock in time, full disk and so on. Each failed look-up is a miss too.
    read_bytes, written_bytes : int
        Payloads, bytes.
    seconds : float
        Time spent inside the tier; hot-path hits are not timed.
    """

    hits: int = 0
    misses: int = 0
    puts: int = 0
    evictions: int = 0
    errors: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedStats:
    """The shared tier. It is written by a thread in the background: what it did is in the counts of all threads only.

    Attributes
    ----------
    hits, misses : int
        Look-ups answered and not answered, whatever the reason; those that a server at rest was spared are misses too.
    puts : int
        Entries stored. One that was there already counts nowhere.
    drops : int
        Entries that were not sent: the queue was full, the server at rest, the entry too large, the process at its end.
    errors : int
        Operations that failed: no answer in time, a refusal, a wrong seal. Each failed look-up is a miss too.
    read_bytes, written_bytes : int
        Payloads read, sealed entries written, bytes.
    seconds : float
        Time spent inside the tier.
    """

    hits: int = 0
    misses: int = 0
    puts: int = 0
    drops: int = 0
    errors: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CompileStats:
    """The compiler.

    Attributes
    ----------
    compiles : int
        Compiles that succeeded.
    errors : int
        Compiles that failed.
    written_bytes : int
        Code produced, bytes.
    seconds : float
        Time spent in the compiler.
    """

    compiles: int = 0
    errors: int = 0
    written_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """All tiers at one moment; ``str()`` is a table.

    Attributes
    ----------
    memory : TierStats
        Loaded kernels; hits include those of the hot path.
    disk : TierStats
        Stored kernels.
    compile : CompileStats
        The compiler.
    shared : SharedStats
        Kernels on a server.
    """

    memory: TierStats = TierStats()
    disk: TierStats = TierStats()
    compile: CompileStats = CompileStats()
    shared: SharedStats = SharedStats()

    def __str__(self) -> str:
        head = ("tier", "hits", "misses", "puts", "evictions", "errors", "read", "written", "seconds")
        rows: list[tuple[str, ...]] = [head]
        for name, tier in (("memory", self.memory), ("disk", self.disk)):
            rows.append((name, *(str(getattr(tier, f.name)) for f in fields(tier)[:-1]), f"{tier.seconds:.3f}"))
        made = self.compile
        counts = ("-", "-", str(made.compiles), "-", str(made.errors), "-", str(made.written_bytes))
        rows.append(("compile", *counts, f"{made.seconds:.3f}"))
        away = self.shared
        if away != SharedStats():  # of the others nothing is dropped
            told = (away.hits, away.misses, away.puts, "-", away.errors, away.read_bytes, away.written_bytes)
            rows.insert(3, ("shared", *map(str, told), f"{away.seconds:.3f}"))
            rows = [(*row, column) for row, column in zip(rows, ("drops", "-", "-", str(away.drops), "-"), strict=True)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """One function's look-ups.

    Attributes
    ----------
    hits : int
        Calls of a kind that has come before: sizes, layouts, dtypes and parameters.
    misses : int
        Calls that had to walk further, were it to a kernel that is loaded; and what `inspect` and `compile` render.
    compiles : int
        Misses that ended in the compiler.
    disk_hits, shared_hits : int
        Misses that the disk, and the shared tier, answered.
    variants : int
        Variants known to the function now.
    """

    hits: int = 0
    misses: int = 0
    compiles: int = 0
    disk_hits: int = 0
    shared_hits: int = 0
    variants: int = 0


def _frozen(found: counts.Counts) -> CacheStats:
    def typed(tier: str) -> dict[str, float]:
        return {name: amount if name == "seconds" else int(amount) for name, amount in found[tier].items()}

    return CacheStats(
        TierStats(**typed("memory")),  # type: ignore[arg-type]
        TierStats(**typed("disk")),  # type: ignore[arg-type]
        CompileStats(**typed("compile")),  # type: ignore[arg-type]
        SharedStats(**typed("shared")),  # type: ignore[arg-type]
    )


def stats(*, all_threads: bool = False) -> CacheStats:
    """What the tiers did.

    Parameters
    ----------
    all_threads : bool
        False: the calling thread's own work since its last :func:`reset`. True: the sum over all threads since the
        process began, ended threads included, whatever was reset.

    Returns
    -------
    CacheStats
        Frozen counts.
    """
    return _frozen(counts.of_all_threads() if all_threads else counts.of_this_thread())
