"""Memory in which candidates write in the place of a call's own arrays, which stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cuplate.arguments import Described, packed_strides, product
from cuplate.call import Call
from cuplate.dtypes import DTYPES

__all__ = ["Bench", "NoRoom", "Workspace"]

ALIGNMENT = 256  # bytes: a copy lies to a multiple of it as its original does, so that every fact of it holds
_POISON = 0xFF  # NaN in every float: what a candidate leaves unwritten differs from what another writes


HOST = "cpu"
"""`Bench.device_id` where copies lie in the host's memory."""

_SMALL = 64 << 20  # bytes, of which nobody is asked
_CGROUP = "/sys/fs/cgroup"  # of version 2, as a container sees its own


class NoRoom(Exception):
    """There is no memory for the copies."""


class Bench(Protocol):
    """What a backend offers for trials: raw memory, and the time of a run."""

    @property
    def device_id(self) -> str:
        """What tells the device from every other one on this node."""
        ...

    def allocate(self, size_bytes: int) -> tuple[int, Any]:
        """Address of fresh memory, and what keeps it.

        Raises
        ------
        Exception
            There is none.
        """
        ...

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Copy on the device, in order with its launches."""
        ...

    def fill(self, to: int, byte: int, size_bytes: int) -> None:
        """Fill on the device, in order with its launches."""
        ...

    def read(self, source: int, size_bytes: int) -> Any:
        """The bytes, as a NumPy array, when all that was launched before is done."""
        ...

    def once(self, run: Callable[[], object]) -> None:
        """Run, with the device current."""
        ...

    def sample(self, run: Callable[[], object]) -> float:
        """Seconds that the work of one run takes."""
        ...

    def settle(self) -> str | None:
        """Wait for all that was launched; what the driver says of a fault, None where there was none."""
        ...


@dataclass(frozen=True, slots=True)
class _Written:
    """One array that a candidate writes: where its bytes are, and whose copy they are."""

    start: int
    size: int
    dtype: str
    original: int | None


class Workspace:
    """Copies of what a call would change, and room for its outputs.

    Parameters
    ----------
    bench : Bench
    call : Call
    written : collection of str
        Arrays that the kernel writes.
    outputs : mapping of str to (shape, dtype)
        Of those that the call would allocate.

    Attributes
    ----------
    call : Call
        The same call, with its written arrays, outputs too, in this memory.

    Raises
    ------
    NoRoom
    """

    def __init__(
        self,
        bench: Bench,
        call: Call,
        written: Collection[str],
        outputs: Mapping[str, tuple[tuple[int, ...], str]],
    ) -> None:
        self._bench = bench
        self._kept: list[Any] = []
        self._room_taken = 0  # of the host's memory, promised and not yet touched
        self._written: dict[str, _Written] = {}
        arrays = dict(call.arrays)
        for name, array in call.arrays.items():
            if array is not None and name in written:
                low, high = array.extent()
                start = self._room(high - low, low)
                arrays[name] = _moved(array, start + array.pointer - low)
                self._written[name] = _Written(start, high - low, array.dtype, low)
        for name, (shape, dtype) in outputs.items():
            if arrays.get(name) is None:
                size = product(shape) * DTYPES[dtype].itemsize
                start = self._room(size, 0)
                arrays[name] = Described(name, start, dtype, shape, packed_strides(shape), call.device)
                self._written[name] = _Written(start, size, dtype, None)
        # No array stands behind these: who looks for one finds its address in `arrays`.
        self.call = Call(
            call.values, call.parameters, arrays, call.owner, call.owners, call.device, {}, call.solved, call.given
        )

    def reset(self) -> None:
        """Put back what the call would find, and make the outputs unlike any result."""
        for place in self._written.values():
            if place.original is not None:
                self._bench.copy(place.start, place.original, place.size)
            else:
                self._bench.fill(place.start, _POISON, place.size)

    def restore(self) -> None:
        """Put back what the call would find; the outputs may hold anything."""
        for place in self._written.values():
            if place.original is not None:
                self._bench.copy(place.start, place.original, place.size)

    def read(self) -> dict[str, Any]:
        """What the last run has left, bytes by array.

        Raises
        ------
        NoRoom
            On the host.
        """
        # The bytes, and as many again of flags where they are compared with another candidate's.
        _check_host(2 * sum(place.size for place in self._written.values()))
        try:
            return {name: self._bench.read(place.start, place.size) for name, place in self._written.items()}
        except MemoryError as error:
            raise NoRoom(str(error)) from error

    def originals(self) -> dict[str, Any]:
        """What the call would find in the arrays that it changes, bytes by array."""
        found = {name: place for name, place in self._written.items() if place.original is not None}
        return {name: self._bench.read(place.original or 0, place.size) for name, place in found.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """Of the written arrays."""
        return {name: place.dtype for name, place in self._written.items()}

    def _room(self, size: int, like: int) -> int:
        """Address of fresh memory, as far from a multiple of `ALIGNMENT` as `like` is."""
        if self._bench.device_id == HOST:
            _check_host(size + self._room_taken)
            self._room_taken += size
        try:
            address, kept = self._bench.allocate(size + 2 * ALIGNMENT)
        except Exception as error:  # each library has its own error for it
            raise NoRoom(f"{size} bytes more: {error}") from error
        self._kept.append(kept)
        return address + (like - address) % ALIGNMENT


def _check_host(size: int) -> None:
    """Refuse what would not fit: Linux promises any amount, and ends the process when it is touched."""
    if size < _SMALL:
        return
    room = available_bytes()
    if room is not None and size > room:
        raise NoRoom(f"{size} bytes of the host's, where {room} are free")


def available_bytes() -> int | None:
    """Of the host's memory, what can be had without swapping, within the limit of a container; None if unknown."""
    found = []
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", encoding="ascii") as file:
        found.append(1024 * next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError, StopIteration):
        limit, used = (int(Path(_CGROUP, name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        lines = Path(_CGROUP, "memory.stat").read_text("ascii").splitlines()
        cached = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        found.append(max(0, limit - used + cached))
    return min(found, default=None)


def _moved(array: Described, pointer: int) -> Described:
    return Described(
        array.name, pointer, array.dtype, array.shape, array.strides, array.device, False, array.stream, None
    )
