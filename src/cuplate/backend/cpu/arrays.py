"""Hands arrays to kernels: as they are, or as copies that end at a page nobody may touch."""

from __future__ import annotations

import ctypes as C
import math
from collections.abc import Sequence
from typing import NamedTuple

from cuplate.backend.cpu.memory import GUARD_BYTES, PAGE, forbid, libc, map_memory, pages

__all__ = ["ArrayArgument", "Guard", "Guarded", "Room"]

_KEPT_BYTES = 64 << 20  # of rooms that wait to be used again


class ArrayArgument(NamedTuple):
    """An array that a kernel is given.

    Attributes
    ----------
    name : str
        For messages.
    pointer : int
        Address of its first byte.
    size_bytes : int
        Bytes from the first to behind the last, gaps of a strided array included.
    itemsize : int
        Bytes of an element.
    shape : tuple of int
    dtype : str
        For messages: ``"float32"``.
    written : bool
        The kernel may write it.
    fresh : bool
        Allocated for this call: nothing is in it yet, and the kernel has to write every element.
    offset_bytes : int
        Where in it the pointer stands that the kernel gets: behind the first byte, if a stride is negative.
    alignment : int, bytes
        That the kernel was promised; a copy has it too.
    """

    name: str
    pointer: int
    size_bytes: int
    itemsize: int
    shape: tuple[int, ...]
    dtype: str
    written: bool
    fresh: bool = False
    offset_bytes: int = 0
    alignment: int = 16  # what vector types ask for

    def at(self, pointer: int) -> ArrayArgument:
        """The same at another address."""
        return ArrayArgument(self[0], pointer, *self[2:8], 0, self[9])

    @property
    def contiguous(self) -> bool:
        """Whether its bytes, of which there are some, are all elements: no gaps that may be another array's."""
        return math.prod(self.shape, start=self.itemsize) == self.size_bytes > 0


class Room:
    """Pages between two ranges that nobody may touch."""

    __slots__ = ("begin", "end", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        base = map_memory(size + 2 * GUARD_BYTES)
        self.begin = base + GUARD_BYTES
        self.end = self.begin + size
        forbid(base, GUARD_BYTES)
        forbid(self.end, GUARD_BYTES)

    def free(self) -> None:
        """Unmaps it."""
        libc().munmap(self.begin - GUARD_BYTES, self.size + 2 * GUARD_BYTES)


class Guard:
    """A copy of one array, or of several that overlap.

    Attributes
    ----------
    room : Room
    moved : int
        What is added to an address of the original.
    arrays : tuple of ArrayArgument
    """

    __slots__ = ("arrays", "moved", "room")

    def __init__(self, arrays: tuple[ArrayArgument, ...]) -> None:
        first = arrays[0]
        low, size = first.pointer, first.size_bytes
        if len(arrays) > 1:
            size = max([array.pointer + array.size_bytes for array in arrays]) - low
        self.arrays = arrays
        alignment = max([array.alignment for array in arrays])
        if alignment < 64 and not (low | size) % 64:
            alignment = 64  # more than is asked only where it costs no gap before the guard page
        self.room = room = _rooms.take(size + alignment)
        address = room.end - size
        address -= (address - low) % alignment
        self.moved = address - low
        for array in arrays:
            if not array.fresh:
                _copy(address, low, size)
                break

    def copy_back(self) -> None:
        """Puts what the kernel may write where it belongs."""
        for array in self.arrays:
            if array.written:
                _copy(array.pointer, array.pointer + self.moved, array.size_bytes)


class Guarded:
    """The arguments of a launch, with pointers to guarded copies for arrays.

    Unchecked, a kernel's step outside of an array is so a fault with an address instead of a damaged process. An array
    with gaps stays where it is: the gaps may be another array's, which another thread may be writing.

    Attributes
    ----------
    given : list of int or bytes
        What the kernel gets: pointers, and values of other types.
    guards : list of Guard
    """

    __slots__ = ("given", "guards")

    def __init__(self, values: Sequence[ArrayArgument | bytes]) -> None:
        self.guards: list[Guard] = []
        self.given: list[int | bytes] = []
        places = []
        for value in values:
            if isinstance(value, bytes):
                self.given.append(value)
            else:
                places.append((value.pointer, len(self.given), value))
                self.given.append(value.pointer + value.offset_bytes)
        try:
            for group in _overlapping(places):
                arrays = tuple([array for _, _, array in group])
                if all([array.contiguous for array in arrays]):
                    guard = Guard(arrays)
                    self.guards.append(guard)
                    for pointer, number, array in group:
                        self.given[number] = pointer + array.offset_bytes + guard.moved
        except BaseException:
            self.release()
            raise

    def copy_back(self) -> None:
        """Puts what the kernel may write where it belongs."""
        for guard in self.guards:
            guard.copy_back()

    def release(self) -> None:
        """Gives the copies' memory back. `guards` still says where they were."""
        for guard in self.guards:
            _rooms.give(guard.room)


class _Rooms:
    """Rooms that wait to be used again, by their size."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[Room]] = {}
        self.kept_bytes = 0  # approximate where threads meet

    def take(self, size_bytes: int) -> Room:
        size = pages(size_bytes)
        if size > 16 * PAGE:  # few different sizes, so that rooms are found again
            step = 1 << (size.bit_length() - 3)
            size = -(-size // step) * step
        try:
            room = self.waiting[size].pop()
        except (KeyError, IndexError):
            return Room(size)
        self.kept_bytes -= size
        return room

    def give(self, room: Room) -> None:
        if self.kept_bytes + room.size > _KEPT_BYTES:
            room.free()
            return
        self.waiting.setdefault(room.size, []).append(room)
        self.kept_bytes += room.size


_rooms = _Rooms()


_Place = tuple[int, int, ArrayArgument]  # its pointer, and which argument it is


def _overlapping(places: list[_Place]) -> list[list[_Place]]:
    """Arrays by their pointers, those together that share bytes."""
    places.sort()
    groups: list[list[_Place]] = []
    end = -1
    for place in places:
        pointer, _, array = place
        if pointer < end:
            groups[-1].append(place)
        else:
            groups.append([place])
        if pointer + array.size_bytes > end:
            end = pointer + array.size_bytes
    return groups


def _copy(to: int, source: int, size: int) -> None:
    if size < 1 << 16:
        C.memmove(to, source, size)
    else:
        libc().memcpy(to, source, size)  # gives up the interpreter lock
