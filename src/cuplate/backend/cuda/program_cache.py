"""The disk tier as a cache of other people's programs: ``Program.compile("cubin", cache=ProgramCache())``.

Unlike ``cuda.core``'s own caches it never raises for a full disk or a damaged entry, checks a seal on every entry, and
shares its limit with the kernels of this library.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from cuplate import cache
from cuplate.backend.cuda import importing

with importing:
    from cuda.core.utils import ProgramCacheResource

__all__ = ["ProgramCache"]

_TAG = "(program)"


class ProgramCache(ProgramCacheResource):  # type: ignore[misc]
    """Binaries of ``Program.compile(cache=...)``, kept in the disk tier.

    Parameters
    ----------
    policy : CachePolicy, optional
        Default: the process's.

    Examples
    --------
    >>> with cuplate.configure(directory="/var/cache/mine"):  # doctest: +SKIP
    ...     code = Program(text, "c++", options).compile("cubin", cache=ProgramCache())
    """

    def __init__(self, policy: cache.CachePolicy | None = None) -> None:
        self._policy = policy

    def _tier(self) -> cache.Store:
        return cache.disk_tier(self._policy)

    def __getitem__(self, key: bytes | str) -> bytes:
        payload = self._tier().get(_digest(key))
        if payload is None:
            raise KeyError(key)
        return payload

    def __setitem__(self, key: bytes | str, value: Any) -> None:
        self._tier().put(_digest(key), _bytes(value), tag=_TAG)

    def __delitem__(self, key: bytes | str) -> None:
        if not self._tier().delete(_digest(key)):
            raise KeyError(key)

    def __len__(self) -> int:
        return len(self._keys())

    def clear(self) -> None:
        """Remove every binary that came in this way; kernels of this library stay."""
        for key in self._keys():
            self._tier().delete(key)

    def _keys(self) -> list[bytes]:
        return [key for key, tag, _ in cache.disk_tier(self._policy).all() if tag == _TAG]


def _digest(key: bytes | str) -> bytes:
    """One of 32 bytes, in a space of its own."""
    text = key.encode() if isinstance(key, str) else bytes(key)
    return hashlib.sha256(b"cuplate program cache\0" + text).digest()


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    code = value.code
    return Path(code).read_bytes() if isinstance(code, str) else bytes(code)
