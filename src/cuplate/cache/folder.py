"""One sealed entry per file: what can be done with a folder of them, and nothing that needs a lock.

``<folder>/ab/<key in hexadecimal>`` holds a head, the key, the tag, and the sealed blob; a file gets its name by a
rename when it is whole. Every path below the folder is opened step by step without following links, so that whoever
can write the folder cannot make anybody read, write or remove a file outside it.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

__all__ = ["BadFile", "File", "Folder", "Row", "file_bytes"]

_MAGIC = b"CUPFILE\x01"
_HEAD = struct.Struct("<8sIHHQ")  # magic, number of hits, lengths of key and tag, time of the put
_NUMBERS = struct.Struct("<IHHQ")  # the head without its magic
_NUMBERS_AT = 8
_LONGEST_KEY = 100  # bytes: a file name has at most 255 characters, and two stand for a byte
_LONGEST_TAG = 1000
_NEW = "new"
_OPEN = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a planted pipe must not block
_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_HEXADECIMAL = frozenset("0123456789abcdef")
_ORPHAN_S = 3600.0
_LINKS = {errno.ELOOP, errno.EMLINK, errno.ENXIO}  # a link, a link on some other systems, a socket

_number = 0


class BadFile(Exception):
    """A file is not an entry; the entry is lost, the folder is in order."""


@dataclass(frozen=True, slots=True)
class File:
    """One file, read whole.

    Attributes
    ----------
    key, blob : bytes
        The blob as it was written, its seal unchecked; empty where only the head was read.
    tag : str
    hits : int
    size : int
        Of the file, bytes.
    stored_ns : int
        Time of the last put.
    """

    key: bytes
    tag: str
    blob: bytes
    hits: int
    size: int
    stored_ns: int


@dataclass(frozen=True, slots=True)
class Row:
    """One file as the directory knows it.

    Attributes
    ----------
    name : str
        The key in hexadecimal.
    size : int
        Bytes.
    time_ns : int
        Of the last put, or of the last use where uses are noted: what the file system keeps for each file anyway.
    """

    name: str
    size: int
    time_ns: int


class Folder:
    """A folder of entries. Making one touches no disk.

    Parameters
    ----------
    path : str
        Absolute.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    # ---- one entry -----------------------------------------------------------------------------------------------

    def read(self, key: bytes, largest_bytes: int) -> File | None:
        """The file of a key.

        Parameters
        ----------
        key : bytes
        largest_bytes : int
            Longer files are refused before they are read.

        Returns
        -------
        File or None
            None when there is none.

        Raises
        ------
        BadFile
            It is no plain file, too long, cut, or another key's.
        OSError
            The file system's own trouble.
        """
        found = self.read_name(_name(key), largest_bytes)
        if found is not None and found.key != key:
            raise BadFile(f"{_name(key)} holds another key")
        return found

    def read_name(self, name: str, largest_bytes: int) -> File | None:
        """As `read`, by the file's name."""
        return self._opened(name, lambda descriptor: _parse(descriptor, largest_bytes))

    def read_head(self, name: str) -> File | None:
        """As `read_name`, without the blob."""
        return self._opened(name, _parse_head)

    def _opened(self, name: str, read: Callable[[int], File]) -> File | None:
        try:
            with self._below(name[:2]) as directory:
                descriptor = os.open(name, os.O_RDONLY | _OPEN, dir_fd=directory)
                try:
                    return read(descriptor)
                finally:
                    os.close(descriptor)
        except FileNotFoundError:
            return None
        except (NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise BadFile(f"{name}: {error.strerror}") from error
        except OSError as error:
            if error.errno in _LINKS:
                raise BadFile(f"{name} is a link") from error
            raise

    def write(self, key: bytes, tag: str, blob: bytes, *, sync: bool = True, time_ns: int | None = None) -> Row:
        """Store an entry, whole or not at all.

        Parameters
        ----------
        key, blob : bytes
        tag : str
            Cut at 1000 bytes.
        sync : bool
            False for many at once, where the caller syncs at the end.
        time_ns : int, optional
            The file's time, which says what was stored after what; default now.

        Raises
        ------
        OSError
            Nothing is left behind, if the file system lets go of it.
        """
        name, label = _name(key), _label(tag)
        now_ns = max(0, time.time_ns())
        parts = (_HEAD.pack(_MAGIC, 0, len(key), len(label), now_ns), key, label, blob)
        with self._below(_NEW, make=True) as new, self._below(name[:2], make=True) as final:
            temporary = _temporary()
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=new)
            try:
                try:
                    _write_all(descriptor, b"".join(parts))
                    stamp_ns = now_ns if time_ns is None else time_ns
                    os.utime(descriptor, ns=(stamp_ns, stamp_ns))  # this node's clock, not a file server's
                    if sync:  # a rename without it may survive a power cut that the bytes do not
                        os.fsync(descriptor)
                    status = os.fstat(descriptor)
                finally:
                    os.close(descriptor)
                os.rename(temporary, name, src_dir_fd=new, dst_dir_fd=final)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=new)
                raise
        return Row(name, status.st_size, status.st_mtime_ns)

    def remove(self, name: str) -> bool:
        """Whether this call removed the file of that name."""
        try:
            with self._below(name[:2]) as directory:
                os.unlink(name, dir_fd=directory)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno in _LINKS:
                return False
            raise
        return True

    def note_use(self, name: str, used_ns: int, hits: int, *, stored_by_ns: int | None = None) -> None:
        """Remember hits. Never raises.

        Parameters
        ----------
        name : str
        used_ns : int
            The file's new time.
        hits : int
            To be added to the number in its head.
        stored_by_ns : int, optional
            The time of the put is no later than this.
        """
        with suppress(OSError, struct.error), self._below(name[:2]) as directory:
            descriptor = os.open(name, os.O_RDWR | _OPEN, dir_fd=directory)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode):
                    before, key_bytes, tag_bytes, stored_ns = _read_numbers(descriptor)
                    stored_ns = stored_ns if stored_by_ns is None else min(stored_ns, max(0, stored_by_ns))
                    numbers = min(before + hits, 0xFFFFFFFF), key_bytes, tag_bytes, stored_ns
                    os.pwrite(descriptor, _NUMBERS.pack(*numbers), _NUMBERS_AT)
                    os.utime(descriptor, ns=(used_ns, used_ns))
            finally:
                os.close(descriptor)

    def time_ns(self, name: str) -> int | None:
        """The time of a file as it is now; None when it is gone."""
        with suppress(OSError), self._below(name[:2]) as directory:
            return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns
        return None

    def uses(self, name: str) -> tuple[int, int | None]:
        """Hits that were noted, and the time of the put; (0, None) when it cannot be told."""
        with suppress(OSError, struct.error), self._below(name[:2]) as directory:
            descriptor = os.open(name, os.O_RDONLY | _OPEN, dir_fd=directory)
            try:
                hits, _, _, stored_ns = _read_numbers(descriptor)
                return hits, stored_ns
            finally:
                os.close(descriptor)
        return 0, None

    # ---- all entries ---------------------------------------------------------------------------------------------

    def parts(self) -> dict[str, int]:
        """Names of the folders of entries, each with the time of its last change."""
        found: dict[str, int] = {}
        try:
            with self._root() as root, os.scandir(root) as entries:
                for entry in entries:
                    if len(entry.name) == 2 and _HEXADECIMAL.issuperset(entry.name):
                        with suppress(OSError):
                            found[entry.name] = entry.stat(follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            return {}
        return found

    def rows(self, part: str) -> list[Row]:
        """Every plain file with an entry's name in one of the `parts`."""
        found: list[Row] = []
        absent = (FileNotFoundError, NotADirectoryError)
        with suppress(*absent), self._below(part) as directory, os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(part) or len(name) % 2 or not _HEXADECIMAL.issuperset(name):
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append(Row(name, status.st_size, status.st_mtime_ns))
        return found

    def all_rows(self) -> Iterator[Row]:
        """Every entry's row."""
        for part in sorted(self.parts()):
            yield from self.rows(part)

    def sweep(self, *, older_s: float = _ORPHAN_S) -> int:
        """Remove half-written files of processes that are gone; how many. Never raises.

        Parameters
        ----------
        older_s : float
            A file that was written to later than this ago may still be under way.
        """
        removed = 0
        with suppress(OSError), self._below(_NEW) as new:
            for name in self.half_written(older_s=older_s):
                with suppress(OSError):
                    os.unlink(name, dir_fd=new)
                    removed += 1
        return removed

    def half_written(self, *, older_s: float = _ORPHAN_S) -> list[str]:
        """Names of the files that `sweep` removes. Never raises."""
        found = []
        with suppress(OSError), self._below(_NEW) as new, os.scandir(new) as entries:
            for entry in entries:
                with suppress(OSError):
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if not 0 <= age < older_s:
                        found.append(entry.name)
        return found

    def allocated_bytes(self) -> int:
        """What the files take on the disk, half-written ones included. Never raises."""
        total, parts = 0, list[str]()
        with suppress(OSError):
            parts += self.parts()
        for part in (*parts, _NEW):
            with suppress(OSError), self._below(part) as directory, os.scandir(directory) as entries:
                for entry in entries:
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        total += getattr(status, "st_blocks", -(-status.st_size // 512)) * 512
        return total

    @contextmanager
    def _below(self, part: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of a folder below, which is no link."""
        with self._root() as root:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=root)
            descriptor = os.open(part, _DIRECTORY, dir_fd=root)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _root(self) -> Iterator[int]:
        """A descriptor of the folder itself, which is no link either."""
        descriptor = os.open(self.path, _DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def file_bytes(key: bytes, tag: str, blob_bytes: int) -> int:
    """Size of the file that `Folder.write` makes of a blob."""
    return _HEAD.size + len(key) + len(_label(tag)) + blob_bytes


def _label(tag: str) -> bytes:
    return tag.encode("utf-8", "replace")[:_LONGEST_TAG]


def _name(key: bytes) -> str:
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise BadFile(f"a key has 1 to {_LONGEST_KEY} bytes, not {len(key)}")
    return key.hex()


def _temporary() -> str:
    """A name that no other process of any node chooses."""
    global _number
    _number += 1
    return f"{os.uname().nodename[:64].replace('/', '_')}-{os.getpid()}-{_number}-{time.time_ns()}"


def _read_numbers(descriptor: int) -> tuple[int, int, int, int]:
    return _NUMBERS.unpack(os.pread(descriptor, _NUMBERS.size, _NUMBERS_AT))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _parse(descriptor: int, largest_bytes: int) -> File:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise BadFile("not a plain file")
    if status.st_size > largest_bytes + _HEAD.size + _LONGEST_KEY + _LONGEST_TAG:
        raise BadFile(f"{status.st_size} bytes are too many")
    return _split(_read_all(descriptor, status.st_size), status.st_size)


def _parse_head(descriptor: int) -> File:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise BadFile("not a plain file")
    file = _split(_read_all(descriptor, min(status.st_size, _HEAD.size + _LONGEST_KEY + _LONGEST_TAG)), status.st_size)
    return replace(file, blob=b"")


def _split(data: bytes, size: int) -> File:
    if len(data) < _HEAD.size:
        raise BadFile("cut in its head")
    magic, hits, key_bytes, tag_bytes, stored_ns = _HEAD.unpack_from(data)
    blob_at = _HEAD.size + key_bytes + tag_bytes
    if magic != _MAGIC or blob_at > len(data):
        raise BadFile("cut, or not written by this version")
    key = data[_HEAD.size : _HEAD.size + key_bytes]
    tag = data[_HEAD.size + key_bytes : blob_at].decode("utf-8", "replace")
    return File(key, tag, data[blob_at:], hits, size, stored_ns)


def _read_all(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size)
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data
