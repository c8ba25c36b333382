"""A tuning whose candidates are compiled and measured by the workers of an executor, a set of them each.

What travels is a function by its name, the bytes of its arrays, and numbers of candidates; what comes back is a row for
each. The best of every set run once more where the call was made, so that the winner was compared on one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuplate.autotune.job import Job
from cuplate.autotune.stage import Stage
from cuplate.autotune.tuned import Tried, Tuned
from cuplate.autotune.tuner import Part, Tuner, none_can_run
from cuplate.backend import owners
from cuplate.errors import ArgumentError, CuplateError, TuneError

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["hold", "work"]

_FINALISTS = 4
_DEFAULT_SETS = 4
_MOST_BYTES = 1 << 28  # of arrays: they travel once a set
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class _Array:
    """One array on its way: its bytes in the order of its memory."""

    owner: str
    shape: tuple[int, ...]
    dtype: str
    transposed: bool
    data: bytes

    def unpack(self, device: int) -> Any:
        """The array, of the same library, on a device of the worker's."""
        owner: Any = owners.owner_named(self.owner)
        shape = self.shape[::-1] if self.transposed else self.shape
        array = owner.empty(shape, self.dtype, device, None)
        pointer = owner.describe("array", array, "tune").pointer
        if device == owners.HOST:
            from cuplate.backend.cpu import bench as cpu

            cpu.write(pointer, self.data)
        else:
            from cuplate.backend.cuda import bench as cuda

            cuda.write(pointer, self.data, device)
        return array.T if self.transposed else array


def hold(
    function: Any,
    tuner: Tuner,
    job: Job,
    stage: Stage,
    executor: Executor,
    given: Mapping[str, Any],
    sets: int | None,
) -> Tuned:
    """Let the workers of `executor` measure, and keep the winner here.

    Parameters
    ----------
    function : function
        The specialized one; workers import it by module and name.
    tuner, job, stage
        Of the call.
    executor : Executor
    given : mapping
        The call's values by name.
    sets : int or None
        In how many parts the candidates travel; default one for each worker that the executor names, else four.

    Raises
    ------
    ArgumentError
        The arrays cannot travel.
    TuneError
        No candidate can run, or no worker has answered.
    """
    if not callable(getattr(executor, "submit", None)):
        raise ArgumentError(
            "executor= is none.",
            function=job.function,
            given=f"{executor!r:.60}",
            allowed="what has submit(): concurrent.futures, dask.distributed's client.get_executor(), mpi4py.futures",
        )
    count = len(job.chosen.candidates)
    wanted = sets or getattr(executor, "_max_workers", None) or _DEFAULT_SETS
    parts = [tuple(range(start, count, wanted)) for start in range(min(wanted, count))]
    sent = _packed(job, stage, given)
    texts = tuple(str(Tried(job.free(candidate))) for candidate in job.chosen.candidates)
    rows = [Tried(job.free(candidate), reason="its worker has not answered") for candidate in job.chosen.candidates]
    futures = {i: executor.submit(work, function, sent, places, texts, i) for i, places in enumerate(parts)}
    lost: Exception | None = None
    answered = 0
    for attempt in range(1, _ATTEMPTS + 1):
        failed: dict[int, Any] = {}
        for i, future in futures.items():
            try:
                _take(rows, parts[i], future.result(), job)
                answered += 1
            except CuplateError:
                raise
            except Exception as error:  # a worker that was lost; each engine has its own error for it
                lost = error
                for place in parts[i]:
                    rows[place] = replace(rows[place], reason=f"its worker was lost: {error}")
                if attempt < _ATTEMPTS:
                    failed[i] = _again(executor, function, sent, parts[i], texts, i)
        futures = {i: future for i, future in failed.items() if future is not None}
    if not answered:
        raise TuneError(
            "no worker of the executor has answered.",
            function=job.function,
            given=f"{type(lost).__name__}: {lost}",
            try_="a function that workers can import by module and name; tune() without executor=",
        ) from lost
    return _final(tuner, job, stage, rows)


def _again(executor: Executor, *task: Any) -> Any:
    try:
        return executor.submit(work, *task)
    except Exception:  # a pool that is broken takes no more
        return None


def _take(rows: list[Tried], places: Sequence[int], part: Part, job: Job) -> None:
    for place, row in zip(places, part.tried, strict=True):
        if part.device != job.device and row.median_s is not None:
            row = Tried(row.parameters, reason=f"measured on {part.device}, which tells nothing of {job.device}")
        rows[place] = replace(row, parameters=rows[place].parameters)


def _final(tuner: Tuner, job: Job, stage: Stage, rows: list[Tried]) -> Tuned:
    """The best few once more, on one device."""
    measured = sorted(
        (place for place, row in enumerate(rows) if row.state == "measured"),
        key=lambda place: rows[place].median_s or 0,
    )
    left = [place for place, row in enumerate(rows) if row.state == "not measured"]
    places = tuple(sorted(measured[:_FINALISTS])) or tuple(left)
    if not places:
        raise none_can_run(job, rows)
    return tuner.final(job, stage, places, rows)


def _packed(job: Job, stage: Stage, given: Mapping[str, Any]) -> dict[str, Any]:
    """The call's values as they travel."""
    if given.get("stream") is not None:
        raise ArgumentError("stream= cannot travel to a worker.", function=job.function)
    bench = stage.bench()
    left = {"out", "stream", *(name for name, array in job.call.arrays.items() if array is None)}
    values = {name: value for name, value in given.items() if name not in left}
    total = 0
    for name, array in job.call.arrays.items():
        if array is None or name in job.call.outputs:
            continue
        owner = owners.find_owner(name, given[name], job.function)
        low, high = array.extent()
        transposed = array.order == "F" and array.ndim == 2
        if high - low != array.size * array.itemsize or (array.order != "C" and not transposed):
            raise ArgumentError(
                f"array {name!r} has gaps, and travels to no worker.", function=job.function, try_=f"a copy of {name}"
            )
        total += high - low
        values[name] = _Array(
            owner.name, array.shape or (), array.dtype, transposed, bench.read(low, high - low).tobytes()
        )
    if total > _MOST_BYTES:
        raise ArgumentError(
            f"the arrays take {total} bytes, and travel once for each set of candidates.",
            function=job.function,
            allowed=f"{_MOST_BYTES} bytes",
            try_="tune() without executor=, or smaller arrays of the same size class",
        )
    return values


def work(function: Any, sent: Mapping[str, Any], places: Sequence[int], texts: Sequence[str], number: int) -> Part:
    """What a worker does: build the arrays, measure its candidates, keep nothing but the compiled kernels.

    Parameters
    ----------
    function : function
        The specialized one, as the worker imports it.
    sent : mapping
        Values of the call.
    places : sequence of int
        Which candidates.
    texts : sequence of str
        All candidates as the caller sees them.
    number : int
        Of this set: of several devices it takes the one of that number.
    """
    device = owners.HOST
    if any(isinstance(value, _Array) and value.owner != "numpy" for value in sent.values()):
        from cuplate.backend.cuda import device as gpu

        device = number % gpu.device_count()
    given = {n: v.unpack(device) if isinstance(v, _Array) else v for n, v in sent.items()}
    part: Part = function.reload.__self__.settler().part(given, places, texts)
    return part
