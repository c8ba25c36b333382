"""The tiers of the cache, their policy and their counts. Imports neither NumPy, Jinja, CUDA nor diskcache.

>>> import cuplate.cache
>>> cuplate.cache.reset()
>>> cuplate.cache.stats().compile.compiles
0
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from cuplate.cache import fork
from cuplate.cache.disk import DiskTier
from cuplate.cache.faults import warn_once
from cuplate.cache.gate import Gate
from cuplate.cache.memory import Entry, MemoryTier, next_tick
from cuplate.cache.policy import CachePolicy, EffectivePolicy
from cuplate.cache.stats import CacheInfo, CacheStats, CompileStats, HitCounter, TierStats, count, reset, stats
from cuplate.cache.store import NoStore, Store
from cuplate.config import UNLIMITED, SettingError

__all__ = [
    "UNLIMITED",
    "Cache",
    "CacheInfo",
    "CachePolicy",
    "CacheStats",
    "CompileStats",
    "Configured",
    "DiskTier",
    "EffectivePolicy",
    "Entry",
    "Gate",
    "HitCounter",
    "Info",
    "MemoryTier",
    "NoStore",
    "Store",
    "TierStats",
    "clear",
    "configure",
    "count",
    "current_policy",
    "disk_tier",
    "exclusive",
    "info",
    "memory_tier",
    "next_tick",
    "reset",
    "set_policy",
    "stats",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """Limits, sizes and losses in one place; ``str()`` is a list.

    Attributes
    ----------
    directory : str or None
        Folder of the store; None for memory only.
    disk_state : str
        ``on``, ``resting``, ``read only`` or ``off: `` and the reason.
    disk_entries, disk_entry_bytes : int
        Entries, and the sum of their sealed sizes: what the limit bounds.
    disk_file_bytes : int
        What the files take on the disk.
    disk_limit_bytes : int
        The limit.
    disk_evictions, memory_evictions : int
        Of this process, all threads.
    memory_kernels, memory_limit_kernels : int
        Loaded kernels, and the limit.
    policy : EffectivePolicy
        With the source of each value.
    """

    directory: str | None
    disk_state: str
    disk_entries: int
    disk_entry_bytes: int
    disk_file_bytes: int
    disk_limit_bytes: int
    disk_evictions: int
    memory_kernels: int
    memory_limit_kernels: int
    memory_evictions: int
    policy: EffectivePolicy

    def __str__(self) -> str:
        disk_limit, kernel_limit = (
            "unlimited" if limit >= UNLIMITED else str(limit)
            for limit in (self.disk_limit_bytes, self.memory_limit_kernels)
        )
        return "\n".join(
            [
                f"directory      {self.directory or 'none (memory only)'} ({self.disk_state})",
                f"disk           {self.disk_entry_bytes} of {disk_limit} bytes in {self.disk_entries} entries, "
                f"{self.disk_file_bytes} bytes on disk, {self.disk_evictions} evictions",
                f"memory         {self.memory_kernels} of {kernel_limit} kernels, {self.memory_evictions} evictions",
                self.policy.describe(),
            ]
        )


class _Process:
    """The one memory tier, the disk tiers by what they were asked to be, and the policy set in code."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.policy = CachePolicy()
        self.gate = Gate()
        self.memory: MemoryTier[Any] | None = None
        self.disks: dict[tuple[str, int, bytes], DiskTier] = {}
        fork.register(self)

    def before_fork(self) -> None:
        self.lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        self.lock.release()


_process = _Process()


def set_policy(policy: CachePolicy | None) -> CachePolicy:
    """Use a policy for the whole process from now on.

    Parameters
    ----------
    policy : CachePolicy or None
        None goes back to environment and defaults. A lower memory limit trims at once; another directory, size or
        secret means another disk tier from the next look-up on.

    Returns
    -------
    CachePolicy
        The one before, to be put back.

    Raises
    ------
    SettingError
        The environment holds what is not allowed.
    """
    wanted = CachePolicy() if policy is None else policy
    effective = wanted.effective()
    with _process.lock:
        before, _process.policy = _process.policy, wanted
        tier = _process.memory
    if tier is not None:
        tier.limit = effective.memory_kernels
    return before


class Configured:
    """What :func:`configure` returns; in ``with``, the policy before comes back when the block ends."""

    __slots__ = ("before",)

    def __init__(self, before: CachePolicy) -> None:
        self.before = before

    def __enter__(self) -> EffectivePolicy:
        return current_policy()

    def __exit__(self, *error: object) -> None:
        set_policy(self.before)


def configure(policy: CachePolicy | None = None, /, **values: Any) -> Configured:
    """Set the policy of the process: ``cuplate.configure(memory_kernels=64)``, also for the time of a ``with`` block.

    Parameters
    ----------
    policy : CachePolicy, optional
        The whole policy.
    **values : object
        Fields of :class:`CachePolicy` in its stead; what is not named is left to the environment and the defaults.

    Returns
    -------
    Configured
        Use it in ``with``, or drop it.

    Raises
    ------
    SettingError
        A value or a name is not allowed, or both forms are mixed.
    """
    if policy is not None and values:
        raise SettingError("configure() takes a policy or its values, not both.", given=", ".join(values))
    names = [field.name for field in fields(CachePolicy)]
    for name in values:
        if name not in names:
            import difflib

            near = difflib.get_close_matches(name, names, n=1)
            raise SettingError(
                "a cache policy has no such value.",
                given=name,
                allowed=", ".join(names),
                try_=f"configure({near[0]}=...)" if near else None,
            )
    return Configured(set_policy(CachePolicy(**values) if policy is None else policy))


def current_policy() -> EffectivePolicy:
    """The policy in force, every value decided; see :meth:`EffectivePolicy.describe`."""
    return _process.policy.effective()


def memory_tier() -> MemoryTier[Any]:
    """The process's loaded kernels, made at the first call."""
    effective = current_policy()
    with _process.lock:
        if _process.memory is None:
            _process.memory = MemoryTier(effective.memory_kernels, gate=_process.gate)
        return _process.memory


def disk_tier(policy: CachePolicy | None = None) -> DiskTier | NoStore:
    """The disk tier of a policy; equal settings share one tier. Touches no disk.

    Parameters
    ----------
    policy : CachePolicy, optional
        A function's own; default the process's.

    Returns
    -------
    DiskTier or NoStore
        NoStore when nothing is to be stored, or there is no place for it.
    """
    effective = (_process.policy if policy is None else policy).effective()
    if effective.directory is None:
        reason = effective.sources[2]
        if effective.disk:
            warn_once("", reason, f"cuplate: no disk cache: {reason}. Set CUPLATE_CACHE_DIR to keep compiled kernels.")
        return NoStore(reason)
    key = (effective.directory, effective.disk_bytes, effective.secret)
    tier = _process.disks.get(key)
    if tier is not None:
        return tier
    # Made with no lock held: a fork stops the making of tiers first, and takes the other locks then.
    tier = DiskTier(effective.directory, limit_bytes=effective.disk_bytes, secret=effective.secret)
    with _process.lock:
        return _process.disks.setdefault(key, tier)


def clear(*, memory: bool = True, disk: bool = True) -> int:
    """Drop loaded kernels and stored entries; waits while another thread is in :func:`exclusive`.

    Parameters
    ----------
    memory, disk : bool
        Which tiers.

    Returns
    -------
    int
        Entries dropped, both tiers together.
    """
    dropped = 0
    with _process.lock:
        loaded = _process.memory
    if memory and loaded is not None:
        dropped += loaded.clear()
    if disk:
        with _process.gate.passing():  # wait, but clear with no lock held: another exclusive() may then come between
            pass
        dropped += disk_tier().clear()
    return dropped


def info() -> Info:
    """Limits, sizes, evictions, directory and policy, in one call; reads the store, writes nothing."""
    effective = current_policy()
    tier = disk_tier()
    live = isinstance(tier, DiskTier)
    entries, entry_bytes = tier.sums() if isinstance(tier, DiskTier) else (0, 0)
    with _process.lock:
        loaded = _process.memory
    return Info(
        directory=tier.directory if isinstance(tier, DiskTier) else None,
        disk_state=tier.state() if isinstance(tier, DiskTier) else "off: " + tier.reason,
        disk_entries=entries,
        disk_entry_bytes=entry_bytes,
        disk_file_bytes=tier.volume() if isinstance(tier, DiskTier) else 0,
        disk_limit_bytes=effective.disk_bytes if live else 0,
        disk_evictions=stats(all_threads=True).disk.evictions,
        memory_kernels=0 if loaded is None else len(loaded),
        memory_limit_kernels=effective.memory_kernels,
        memory_evictions=stats(all_threads=True).memory.evictions,
        policy=effective,
    )


class Cache:
    """The cache as :func:`exclusive` hands it over."""

    stats = staticmethod(stats)
    reset = staticmethod(reset)
    clear = staticmethod(clear)
    info = staticmethod(info)


@contextmanager
def exclusive() -> Iterator[Cache]:
    """Keep what is loaded: other threads' ``clear()`` waits and no loaded kernel is evicted until the block ends.

    Re-entrant in its thread; released by an exception; what has piled up above the limit is trimmed at the end. Works
    without a GPU. Look-ups, compiles and launches of other threads go on.

    Yields
    ------
    Cache
        ``stats``, ``reset``, ``clear`` and ``info``; the holder's own ``clear`` does not wait.
    """
    with _process.gate.exclusive():
        yield Cache()
