"""The process's one cache: its tiers, the policy in force, and everything about them in one call."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from cuplate import config
from cuplate.cache import fork
from cuplate.cache.counts import reset
from cuplate.cache.faults import warn_once
from cuplate.cache.gate import Gate
from cuplate.cache.memory import Entry, MemoryTier, watch
from cuplate.cache.policy import NAMES, CachePolicy, EffectivePolicy, PolicyValues, resolve
from cuplate.cache.stats import stats
from cuplate.cache.store import NoStore, Tier
from cuplate.cache.tiers import make_tier
from cuplate.config import UNLIMITED
from cuplate.errors import CacheError, SettingError

if TYPE_CHECKING:
    from cuplate.cache.latency import Latencies
    from cuplate.cache.layers import Layer
    from cuplate.cache.packing import Exported
    from cuplate.cache.program import Attached, ForeignStore, ProgramCache
    from cuplate.cache.pruning import Pruned
    from cuplate.cache.recording import Recording
    from cuplate.cache.shared import SharedTier
    from cuplate.cache.tuning import Tuning

__all__ = [
    "Cache",
    "Configured",
    "Info",
    "attach",
    "clear",
    "configure",
    "current_policy",
    "disk_tier",
    "exclusive",
    "export",
    "import_",
    "info",
    "latencies",
    "memory_tier",
    "mount",
    "openmetrics",
    "prune",
    "record",
    "set_policy",
    "shared_tier",
    "tune",
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
        What the files take on the disk: free pages, gaps, orphans and stores that were set aside included.
    disk_orphans : int
        Files that no entry leads to, and stores that were set aside: what `prune` removes.
    disk_limit_bytes : int
        The limit.
    disk_evictions, memory_evictions : int
        Of this process, all threads.
    memory_kernels, memory_limit_kernels : int
        Loaded kernels, and the limit.
    policy : EffectivePolicy
        With the source of each value.
    shared : str or None
        Place of the shared tier, without user and password; None for none.
    shared_state : str
        ``on``, ``not asked yet``, what it rests from, ``off: `` and the reason; of this process.
    mounted : tuple of str
        What :func:`mount` has put below the layers.
    """

    directory: str | None
    disk_state: str
    disk_entries: int
    disk_entry_bytes: int
    disk_file_bytes: int
    disk_orphans: int
    disk_limit_bytes: int
    disk_evictions: int
    memory_kernels: int
    memory_limit_kernels: int
    memory_evictions: int
    policy: EffectivePolicy
    shared: str | None = None
    shared_state: str = ""
    mounted: tuple[str, ...] = ()

    def __str__(self) -> str:
        disk_limit, kernel_limit = (
            "unlimited" if limit >= UNLIMITED else str(limit)
            for limit in (self.disk_limit_bytes, self.memory_limit_kernels)
        )
        return "\n".join(
            [
                f"directory      {self.directory or 'none (memory only)'} ({self.disk_state})",
                f"disk           {self.disk_entry_bytes} of {disk_limit} bytes in {self.disk_entries} entries, "
                f"{self.disk_file_bytes} bytes on disk, {self.disk_orphans} orphans, {self.disk_evictions} evictions",
                *([f"shared         {self.shared} ({self.shared_state})"] if self.shared else []),
                f"memory         {self.memory_kernels} of {kernel_limit} kernels, {self.memory_evictions} evictions",
                *(f"mounted        {place}" for place in self.mounted),
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
        self.disks: dict[EffectivePolicy, Tier] = {}
        self.shared: dict[tuple[Any, ...], SharedTier] = {}
        self.attached: list[ForeignStore] = []
        self.mounts: dict[tuple[str, str], bytes] = {}
        self.mounted: list[Layer] = []
        self.recordings: tuple[Recording, ...] = ()
        self.followed = False  # whether CUPLATE_TRACE and CUPLATE_METRICS have been looked at
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
        None goes back to environment, pyproject.toml and defaults. A lower memory limit trims at once; any other value
        means another disk tier from the next look-up on.

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
    return _change({name: getattr(wanted, name) for name in NAMES})


class Configured:
    """What :func:`configure` returns; in ``with``, the values before come back when the block ends."""

    __slots__ = ("before", "names")

    def __init__(self, before: CachePolicy, names: tuple[str, ...]) -> None:
        self.before = before
        self.names = names

    def __enter__(self) -> EffectivePolicy:
        return current_policy()

    def __exit__(self, *error: object) -> None:
        # Only what this block set: blocks of two threads that set different values may end in any order.
        _change({name: getattr(self.before, name) for name in self.names})


def configure(policy: CachePolicy | None = None, /, **values: Unpack[PolicyValues]) -> Configured:
    """Change the policy of the process, ``cuplate.configure(memory_kernels=64)``; in ``with``, until the block ends.

    Parameters
    ----------
    policy : CachePolicy, optional
        The whole policy, in the stead of what was configured before.
    **values : object
        Values of :class:`CachePolicy`; what is not named stays as it was configured, ``None`` leaves a value to
        environment, pyproject.toml and default again.

    Returns
    -------
    Configured
        Use it in ``with``, or drop it.

    Raises
    ------
    SettingError
        A value or a name is not allowed, or both forms are mixed.
    """
    if policy is not None:
        if values:
            raise SettingError("configure() takes a policy or its values, not both.", given=", ".join(values))
        return Configured(set_policy(policy), NAMES)
    for name in values:
        if name not in NAMES:
            from cuplate.hints import nearest_name

            near = nearest_name(name, NAMES)
            raise SettingError(
                "a cache policy has no such value.",
                given=name,
                allowed=", ".join(NAMES),
                try_=f"configure({near}=...)" if near else None,
            )
    return Configured(_change(dict(values)), tuple(values))


def _change(values: dict[str, Any]) -> CachePolicy:
    """Set some values of the process's policy; the one before."""
    with _process.lock:  # no other thread's values are lost between the look and the change
        before = _process.policy
        wanted = replace(before, **values)
        effective = wanted.effective()
        _process.policy, tier = wanted, _process.memory
    if tier is not None:  # with no lock held: it tells of what it evicts
        tier.limit = effective.memory_kernels
    return before


def current_policy(policy: CachePolicy | None = None) -> EffectivePolicy:
    """The policy in force, every value decided; ``print`` shows each with where it came from.

    Parameters
    ----------
    policy : CachePolicy, optional
        Of a function's ``policy=``; default the process's alone.
    """
    return resolve(function=policy, code=_process.policy)


def memory_tier() -> MemoryTier[Any]:
    """The process's loaded kernels, made at the first call."""
    effective = current_policy()
    _follow_environment()
    with _process.lock:
        if _process.memory is None:
            _process.memory = MemoryTier(effective.memory_kernels, gate=_process.gate)
        return _process.memory


def disk_tier(policy: CachePolicy | None = None) -> Tier | NoStore:
    """The disk tier of a policy; equal settings share one tier. Touches nothing on the disk.

    Parameters
    ----------
    policy : CachePolicy, optional
        A function's own; default the process's.

    Returns
    -------
    Tier or NoStore
        A `DiskTier`; on a network file system, or without diskcache, a `FilesTier`; with layers below it, a `Layered`.
        NoStore when nothing is to be stored, or there is no place for it.
    """
    _follow_environment()
    tier = _own_tier(policy)
    if _process.attached or _process.mounts:
        from cuplate.cache.layers import Layered

        top, layers = (tier.top, tier.layers) if isinstance(tier, Layered) else (tier, ())
        tier = Layered(top, (*layers, *_mounted()), _process.attached)
    if _process.recordings:
        from cuplate.cache.recording import Recorded

        return cast("Tier", Recorded(tier, _process.recordings))
    return tier


def _own_tier(policy: CachePolicy | None) -> Tier | NoStore:
    effective = current_policy(policy)
    key = replace(effective, memory_kernels=0, shared="", frozen=False, tune="auto", tune_s=0.0, sources=())
    tier = _process.disks.get(key)
    if tier is not None:
        return tier
    # Made with no lock held: a fork stops the making of tiers first, and takes the other locks then.
    tier = make_tier(effective)
    if isinstance(tier, NoStore):  # another reason may hold the next time
        return tier
    with _process.lock:
        return _process.disks.setdefault(key, tier)


def shared_tier(policy: CachePolicy | None = None) -> SharedTier | None:
    """The shared tier of a policy, None for none. Loads no client and opens no connection.

    Parameters
    ----------
    policy : CachePolicy, optional
        A function's own; default the process's.
    """
    effective = current_policy(policy)
    if not effective.shared:
        return None
    key = (effective.shared, effective.secret, effective.time_to_live_s, effective.on_error)
    tier = _process.shared.get(key)
    if tier is None:
        from cuplate.cache.server import server_of
        from cuplate.cache.shared import SharedTier

        made = SharedTier(
            server_of(effective.shared),
            secret=effective.secret,
            time_to_live_s=effective.time_to_live_s,
            on_error=effective.on_error,
        )
        tier = _process.shared.setdefault(key, made)
    return tier


def mount(place: str | os.PathLike[str] | None, name: str = "kernels.cuplate", *, secret: bytes = b"") -> None:
    """Look for kernels in a bundle, or a directory of them, below all layers from now on: in a package, or at a path.

    Nothing is opened, and nothing is looked for, before the first look-up that disk and layers do not answer.

    Parameters
    ----------
    place : str or path
        ``__package__`` in the package that carries the bundle; or the path of a bundle or directory: a path, or a text
        with a slash in it or with the suffix ``.cuplate``. A second time changes nothing.
    name : str
        Of the bundle in the package.
    secret : bytes
        Key of its seal. Without one a package's own files are trusted as its code is, and those at a path if nobody
        else can write them.

    Raises
    ------
    SettingError
        ``__package__`` of a script, which has none.

    Examples
    --------
    >>> import cuplate
    >>> cuplate.mount("/srv/kernels/site.cuplate")  # doctest: +SKIP
    """
    text = os.fspath(place) if place is not None else ""
    if not text or text == "__main__":
        raise SettingError(
            "what is mounted is a package, or a path.",
            given=repr(place),
            allowed='__package__ of a package, or the path of what "cuplate build" has written',
        )
    by_name = isinstance(place, str) and os.sep not in text
    by_path = not by_name or (text.endswith(".cuplate") and text not in sys.modules)  # or a package mylib.cuplate
    key = (os.path.abspath(text), "") if by_path else (text, name)
    with _process.lock:
        _process.mounts.setdefault(key, secret)


def _mounted() -> tuple[Layer, ...]:
    """A layer for each mount, made when it is first asked for."""
    from cuplate.cache.layers import Layer, Mounted

    with _process.lock:
        for (place, name), secret in list(_process.mounts.items())[len(_process.mounted) :]:
            _process.mounted.append(
                Mounted(place, name, secret=secret) if name else Layer(place, secret=secret, setting="cuplate.mount")
            )
        return tuple(_process.mounted)


def attach(resource: ProgramCache, *, secret: bytes = b"") -> Attached:
    """Look in, and write to, a program cache of another make below the disk tier of this process.

    Parameters
    ----------
    resource : ProgramCacheResource
        For example ``cuda.core.utils.FileStreamProgramCache()``. It may fail as it likes: that is a miss.
    secret : bytes
        Key of the seal on what is stored there.

    Returns
    -------
    Attached
        Close it, or use it in ``with``, to take the cache away again.
    """
    from cuplate.cache.program import Attached, ForeignStore

    store = ForeignStore(resource, secret=secret)
    _process.attached.append(store)
    return Attached(_process.attached, store)


def record(path: str | os.PathLike[str] | None = None) -> Recording:
    """Write down every look-up from now on, for :func:`tune` and ``cuplate cache tune``.

    Calls of the hot path are told of as well, and stay on it. Counts are the same as without.

    Parameters
    ----------
    path : path, optional
        File to append to; several processes may write to one. Default: keep it in memory.

    Returns
    -------
    Recording
        Close it, or use it in ``with``, to stop. ``read()`` gives what there is.

    Raises
    ------
    CacheError
        The file cannot be written, or holds something else than a trace.
    """
    from cuplate.cache.recording import Recording

    recording = Recording(
        None if path is None else os.fspath(path), policy=current_policy(), loaded=_loaded, detach=_detach
    )
    _change_recordings(lambda recordings: (*recordings, recording))
    return recording


def _loaded() -> list[Entry[Any]]:
    """What is in the memory tier, least recently used first."""
    return sorted(_process.memory or (), key=lambda entry: entry.tick)


def _detach(recording: Recording) -> None:
    _change_recordings(lambda recordings: tuple(other for other in recordings if other is not recording))


def _change_recordings(change: Callable[[tuple[Recording, ...]], tuple[Recording, ...]]) -> None:
    """Change who is told of look-ups."""
    with _process.lock:
        _process.recordings = change(_process.recordings)
        watch(*_process.recordings)


def _follow_environment() -> None:
    """Begin the trace and the measuring that the environment asks for, at the first look-up of the process."""
    if _process.followed:
        return
    _process.followed = True
    asked = config.settings("trace", "metrics")
    if asked.trace is not None:
        try:
            record(asked.trace)
        except CacheError as error:  # a trace never stands in the way of a call
            warn_once(asked.trace, "trace", f"cuplate: {error}")
    if asked.metrics is not None:
        fork.at_exit(partial(_leave_metrics, latencies(), os.path.abspath(asked.metrics), os.getpid()))


def _leave_metrics(measured: Latencies, named: str, first: int) -> None:
    """Write the text of the whole process, so that who collects it never reads half of it."""
    path = named.replace("{pid}", str(os.getpid()))
    if path == named and os.getpid() != first:
        return  # a forked child has no file of its own
    try:
        text = _expose(measured)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(file.name, path)
    except Exception as error:
        warn_once(path, "metrics", f"cuplate: the metrics cannot be written: {error}")


def tune(*sources: str | os.PathLike[str], **choice: Any) -> Tuning:
    """Replay traces against every policy and size.

    Parameters
    ----------
    *sources : path
        Files that :func:`record`, or ``CUPLATE_TRACE``, has written.
    **choice : object
        ``memory_sizes``, ``memory_kernels``, ``disk_sizes``, ``evictions``, ``time_to_live_s``; see
        :func:`cuplate.cache.tuning.tune`.

    Returns
    -------
    Tuning
        Miss-ratio curves, the smallest sizes that do, and what fills the cache; ``print`` shows it.

    Raises
    ------
    CacheError
        There is no trace to read.
    """
    from cuplate.cache.trace import read_trace
    from cuplate.cache.tuning import tune

    return tune(read_trace(*sources), **choice)


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


def export(directory: str | os.PathLike[str], **choice: Any) -> Exported:
    """Write the kernels of the disk cache, layers included, to a place that can be a read-only layer anywhere.

    Parameters
    ----------
    directory : path
        Made if need be; what it holds already stays. Or a bundle, one file, if its name ends in ``.cuplate``.
        Everybody may read it.
    **choice : object
        ``functions``, ``archs``, ``keys``: only these; ``sources=True`` for their rendered texts as well; ``secret``,
        by default the policy's; ``progress``, called with the number of kernels so far. See
        :func:`cuplate.cache.packing.export`.

    Returns
    -------
    Exported
        What was written; ``print`` shows it.

    Raises
    ------
    OSError
        The directory cannot be written.
    """
    from cuplate.cache.packing import export

    return export(disk_tier(), directory, **{"secret": current_policy().secret, **choice})


def import_(directory: str | os.PathLike[str], *, secret: bytes | None = None, **more: Any) -> Exported:
    """Merge what :func:`export` or ``cuplate build`` wrote, or a copy of a cache directory, into the disk cache.

    Equal keys stay as they are.

    Parameters
    ----------
    directory : path
    secret : bytes, optional
        Key of the seal there; default the policy's.
    **more : object
        ``progress``, called with the number of kernels so far.

    Returns
    -------
    Exported
        What was merged; ``print`` shows it.
    """
    from cuplate.cache.layers import Layer
    from cuplate.cache.packing import merge

    policy = current_policy()
    layer = Layer(directory, secret=policy.secret if secret is None else secret, on_error=policy.on_error)
    return merge(layer, disk_tier(), **more)


def prune() -> Pruned:
    """Make the files of the disk cache fit: within the limit, a tenth of it and 1 MB.

    Expired entries, orphans, set-aside stores and free pages go first, then entries in the order of the policy.

    Returns
    -------
    Pruned
        What went and what is left; ``print`` shows it.
    """
    return disk_tier().prune()


def info() -> Info:
    """Limits, sizes, evictions, directory and policy, in one call; reads the store, writes nothing."""
    effective = current_policy()
    tier = disk_tier()
    away = shared_tier()
    entries, entry_bytes = tier.sums()
    with _process.lock:
        loaded = _process.memory
    return Info(
        directory=tier.directory,
        disk_state=tier.state(),
        disk_entries=entries,
        disk_entry_bytes=entry_bytes,
        disk_file_bytes=tier.volume(),
        disk_orphans=tier.orphans(),
        disk_limit_bytes=effective.disk_bytes if tier.directory is not None else 0,
        disk_evictions=stats(all_threads=True).disk.evictions,
        memory_kernels=0 if loaded is None else len(loaded),
        memory_limit_kernels=effective.memory_kernels,
        memory_evictions=stats(all_threads=True).memory.evictions,
        policy=effective,
        shared=None if away is None else away.place,
        shared_state="" if away is None else away.state(),
        mounted=tuple(os.path.join(place, name) if name else place for place, name in _process.mounts),
    )


def latencies() -> Latencies:
    """Measure how long look-ups, stores and compiles take, from now on and in all threads.

    Returns
    -------
    Latencies
        Close it, or use it in ``with``, to stop; ``print`` shows a table, ``histograms()`` gives the numbers.
    """
    from cuplate.cache.latency import Latencies

    return Latencies()


def openmetrics() -> str:
    """Counts of all threads, sizes, and the histograms of the oldest :func:`latencies` still open, as OpenMetrics text.

    Returns
    -------
    str
        To be served as :data:`cuplate.cache.exposition.CONTENT_TYPE`, or written to a file that is collected.
    """
    from cuplate.cache.latency import running

    return _expose(*running()[:1])


def _expose(measured: Latencies | None = None) -> str:
    from cuplate.cache.exposition import expose

    return expose(stats(all_threads=True), info(), measured.histograms() if measured is not None else ())


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
        for recording in _process.recordings:
            recording.gate(shut=True)
        try:
            yield Cache()
        finally:
            for recording in _process.recordings:
                recording.gate(shut=False)
