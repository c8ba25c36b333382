"""Compiles specializations before they are called: in threads here, or wherever an executor has its workers.

What goes to a worker is a line of a manifest and the name of an architecture, what comes back a `Row`; the function is
found by its reference, and the kernel stays in the store of the process that compiled it.
"""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cuplate.errors import ArgumentError, CuplateError, ManifestError, SettingError, ToolchainError
from cuplate.manifest import Manifest
from cuplate.progress import progress as shown
from cuplate.walk import find_walk
from cuplate.wanted import Wanted

if TYPE_CHECKING:
    from cuplate.content import Content
    from cuplate.variants import Variants

__all__ = ["Row", "Task", "Warmed", "listed", "prepare", "run", "tasks", "warmup"]

_LOST = "its worker was lost twice: what is compiled there ends the process, or the executor drops what it took"
_SENDINGS = 256
"""More specializations than that are sent in batches: a task costs Dask's scheduler and workers 7 ms, a pool less."""
_TOGETHER = 4
"""So many share a task already where there are enough of them to keep 64 workers busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one specialization on one architecture.

    Attributes
    ----------
    wanted : str
        Line of the manifest.
    arch : str
        ``"sm_90"``, ``"host"``; empty for the worker's own device.
    key : str
        Content key, hexadecimal, as the worker tells it; empty where it could not be told.
    here : str
        As the process tells it that asked; empty where it could not.
    origin : str
        ``"compile"``; ``"disk"`` or ``"shared"`` for a hit; ``"joined"`` where another thread got it; or ``"error"``.
    seconds : float
        From the look-up to the end.
    where : str
        Host and process.
    error : str
        Message, where it failed.
    """

    wanted: str
    arch: str
    key: str = ""
    here: str = ""
    origin: str = "error"
    seconds: float = 0.0
    where: str = ""
    error: str = ""

    @property
    def function(self) -> str:
        """``"module:qualified.name"``."""
        return Wanted.parse(self.wanted).function


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of a warm-up; ``str()`` is a table.

    Attributes
    ----------
    rows : tuple of Row
        In the order of the manifest, each specialization with each architecture.
    seconds : float
        From the first to the last.
    """

    rows: tuple[Row, ...]
    seconds: float = field(default=0.0, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def failed(self) -> tuple[Row, ...]:
        """What could not be compiled."""
        return tuple(row for row in self.rows if row.origin == "error")

    @property
    def compiled(self) -> int:
        """Compiles; equal keys are one."""
        return len({row.key for row in self.rows if row.origin == "compile"})

    @property
    def hits(self) -> int:
        """Keys that were there, on the disk or in the shared tier."""
        return len({row.key for row in self.rows if row.origin in ("disk", "shared")})

    @property
    def other(self) -> tuple[Row, ...]:
        """What a worker made of another key than this process has: calls here, and of other workers, do not find it."""
        return tuple(row for row in self.rows if row.key and row.here not in ("", row.key))

    def check(self) -> Warmed:
        """This result, if nothing failed.

        Raises
        ------
        ManifestError
            Names the first that failed, and why.
        """
        if self.failed:
            first = self.failed[0]
            raise ManifestError(
                f"{len(self.failed)} of {len(self.rows)} specializations could not be compiled.",
                given=str(Wanted.parse(first.wanted)),
                arch=first.arch or "the worker's device",
                reason=first.error,
            )
        return self

    def __str__(self) -> str:
        lines = [
            f"{row.origin:<8} {row.seconds * 1e3:8.1f} ms  {row.key[:16]:<16} {row.arch:<7} {Wanted.parse(row.wanted)}"
            + (f"\n    {row.error}".replace("\n", "\n    ") if row.error else "")
            for row in self.rows
        ]
        told = f"{self.compiled} compiled, {self.hits} there already, {len(self.failed)} failed, {self.seconds:.2f} s"
        if self.other:
            told += f"\n{len(self.other)} with another key than here: the package or the compiler of the worker differs"
        return "\n".join([*lines, told])


@dataclass(frozen=True, slots=True)
class Task:
    """What is sent to a worker once: a specialization and an architecture, for all rows that have the same key.

    Attributes
    ----------
    line : str
    arch : str
    rows : tuple of int
        Places in the result.
    """

    line: str
    arch: str
    rows: tuple[int, ...]


def warmup(
    wanted: Manifest | str | os.PathLike[str] | Iterable[Any],
    *,
    arch: str | Iterable[str] | None = None,
    executor: Executor | None = None,
    progress: bool | Callable[[int, int], object] | None = None,
) -> Warmed:
    """Compile specializations into the stores of the processes that do it, each key once, side by side.

    Parameters
    ----------
    wanted : Manifest, path, or iterable of Wanted and specialized functions
        A path is that of a manifest; a function stands for its call with all defaults.
    arch : str or iterable of str, optional
        ``"sm_90"``, ``"host"`` for the CPU backend; default the device of the process that compiles.
    executor : concurrent.futures.Executor, optional
        Default: threads of this process, one a core, since the compiler leaves the interpreter to others.
    progress : bool or callable, optional
        Called with the number done and the number in all; None shows a bar where stderr is a terminal, False nothing.

    Returns
    -------
    Warmed
        A row for each specialization and architecture: hit or compile, time, where, or the error. A failure raises
        nothing: ``.check()`` does.

    Raises
    ------
    ManifestError
        The manifest cannot be read.
    ArgumentError
        It is no list, or something in it is neither a `Wanted` nor a specialized function; the executor is none.

    Notes
    -----
    Work that is lost with its worker is sent once more, and if it is lost again that is its row's error: what kills its
    worker would kill this process too. What the executor takes none of is done here. An interrupt cancels what has not
    begun. The order is another one each time, so that nodes which warm up side by side divide the work among them.

    Examples
    --------
    >>> from cuplate import warmup
    >>> from cuplate.kernels import transpose
    >>> print(len(warmup([transpose.wanted(a="float32"), transpose.wanted(a="float64")], arch="sm_90").check()))
    2
    """
    start = time.perf_counter()
    if executor is not None and not isinstance(executor, Executor):  # else its refusals would be taken for a broken one
        raise ArgumentError(
            "the executor of a warm-up is none.",
            given=f"{executor!r:.60}",
            allowed="a concurrent.futures.Executor",
            try_="client.get_executor(pure=False), where that is a Dask client",
        )
    archs = ("",) if arch is None else (arch,) if isinstance(arch, str) else tuple(arch)
    entries = listed(wanted)
    rows, planned = tasks(entries, archs, elsewhere=executor is not None)
    run(planned, rows, executor, progress)
    return Warmed(tuple(rows), time.perf_counter() - start)


def listed(wanted: Manifest | str | os.PathLike[str] | Iterable[Any]) -> Manifest:
    """The specializations that are meant, each once."""
    if isinstance(wanted, Manifest):
        return wanted
    if isinstance(wanted, str | os.PathLike):
        return Manifest.read(wanted)
    if not isinstance(wanted, Iterable):
        raise ArgumentError(
            "the specializations are no list.",
            given=f"{wanted!r:.60}",
            allowed="a manifest, the path of one, or a list of f.wanted(...)",
            try_="[...] around it",
        )
    entries = []
    for item in wanted:
        wanted_of: Any = getattr(item, "wanted", None)
        entry = wanted_of() if callable(wanted_of) else item
        if not isinstance(entry, Wanted):
            raise ArgumentError(
                "a list of specializations has something else in it.",
                given=f"{item!r:.60}",
                allowed="f.wanted(...), or f where a call needs no arguments but arrays of one dtype",
            )
        entries.append(entry)
    return Manifest(entries)


def prepare(wanted: Wanted, arch: str) -> tuple[Variants, Content]:
    """What a specialization is rendered to for an architecture, ``""`` for the device that is here; not compiled.

    Raises
    ------
    CuplateError
        The function is not found, or cannot be planned or rendered.
    """
    return find_walk(wanted.function).inspection.prepared(wanted, arch or None)


def tasks(
    entries: Iterable[Wanted],
    archs: Sequence[str],
    *,
    elsewhere: bool = False,
    on_key: Callable[[str, Variants, Content], object] | None = None,
    on_row: Callable[[Row, Content], object] | None = None,
) -> tuple[list[Row], list[Task]]:
    """A row for each specialization and architecture, failed ones filled in, and the work that is left.

    Parameters
    ----------
    entries : iterable of Wanted
    archs : sequence of str
    elsewhere : bool
        Whether the work is for others: a compiler that is not here, which could tell a key, may be there.
    on_key : callable, optional
        Called with key, function and content of each task.
    on_row : callable, optional
        Called with row and content of each that could be planned.
    """
    rows: list[Row] = []
    groups: dict[object, Task] = {}
    for entry in entries:
        line = entry.line()
        for arch in archs:
            row, token = Row(wanted=line, arch=arch, where=_where()), object()
            if arch:  # that of the worker's device is the worker's to tell
                try:
                    variants, content = prepare(entry, arch)
                except CuplateError as error:
                    if not (elsewhere and isinstance(error, ToolchainError)):
                        rows.append(replace(row, error=str(error)))
                        continue
                else:
                    row, token = replace(row, key=content.key.hex), content.key.hex
                    if on_row is not None:
                        on_row(row, content)
                    if on_key is not None and token not in groups:
                        on_key(content.key.hex, variants, content)
            known = groups.get(token, Task(line, arch, ()))
            groups[token] = replace(known, rows=(*known.rows, len(rows)))
            rows.append(row)
    return rows, list(groups.values())


def _work(line: str, arch: str) -> Row:
    """Compile one specialization in this process, or find it; what goes wrong is told in the row."""
    start, row = time.perf_counter(), Row(wanted=line, arch=arch, where=_where())
    try:
        variants, content = prepare(Wanted.parse(line), arch)
        row = replace(row, key=content.key.hex)
        if not content.key.storable:
            raise SettingError("what it compiles to cannot be stored.", reason=content.key.reason)
        obtained = variants.obtain(content)
        if obtained.origin == "compile" and (away := variants.distant()) is not None:
            away.flush()  # who is told that it is done may look for it there
    except (Exception, SystemExit) as error:  # a module that is imported runs whatever it holds
        return replace(row, error=str(error) or type(error).__name__, seconds=time.perf_counter() - start)
    return replace(row, origin=obtained.origin, seconds=time.perf_counter() - start)


def _sent(work: Callable[[str, str], Row], what: Iterable[tuple[str, str]], turn: str) -> list[Row]:
    """What is sent. `turn` differs each time: some executors (Dask's) answer equal calls with what they have."""
    return [work(line, arch) for line, arch in what]


def _where() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def run(
    planned: list[Task],
    rows: list[Row],
    executor: Executor | None,
    progress: bool | Callable[[int, int], object] | None,
    *,
    work: Callable[[str, str], Row] = _work,
) -> None:
    """Have all tasks done and their rows filled in; the parameters are those of `warmup`, and what a worker does."""
    if progress is None or progress is True:
        with shown("compiling", len(planned)) as advance:
            _run_all(planned, rows, executor, lambda done, total: advance(done), work)
    else:
        _run_all(planned, rows, executor, progress or (lambda done, total: None), work)


def _run_all(
    planned: list[Task],
    rows: list[Row],
    executor: Executor | None,
    progress: Callable[[int, int], object],
    work: Callable[[str, str], Row],
) -> None:
    done = 0

    def landed(task: Task, row: Row) -> None:
        nonlocal done
        for place in task.rows:
            rows[place] = replace(row, wanted=rows[place].wanted, arch=rows[place].arch, here=rows[place].key)
        done += 1
        progress(done, len(planned))

    progress(0, len(planned))
    refused = random.Random().sample(planned, len(planned))
    lost: list[Task] = []
    if executor is not None:
        refused, lost = _run(refused, executor, landed, work, size=_batch(len(refused)))
        refused, lost = _run([*refused, *lost], executor, landed, work)  # one by one: each is lost for itself
    if refused:
        refused, _ = _run(refused, None, landed, work)
    for task in (*refused, *lost):
        landed(task, Row(wanted=task.line, arch=task.arch, error=_LOST))


def _batch(count: int) -> int:
    """How many of so many specializations are sent at a time."""
    return max(-(-count // _SENDINGS), min(_TOGETHER, count // 64), 1)


@contextmanager
def _pool(executor: Executor | None, most: int) -> Iterator[Executor]:
    """The given executor as it is, or threads for as long as the block runs."""
    if executor is not None:
        yield executor
        return
    threads = ThreadPoolExecutor(max(1, min(most, os.cpu_count() or 1)), thread_name_prefix="cuplate-warmup")
    try:
        yield threads
    finally:  # at an interrupt nobody waits for what the compiler is at
        threads.shutdown(wait=False, cancel_futures=True)


def _run(
    waiting: list[Task],
    executor: Executor | None,
    landed: Callable[[Task, Row], None],
    work: Callable[[str, str], Row],
    size: int = 1,
) -> tuple[list[Task], list[Task]]:
    """Have everything done, so many at a time, here if there is no executor; what was refused, and what was lost."""
    if not waiting:
        return [], []
    under_way: dict[Future[list[Row]], list[Task]] = {}
    refused: list[Task] = []
    lost: list[Task] = []
    turn = uuid.uuid4().hex
    with _pool(executor, len(waiting)) as pool:
        try:
            for place in range(0, len(waiting), size):
                batch = waiting[place : place + size]
                try:
                    future = pool.submit(_sent, work, tuple((task.line, task.arch) for task in batch), turn)
                except Exception:  # it is broken, or shut down
                    refused = waiting[place:]
                    break
                under_way[future] = batch
            for future in as_completed(under_way):
                batch, found = under_way[future], _answer(future)
                if found is None or [(row.wanted, row.arch) for row in found] != [(t.line, t.arch) for t in batch]:
                    lost += batch
                    continue
                for task, row in zip(batch, found, strict=True):
                    landed(task, row)
        except BaseException:
            for future in under_way:
                future.cancel()
            raise
    return refused, lost


def _answer(future: Future[list[Row]]) -> list[Row] | None:
    """What a worker sent; None if it is gone, or was ended, or if that cannot be read: `work` raises nothing."""
    try:
        if future.exception() is not None:  # result() would raise what ended the worker, and end this process as well
            return None
        found = future.result()
    except Exception:  # it was cancelled
        return None
    return found if isinstance(found, list) and all(isinstance(row, Row) for row in found) else None
