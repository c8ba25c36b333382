"""One file of sealed entries, read by offset: what a package carries, or a node gets instead of a compiler.

A head says where the index is; the index, sealed as a whole, says of each key where its entry is; each entry is sealed
with its key, as everywhere. Opening reads head and index, a look-up one entry with one `pread`: no position is shared
with other threads or a forked child, nothing is mapped that could vanish under a reader, and what was cut or written
over in place does not pass its seal.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress

from cuplate.cache.faults import Refused
from cuplate.cache.folder import BadFile
from cuplate.seal import seal, unseal

__all__ = ["SUFFIX", "Bundle", "write_bundle"]

SUFFIX = ".cuplate"
"""Of a bundle's name."""

_MAGIC = b"CUPBNDL\x01"  # the last byte is the version
_HEAD = struct.Struct("<8sQQ")  # magic, offset and length of the index, which ends the file
_ROWS = struct.Struct("<QII")  # time of the making in nanoseconds, number of rows and of tags
_ROW = struct.Struct("<32sQII")  # key, offset and length of its entry, number of its tag
_TAG = struct.Struct("<I")
_INDEX_KEY = hashlib.sha256(b"cuplate bundle index").digest()
_LARGEST_INDEX_BYTES = 1 << 28
_OPEN = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # a planted pipe must not block


class Bundle:
    """An open bundle. Its methods may be called by several threads at once.

    Parameters
    ----------
    path : str
    secret : bytes
        Key of the seals.
    trusted : bool
        False refuses a file that others can write, unless there is a secret.

    Raises
    ------
    Refused
        It is no bundle of this version, cut, of another secret, or not to be trusted.
    OSError
    """

    def __init__(self, path: str, *, secret: bytes = b"", trusted: bool = False) -> None:
        self.path = path
        self._descriptor = os.open(path, _OPEN)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        try:
            status = os.fstat(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{path} is no plain file")
            if not (trusted or secret):
                _check_trust(path, status)
            self._read_index(status.st_size, secret)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; nothing can be read any more."""
        self._close()

    def _read_index(self, size: int, secret: bytes) -> None:
        head = os.pread(self._descriptor, _HEAD.size, 0)
        if len(head) < _HEAD.size or head[:7] != _MAGIC[:7]:
            raise Refused(f"{self.path} is no bundle")
        magic, offset, length = _HEAD.unpack(head)
        if magic != _MAGIC:
            raise Refused(f"{self.path} is a bundle of another version ({magic[7]})")
        if offset + length != size or length > _LARGEST_INDEX_BYTES:
            raise Refused(f"{self.path} is cut, or damaged")
        index = unseal(_INDEX_KEY, _read(self._descriptor, length, offset), secret)
        if index is None:
            raise Refused(f"{self.path} is damaged, or sealed with another secret")
        self._made_ns, rows, tags = _ROWS.unpack_from(index)
        rows_end = _ROWS.size + rows * _ROW.size
        self._rows = {key: (at, length, tag) for key, at, length, tag in _ROW.iter_unpack(index[_ROWS.size : rows_end])}
        self._tags = []
        for _ in range(tags):
            (length,) = _TAG.unpack_from(index, rows_end)
            self._tags.append(index[rows_end + _TAG.size : rows_end + _TAG.size + length].decode("utf-8", "replace"))
            rows_end += _TAG.size + length

    def __len__(self) -> int:
        return len(self._rows)

    def one(self, key: bytes) -> bytes | None:
        """The sealed entry of a key, its seal unchecked; None when there is none.

        Raises
        ------
        BadFile
            The file ends before the entry does.
        OSError
        """
        found = self._rows.get(key)
        if found is None:
            return None
        offset, length, _ = found
        blob = _read(self._descriptor, length, offset)
        if len(blob) < length:
            raise BadFile(f"{self.path} has been cut")
        return blob

    def rows(self) -> Iterator[tuple[bytes, str, int, float]]:
        """Key, tag, size in bytes, and time of the making in seconds since 1970, of each entry by key."""
        for key, (_, length, tag) in sorted(self._rows.items()):
            yield key, self._tags[tag], length, self._made_ns / 1e9


def _check_trust(path: str, status: os.stat_result) -> None:
    """Refuse a file that somebody else can write, or put another into the place of."""
    lacking = "and there is no secret (CUPLATE_CACHE_SECRET; of a mount, its secret=)"
    for place, found in ((path, status), (os.path.dirname(path), os.stat(os.path.dirname(path)))):
        if hasattr(os, "getuid") and found.st_uid not in (0, os.getuid()):
            raise Refused(f"{place} belongs to user {found.st_uid}, {lacking}")
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if shared and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            raise Refused(f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}), {lacking}")


def _read(descriptor: int, length: int, offset: int) -> bytes:
    """As many bytes as there are, up to `length`."""
    data = os.pread(descriptor, length, offset)
    while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
        data += more
    return data


def write_bundle(path: str, entries: Iterable[tuple[bytes, str, bytes]], *, secret: bytes = b"") -> None:
    """Write a bundle, whole or not at all; one that is there is replaced, and stays as it was for who has it open.

    Parameters
    ----------
    path : str
        Absolute.
    entries : iterable of (bytes, str, bytes)
        Key of 32 bytes, tag, sealed payload; of a key that comes twice the last counts.
    secret : bytes
        Key of the index's seal.

    Raises
    ------
    OSError
    """
    temporary = f"{path}.{os.getpid()}.{time.time_ns()}.new"
    rows: dict[bytes, tuple[int, int, int]] = {}
    tags: dict[str, int] = {}
    try:
        with open(temporary, "xb") as file:
            file.write(bytes(_HEAD.size))
            offset = _HEAD.size
            for key, tag, blob in entries:
                file.write(blob)
                rows[key] = offset, len(blob), tags.setdefault(tag, len(tags))
                offset += len(blob)
            index = seal(_INDEX_KEY, _index(rows, tags), secret)
            file.write(index)
            file.seek(0)
            file.write(_HEAD.pack(_MAGIC, offset, len(index)))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _index(rows: dict[bytes, tuple[int, int, int]], tags: dict[str, int]) -> bytes:
    parts = [_ROWS.pack(time.time_ns(), len(rows), len(tags))]
    parts += [_ROW.pack(key, *row) for key, row in sorted(rows.items())]
    for tag in tags:
        text = tag.encode("utf-8", "replace")
        parts += [_TAG.pack(len(text)), text]
    return b"".join(parts)
