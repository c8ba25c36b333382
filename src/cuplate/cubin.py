"""A compiled kernel with all that a later process needs to know of it, as one sealed record of bytes.

Nothing is ever unpickled: a record is a magic, a length, canonical JSON, a length, and the code. The seal binds a
record to its key, so that two good entries that were swapped are both refused.
"""

from __future__ import annotations

import functools
import hmac
import json
import math
import struct
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["SEAL_BYTES", "Cubin", "Resources", "decode", "encode", "seal", "unseal"]

_RECORD = b"CUPLATE\x01"  # the last byte is the version of the record
_SEAL = b"CUPSEAL\x01"
_ELF = b"\x7fELF"
_META = struct.Struct("<I")
_CODE = struct.Struct("<Q")
_MAC_BYTES = 32
# With no secret the seal guards against accidents and swaps only; HMAC wants some key all the same.
_NO_SECRET = b"cuplate: no secret"

SEAL_BYTES = len(_SEAL) + _MAC_BYTES
"""What the seal adds to a payload, bytes."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes, as the compiler reports it; ``None`` where it did not say.

    Attributes
    ----------
    registers : int or None
        32-bit registers per thread.
    spill_store_bytes, spill_load_bytes, stack_bytes : int or None
        Bytes per thread.
    static_shared_bytes : int or None
        Bytes per block.
    constant_bytes : int or None
        Bytes of constant memory, arguments included.
    barriers : int or None
        Named barriers per block.
    max_threads : int or None
        Largest block, threads, as far as the source limits it.
    """

    registers: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    stack_bytes: int | None = None
    static_shared_bytes: int | None = None
    constant_bytes: int | None = None
    barriers: int | None = None
    max_threads: int | None = None


@dataclass(frozen=True, slots=True)
class Cubin:
    """One compiled kernel.

    Attributes
    ----------
    code : bytes
        An ELF image.
    entry : str
        The kernel's lowered name inside it.
    arch : str
        ``"sm_90a"``.
    function : str
        The specialized function it was compiled for.
    resources : Resources
        Registers, shared memory and so on.
    ingredients : tuple of (str, str)
        What the content key was made of, by name, in order: how a miss is explained.
    log : str
        The compiler's log, often empty.
    compile_s : float
        Seconds the compiler took.
    toolchain : str
        The compiler's full build.
    parameters_text : str
        The parameters, readable: ``"tile=16, relu=True"``.
    """

    code: bytes = field(repr=False)
    entry: str
    arch: str
    function: str
    resources: Resources = Resources()
    ingredients: tuple[tuple[str, str], ...] = ()
    log: str = field(default="", repr=False)
    compile_s: float = 0.0
    toolchain: str = ""
    parameters_text: str = ""


_TEXTS = ("entry", "arch", "function", "log", "toolchain", "parameters_text")
_RESOURCES = tuple(f.name for f in fields(Resources))
_RESOURCE_NAMES = frozenset(_RESOURCES)
_FIELDS = frozenset({*_TEXTS, "compile_s", "ingredients", "resources"})


def encode(cubin: Cubin) -> bytes:
    """The record of a kernel; equal kernels give equal bytes.

    Parameters
    ----------
    cubin : Cubin
        What to store.

    Returns
    -------
    bytes
        Magic with version, metadata length, metadata, code length, code.

    Raises
    ------
    ValueError
        The code is empty or no ELF image: a failed compile must never be stored.
    """
    if not cubin.code.startswith(_ELF):
        raise ValueError(f"not an ELF image: {cubin.code[:4]!r} ({len(cubin.code)} bytes)")
    meta: dict[str, Any] = {name: getattr(cubin, name) for name in _TEXTS}
    meta["compile_s"] = cubin.compile_s
    meta["ingredients"] = cubin.ingredients
    meta["resources"] = {name: getattr(cubin.resources, name) for name in _RESOURCES}
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"".join((_RECORD, _META.pack(len(text)), text, _CODE.pack(len(cubin.code)), cubin.code))


def decode(record: bytes) -> Cubin:
    """The kernel of a record.

    Parameters
    ----------
    record : bytes
        As :func:`encode` made it.

    Returns
    -------
    Cubin
        Equal to what was encoded.

    Raises
    ------
    ValueError
        The record is of another version, cut, longer than it says, or holds a value of the wrong type.
    """
    if not record.startswith(_RECORD):
        raise ValueError(f"not a cuplate record of this version: {record[:8]!r}")
    text, rest = _take(record, len(_RECORD), _META)
    code, end = _take(record, rest, _CODE)
    if end != len(record):
        raise ValueError(f"record has {len(record) - end} bytes too many")
    if not code.startswith(_ELF):
        raise ValueError(f"not an ELF image: {code[:4]!r} ({len(code)} bytes)")
    try:
        meta = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"metadata is not JSON: {error}") from error
    return _cubin(code, meta)


def _take(record: bytes, start: int, length: struct.Struct) -> tuple[bytes, int]:
    """The length-prefixed bytes at ``start``, and where they end."""
    body = start + length.size
    if body > len(record):
        raise ValueError(f"record is cut at byte {len(record)}")
    end = body + int(length.unpack_from(record, start)[0])
    if end > len(record):
        raise ValueError(f"record is cut: {end} bytes announced, {len(record)} there")
    return record[body:end], end


def _cubin(code: bytes, meta: Any) -> Cubin:
    if not isinstance(meta, dict) or meta.keys() != _FIELDS:
        raise ValueError("metadata has other fields")
    for name in _TEXTS:
        if type(meta[name]) is not str:
            raise ValueError(f"metadata: {name} is not text")
    seconds = meta["compile_s"]
    if type(seconds) not in (int, float) or not math.isfinite(seconds):
        raise ValueError("metadata: compile_s is not a number")
    texts = {name: meta[name] for name in _TEXTS}
    ingredients, resources = _ingredients(meta["ingredients"]), _resources(meta["resources"])
    return Cubin(code=code, compile_s=float(seconds), ingredients=ingredients, resources=resources, **texts)


def _ingredients(found: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, list):
        raise ValueError("metadata: ingredients is not a list")
    for pair in found:  # on the way of every disk hit: written for speed
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) is not str:
            raise ValueError("metadata: an ingredient is not a pair of texts")
    return tuple(map(tuple, found))


def _resources(found: Any) -> Resources:
    if not isinstance(found, dict) or found.keys() != _RESOURCE_NAMES:
        raise ValueError("metadata: resources has other fields")
    for name, value in found.items():
        if value is not None and (type(value) is not int or value < 0):
            raise ValueError(f"metadata: {name} is not a count")
    return Resources(**found)


@functools.lru_cache(maxsize=8)
def _keyed(secret: bytes) -> hmac.HMAC:
    return hmac.new(secret or _NO_SECRET, _SEAL, "sha256")


def _mac(key: bytes, payload: bytes | memoryview, secret: bytes) -> bytes:
    mac = _keyed(secret).copy()
    mac.update(_CODE.pack(len(key)))  # or else a byte could move between key and payload
    mac.update(key)
    mac.update(payload)
    return mac.digest()


def seal(key: bytes, payload: bytes, secret: bytes = b"") -> bytes:
    """The payload with an HMAC-SHA256 over key and payload in front.

    Parameters
    ----------
    key : bytes
        What the entry is stored under.
    payload : bytes
        A record.
    secret : bytes, optional
        Whoever does not know it can forge nothing; with none, the seal finds damage and swapped entries only.

    Returns
    -------
    bytes
        :data:`SEAL_BYTES` longer than the payload.
    """
    return b"".join((_SEAL, _mac(key, payload, secret), payload))


def unseal(key: bytes, blob: object, secret: bytes = b"") -> bytes | None:
    """The payload, if it was sealed for this key with this secret.

    Parameters
    ----------
    key : bytes
        What the entry was found under.
    blob : object
        Whatever the store held; anything but bytes is refused.
    secret : bytes, optional
        As given to :func:`seal`.

    Returns
    -------
    bytes or None
        None for anything that is not exactly what :func:`seal` returned.
    """
    if type(blob) is not bytes or len(blob) < SEAL_BYTES or not blob.startswith(_SEAL):
        return None
    with memoryview(blob) as view:
        expected = _mac(key, view[SEAL_BYTES:], secret)
        if not hmac.compare_digest(view[len(_SEAL) : SEAL_BYTES], expected):
            return None
    return blob[SEAL_BYTES:]
