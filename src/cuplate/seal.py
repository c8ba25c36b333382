"""Binds stored bytes to their key, so that damaged, forged and swapped entries are refused alike.

Alone in its module: a look-up needs it, and not what a record says.
"""

from __future__ import annotations

import hmac
import struct

__all__ = ["SEAL_BYTES", "seal", "unseal"]

_SEAL = b"CUPSEAL\x01"
_KEY_LENGTH = struct.Struct("<Q")
_MAC_BYTES = 32
# With no secret the seal guards against accidents and swaps only; HMAC wants some key all the same.
_NO_SECRET = b"cuplate: no secret"

SEAL_BYTES = len(_SEAL) + _MAC_BYTES
"""What the seal adds to a payload, bytes."""


def _mac(key: bytes, payload: bytes | memoryview, secret: bytes) -> bytes:
    # The length of the key comes first, or else a byte could move between key and payload. One call into C: a third
    # faster than an object that is copied and updated.
    return hmac.digest(secret or _NO_SECRET, b"".join((_SEAL, _KEY_LENGTH.pack(len(key)), key, payload)), "sha256")


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
