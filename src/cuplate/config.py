"""Settings of the process: every environment variable that cuplate reads, in one place and with a type.

Nothing is read at import and nothing is kept: a change of ``os.environ`` is seen by the next :func:`settings`. An empty
variable counts as unset.

==========================  ==========  ==================================================================
``CUPLATE_CACHE_DIR``       path        directory of the disk cache; ``off`` for none (``./off`` is a path)
``CUPLATE_CACHE_SECRET``    text        key of the seal on every stored entry
``CUPLATE_DISK_BYTES``      size        limit of the disk cache: ``2G``, ``512 MiB``, ``1073741824``, ``unlimited``
``CUPLATE_MEMORY_KERNELS``  count       loaded kernels kept: an integer or ``unlimited``
``CUPLATE_EXPLAIN``         0 or 1      print one line per miss
``CUPLATE_REQUIRE_GPU``     0 or 1      make a missing GPU an error where it would be a message
==========================  ==========  ==================================================================
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from cuplate.errors import CuplateError

__all__ = ["OFF", "UNLIMITED", "VARIABLES", "SettingError", "Settings", "scope", "settings"]

UNLIMITED = sys.maxsize
"""The value of a limit that never binds; an integer, so that no comparison needs a special case."""

OFF = "off"
"""``CUPLATE_CACHE_DIR=off``: no disk cache."""

_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SCALE = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class SettingError(CuplateError, ValueError):
    """A setting, in code or in the environment, is outside what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says; ``None`` where it says nothing.

    Attributes
    ----------
    cache_dir : str or None
        Directory of the disk cache as written, or :data:`OFF`.
    cache_secret : bytes or None
        Key of the seal.
    disk_bytes : int or None
        Limit of the disk cache, bytes.
    memory_kernels : int or None
        Limit of loaded kernels.
    explain : bool
        One line on stderr for each look-up that left memory.
    require_gpu : bool
        For the test suite: a missing GPU fails its GPU tests instead of skipping them.
    """

    cache_dir: str | None = None
    cache_secret: bytes | None = None
    disk_bytes: int | None = None
    memory_kernels: int | None = None
    explain: bool = False
    require_gpu: bool = False

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "cache_secret")
        return f"Settings({shown}, cache_secret={'set' if self.cache_secret else 'unset'})"


def _text(variable: str, value: str) -> str:
    return value


def _secret(variable: str, value: str) -> bytes:
    return os.fsencode(value)


def _size(variable: str, value: str) -> int:
    if value.strip().lower() == "unlimited":
        return UNLIMITED
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise SettingError(
            f"{variable} is not a size.",
            given=repr(value),
            allowed="bytes, or a number with K, M, G or T (powers of 1024), or unlimited",
            try_=f"{variable}=2G",
        )
    number, scale = match[1], 1 << _SCALE[match[2].lower()]
    return int(float(number) * scale) if "." in number else int(number) * scale


def _count(variable: str, value: str) -> int:
    text = value.strip().lower()
    if text == "unlimited":
        return UNLIMITED
    if not (text.isascii() and text.isdigit() and len(text) <= 30):  # Python converts no more than some thousands
        raise SettingError(
            f"{variable} is not a count.",
            given=repr(value),
            allowed="an integer of at least 1, or unlimited",
            try_=f"{variable}=256",
        )
    return int(text)


def _switch(variable: str, value: str) -> bool:
    try:
        return _SWITCH[value.strip().lower()]
    except KeyError:
        raise SettingError(
            f"{variable} is not a switch.", given=repr(value), allowed="0 or 1", try_=f"{variable}=1"
        ) from None


_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "cache_dir": ("CUPLATE_CACHE_DIR", _text),
    "cache_secret": ("CUPLATE_CACHE_SECRET", _secret),
    "disk_bytes": ("CUPLATE_DISK_BYTES", _size),
    "memory_kernels": ("CUPLATE_MEMORY_KERNELS", _count),
    "explain": ("CUPLATE_EXPLAIN", _switch),
    "require_gpu": ("CUPLATE_REQUIRE_GPU", _switch),
}

VARIABLES: Mapping[str, str] = {name: variable for name, (variable, _) in _READERS.items()}
"""Field of :class:`Settings` -> environment variable."""

_overrides: list[dict[str, Any]] = []


def settings() -> Settings:
    """The settings as they are now.

    Returns
    -------
    Settings
        From the environment, then the open :func:`scope` blocks, innermost last.

    Raises
    ------
    SettingError
        A variable holds text that its type does not allow.
    """
    found: dict[str, Any] = {}
    for name, (variable, read) in _READERS.items():
        text = os.environ.get(variable)
        if text:
            found[name] = read(variable, text)
    for block in _overrides:
        found.update(block)
    return Settings(**found)


@contextmanager
def scope(**values: Any) -> Iterator[Settings]:
    """Override settings for the whole process until the block ends; meant for tests.

    Parameters
    ----------
    **values : object
        Fields of :class:`Settings` by name, already typed; ``None`` stands for an unset variable.

    Yields
    ------
    Settings
        What holds inside.
    """
    replace(Settings(), **values)  # a misspelt name is a TypeError here, not a setting without effect
    _overrides.append(values)
    try:
        yield settings()
    finally:
        # By identity: two scopes with equal values may end in any order (threads).
        del _overrides[next(i for i, block in enumerate(_overrides) if block is values)]
