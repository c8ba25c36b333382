"""Binds stored bytes to their key, so that damaged, forged and swapped entries are refused alike.

Alone in its module: a look-up needs it, and not what a record says.
"""

from __future__ import annotations

import functools
import struct
from _operator import _compare_digest as same  # what `hmac` calls compare_digest: in constant time
from hashlib import sha256

__all__ = ["SEAL_BYTES", "seal", "unseal"]

_SEAL = b"CUPSEAL\x01"
_KEY_LENGTH = struct.Struct("<Q")
_MAC_BYTES = 32
_BLOCK_BYTES = 64
# With no secret the seal guards against accidents and swaps only; HMAC wants some key all the same.
_NO_SECRET = b"cuplate: no secret"

SEAL_BYTES = len(_SEAL) + _MAC_BYTES
"""What the seal adds to a payload, bytes."""


@functools.lru_cache(maxsize=4)
def _pads(secret: bytes) -> tuple[bytes, bytes]:
    key = (sha256(secret).digest() if len(secret) > _BLOCK_BYTES else secret or _NO_SECRET).ljust(_BLOCK_BYTES, b"\0")
    return bytes(byte ^ 0x36 for byte in key), bytes(byte ^ 0x5C for byte in key)


def _mac(key: bytes, payload: bytes | memoryview, secret: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104), written out.

    `hmac.digest` looks its algorithm up at every call, which takes as long as hashing four kilobytes; and a fresh
    process waits for the import of `hmac`.
    """
    inner, outer = _pads(secret)
    # The length of the key comes first, or else a byte could move between key and payload.
    return sha256(outer + sha256(b"".join((inner, _SEAL, _KEY_LENGTH.pack(len(key)), key, payload))).digest()).digest()


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
        if not same(blob[len(_SEAL) : SEAL_BYTES], expected):
            return None
    return blob[SEAL_BYTES:]
