"""What a person sees of a store: its entries one by one, and what is wrong with one.

For who looks through a store, not for look-ups: here trouble is told, and nothing is counted, noted as used, or set
aside.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuplate.cache.faults import classify
from cuplate.cache.folder import BadFile, Folder
from cuplate.cache.store import TUNING
from cuplate.cubin import Cubin, decode
from cuplate.errors import CacheError
from cuplate.key import difference, fold, sha256
from cuplate.seal import unseal

if TYPE_CHECKING:
    from cuplate.cache.bundle import Bundle
    from cuplate.cache.reader import Reader

__all__ = [
    "REQUEST",
    "TOOLCHAINS",
    "Listed",
    "is_kernel",
    "list_bundle",
    "list_folder",
    "list_rows",
    "nearest",
    "sealed_in",
    "unreadable",
    "wrong_with",
]

TOOLCHAINS, REQUEST = "(toolchains)", "(request)"
"""Tags of the notes that `cuplate.cache.packing` writes beside kernels."""

_NOTES = (TOOLCHAINS, REQUEST, "(program)", "toolchain", "cuplate cpu runtime")
_QUERY_S = 60.0
_LARGEST = 253_402_000_000
_CUDA = 190  # ELF's number of the machine
# Byte 8 of the image is the version of CUDA's own layout, which says where the architecture stands in the flags: see
# docs/decisions/0019.
_ARCH_SHIFT = {7: 0, 8: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One entry as its store knows it, its content unread.

    Attributes
    ----------
    key : bytes
    tag : str
        The specialized function, or what kind of note it is, see `is_kernel`.
    size_bytes : int
        Of the sealed entry; in a folder of files, of the file.
    stored_s, used_s : float
        Time of the last put, and of the last use that has been written down; seconds since 1970.
    uses : int
        Look-ups that it answered since it was stored, as far as they have been written down.
    directory : str
        Folder of the store that holds it.
    """

    key: bytes
    tag: str
    size_bytes: int
    stored_s: float
    used_s: float
    uses: int
    directory: str


def is_kernel(tag: str) -> bool:
    """Whether an entry with this tag is a kernel, or what the library notes beside them."""
    return tag not in _NOTES and not tag.startswith(TUNING)


def unreadable(directory: str, error: Exception) -> CacheError:
    """The error for a store that is there and cannot be read; its ``cause`` is ``"bad entry"`` for one entry of it.

    Parameters
    ----------
    directory : str
        Of the store.
    error : Exception
        From SQLite or the file system.
    """
    cause = "bad entry" if isinstance(error, BadFile) else classify(error).name.lower()
    try_ = "cuplate cache verify --repair, which sets it aside" if cause == "damaged" else None
    return CacheError(f"what is stored cannot be read: {error}", directory=directory, cause=cause, try_=try_)


def list_rows(reader: Reader, directory: str) -> Iterator[Listed]:
    """The entries of a database, oldest first.

    Raises
    ------
    Exception
        Whatever SQLite says.
    """
    for key, tag, size, stored, used, uses in reader.rows(_QUERY_S):
        yield Listed(
            key=key,
            tag=tag,
            size_bytes=int(_number(size)),
            stored_s=_number(stored),
            used_s=max(_number(stored), _number(used)),
            uses=int(_number(uses)),
            directory=directory,
        )


def _number(value: object) -> float:
    """A planted or damaged row may hold anything; what is no number up to a date in the year 9999 is 0."""
    return value if isinstance(value, int | float) and 0 <= value <= _LARGEST else 0


def list_folder(folder: Folder, directory: str) -> Iterator[Listed]:
    """The entries of a folder of files; a file that is no entry comes with its name and an empty tag.

    Raises
    ------
    OSError
    """
    for row in folder.all_rows():
        tag, stored_ns, uses = "", row.time_ns, 0
        try:
            head = folder.read_head(row.name)
        except BadFile:
            pass
        else:
            if head is None:  # gone meanwhile
                continue
            tag, stored_ns, uses = head.tag, head.stored_ns, head.hits
        yield Listed(
            key=bytes.fromhex(row.name),
            tag=tag,
            size_bytes=row.size,
            stored_s=stored_ns / 1e9,
            used_s=max(stored_ns, row.time_ns) / 1e9,
            uses=uses,
            directory=directory,
        )


def list_bundle(bundle: Bundle, directory: str) -> Iterator[Listed]:
    """The entries of a bundle, by key."""
    for key, tag, size, made_s in bundle.rows():
        yield Listed(key=key, tag=tag, size_bytes=size, stored_s=made_s, used_s=made_s, uses=0, directory=directory)


def sealed_in(folder: Folder, key: bytes, largest_bytes: int) -> bytes | None:
    """What the file of a key holds, unchecked; None when there is none.

    Raises
    ------
    CacheError
        It cannot be read, or is no entry.
    """
    try:
        file = folder.read(key, largest_bytes)
    except (BadFile, OSError) as error:
        raise unreadable(folder.path, error) from error
    return None if file is None else file.blob


def nearest(
    ingredients: Iterable[tuple[str, str]], entries: Iterable[tuple[bytes, bytes]]
) -> tuple[bytes, Cubin, tuple[str, ...]] | None:
    """The entry that differs from a key in the fewest ingredients; of several the first.

    Parameters
    ----------
    ingredients : iterable of (str, str)
        Of the key.
    entries : iterable of (bytes, bytes)
        Keys and records; what is no record is passed over.

    Returns
    -------
    (bytes, Cubin, tuple of str) or None
        Its key, the kernel, and the names of the ingredients that differ: none of them, if it is the key's own.
    """
    mine = tuple(ingredients)
    best: tuple[bytes, Cubin, tuple[str, ...]] | None = None
    for key, record in entries:
        try:
            cubin = decode(record)
        except ValueError:
            continue
        names = difference(cubin.ingredients, mine)
        if best is None or len(names) < len(best[2]):
            best = key, cubin, names
        if not names:
            break
    return best


def wrong_with(key: bytes, tag: str, blob: object, secret: bytes = b"") -> str | None:
    """What is wrong with an entry, a few words; None when all of it is as it was stored.

    Parameters
    ----------
    key : bytes
        Under which it lies.
    tag : str
        As listed.
    blob : object
        What lies there.
    secret : bytes
        Key of the seal.
    """
    payload = unseal(key, blob, secret)
    if payload is None:
        return "its seal is wrong: damaged, or sealed with another secret"
    if not is_kernel(tag):
        return None
    try:
        return _wrong_with_kernel(key, decode(payload))
    except ValueError as error:
        return f"no record of a kernel: {error}"


def _wrong_with_kernel(key: bytes, cubin: Cubin) -> str | None:
    ingredients = dict(cubin.ingredients)
    if fold(cubin.ingredients) != key:
        return "its ingredients give another key"
    if cubin.source and sha256(cubin.source) != ingredients.get("source"):
        return "its source is not that of its key"
    if cubin.arch.startswith("sm_") and cubin.arch != ingredients.get("arch"):
        return f"compiled for {cubin.arch}, its key says {ingredients.get('arch')}"
    return _wrong_with_image(cubin)


def _wrong_with_image(cubin: Cubin) -> str | None:
    code = cubin.code
    if len(code) < 64:
        return f"its code is cut: {len(code)} bytes"
    (machine,) = struct.unpack_from("<H", code, 18)
    if (machine == _CUDA) != cubin.arch.startswith("sm_"):
        return f"its code is for ELF machine {machine}, its record says {cubin.arch}"
    shift = _ARCH_SHIFT.get(code[8]) if machine == _CUDA else None
    if shift is not None:
        number = struct.unpack_from("<I", code, 48)[0] >> shift & 0xFF
        if f"sm_{number}" != cubin.arch.rstrip("af"):
            return f"its code is for sm_{number}, its record says {cubin.arch}"
    if machine == _CUDA and cubin.entry.encode() + b"\0" not in code:
        return f"its code has no kernel {cubin.entry}"
    return None
