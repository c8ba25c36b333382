"""Kernels carried from place to place: out of a store into a directory or a bundle, and from there into a store.

What is written serves as a read-only layer. Beside the kernels it has two kinds of notes: which toolchains compiled
them, and for each what can be told of its key where no compiler is installed (`request`), so that a process without one
finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuplate.cache.bundle import SUFFIX, write_bundle
from cuplate.cache.directory import FOLDER, make_private
from cuplate.cache.folder import Folder
from cuplate.cache.layers import Layer
from cuplate.cache.listing import REQUEST, TOOLCHAINS, is_kernel
from cuplate.cache.store import TUNING, NoStore
from cuplate.cubin import Cubin, decode, encode
from cuplate.errors import SettingError
from cuplate.key import request_of
from cuplate.seal import seal

__all__ = ["Exported", "export", "merge", "toolchains"]

_TOOLCHAIN_KEY = hashlib.sha256(b"cuplate layer toolchains").digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What `export` or `merge` did; ``str()`` says it.

    Attributes
    ----------
    kernels : int
        Entries written.
    present : int
        Entries that were there already.
    failed : int
        Entries that could not be stored.
    size_bytes : int
        Of their payloads.
    toolchains : tuple of str
        Compilers of the kernels.
    """

    kernels: int = 0
    present: int = 0
    failed: int = 0
    size_bytes: int = 0
    toolchains: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f", {self.present} were there" if self.present else ""
        more += f", {self.failed} could not be stored" if self.failed else ""
        more += f"; compiled by {', '.join(self.toolchains)}" if self.toolchains else ""  # a wrong key reads nothing
        return f"{self.kernels} kernels, {self.size_bytes} bytes{more}"


def export(
    store: Any,
    target: str | os.PathLike[str],
    *,
    secret: bytes = b"",
    functions: Collection[str] | None = None,
    archs: Collection[str] | None = None,
    keys: Collection[bytes] | None = None,
    sources: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Exported:
    """Write kernels of a store to a place that can be a read-only layer anywhere.

    Parameters
    ----------
    store : Tier, Layered or Layer
        Where they come from.
    target : path
        A bundle, one file, if its name ends in ``.cuplate``: replaced as a whole. Else a directory, made if need be,
        where what it holds already stays as it is. Everybody may read what is made.
    secret : bytes
        Key of the seal there.
    functions, archs, keys : collection, optional
        Only these.
    sources : bool
        True takes the rendered text of each kernel along, for `cuplate cache show`. It is left behind otherwise: a
        layer goes to places where a text may not.
    progress : callable, optional
        Called with the number of kernels so far.

    Returns
    -------
    Exported

    Raises
    ------
    OSError
        The target cannot be written.
    SettingError
        It is the store's own, or inside: its entries would lose their sources, and everybody could read it.
    """
    base = os.path.abspath(os.fspath(target))
    own = getattr(getattr(store, "top", store), "base", None) or store.directory
    if own is not None and os.path.realpath(own) in (os.path.realpath(base), os.path.realpath(os.path.dirname(base))):
        raise SettingError("kernels are exported to another directory than they come from.", given=base)
    one_file = base.endswith(SUFFIX)
    folder = None if one_file else _made_folder(base)
    notes = _Notes(NoStore("a bundle is new") if one_file else Layer(base, secret=secret))

    def entries() -> Iterator[tuple[bytes, str, bytes]]:
        for key, tag, payload in store.all():
            if tag.startswith(TUNING) and keys is None:  # small, and of no use where their device is not
                if functions is None or tag.removeprefix(TUNING) in functions:
                    yield key, tag, seal(key, payload, secret)
                continue
            if not is_kernel(tag) or (functions is not None and tag not in functions):
                continue
            if keys is not None and key not in keys:
                continue
            try:
                cubin = decode(payload)
                payload = payload if sources else encode(cubin.without_source())
            except ValueError:
                continue
            if archs is not None and cubin.arch not in archs:
                continue
            yield key, tag, seal(key, payload, secret)
            notes.add(key, cubin, len(payload))
            if progress is not None:
                progress(notes.kernels)
        for key, tag, payload in notes.entries():
            yield key, tag, seal(key, payload, secret)

    if folder is None:
        write_bundle(base, entries(), secret=secret)
    else:
        for key, tag, blob in entries():
            folder.write(key, tag, blob, sync=False)
        _publish(folder.path)
    return Exported(kernels=notes.kernels, size_bytes=notes.size_bytes, toolchains=tuple(sorted(notes.compilers)))


class _Notes:
    """What is written beside the kernels, and told of them.

    Parameters
    ----------
    there : Layer or NoStore
        What the target holds already.
    """

    def __init__(self, there: Layer | NoStore) -> None:
        self._there = there
        self.compilers = set(toolchains(there))
        self.kernels = self.size_bytes = 0
        self._requests: dict[bytes, tuple[tuple[int, ...], bytes]] = {}

    def add(self, key: bytes, cubin: Cubin, size_bytes: int) -> None:
        """A kernel was written."""
        self.kernels, self.size_bytes = self.kernels + 1, self.size_bytes + size_bytes
        self.compilers.add(cubin.toolchain)
        asked = request_of(cubin.ingredients)
        if asked is not None:  # of two compilers the newer
            build = _build(cubin.toolchain)
            self._requests[asked] = max(self._requests.get(asked, ((), b"")), (build, key))

    def entries(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, tag and payload of each note, when all kernels are there."""
        for asked, (build, key) in self._requests.items():
            if build >= _asked_build(self._there, asked):
                yield asked, REQUEST, key
        yield _TOOLCHAIN_KEY, TOOLCHAINS, _told(self.compilers)


def _made_folder(base: str) -> Folder:
    folder = Folder(os.path.join(base, FOLDER))
    if not os.path.isdir(base):
        os.makedirs(base)
        os.chmod(base, 0o755)
    make_private(folder.path)
    return folder


def merge(source: Any, into: Any, *, progress: Callable[[int], object] | None = None) -> Exported:
    """Copy what a layer, or another store, holds into a writable store; equal keys stay as they are.

    Parameters
    ----------
    source : Layer, Tier or path
    into : Tier or Layered
    progress : callable, optional
        Called with the number of kernels so far.

    Returns
    -------
    Exported
    """
    given = Layer(source) if isinstance(source, str | Path) else source
    done = dict.fromkeys(("kernels", "present", "failed", "size_bytes"), 0)
    for key, tag, payload in given.all():
        kernel = is_kernel(tag)
        if tag == TOOLCHAINS:
            into.put(key, _told({*toolchains(given), *toolchains(into)}), tag=tag)
        elif tag == REQUEST and _asked_build(given, key) <= _asked_build(into, key):
            continue
        elif tag != REQUEST and _look(into, key) is not None:
            done["present"] += kernel
        elif into.put(key, payload, tag=tag):
            done["kernels"] += kernel
            done["size_bytes"] += len(payload) * kernel
        else:
            done["failed"] += kernel
        if progress is not None and kernel:
            progress(done["kernels"] + done["present"] + done["failed"])
    return Exported(**done, toolchains=toolchains(given))


def toolchains(store: Any) -> tuple[str, ...]:
    """The compilers that a layer says its kernels are from: ``("nvrtc 13.5.37",)``. Never raises."""
    payload = _look(store, _TOOLCHAIN_KEY)
    try:
        names = json.loads(payload) if payload else []
    except ValueError:
        names = []
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _told(compilers: Collection[str]) -> bytes:
    return json.dumps(sorted(compilers)).encode("ascii")


def _look(store: Any, key: bytes) -> bytes | None:
    """A payload of a layer or of a tier; no use of it, and what is absent is no miss of anybody's."""
    return store.get(key)[0] if isinstance(store, Layer) else store.peek(key)


def _asked_build(store: Any, asked: bytes) -> tuple[int, ...]:
    """The compiler's build of the kernel that a request leads to; empty when there is none."""
    key = _look(store, asked)
    record = _look(store, key) if key is not None else None
    try:
        return _build(decode(record).toolchain) if record is not None else ()
    except ValueError:
        return ()


def _build(toolchain: str) -> tuple[int, ...]:
    return tuple(int(part) for part in toolchain.rpartition(" ")[2].split(".") if part.isdigit())


def _publish(folder: str) -> None:
    """Let everybody read, and nobody else write; and let the bytes reach the disk."""
    for place, _, names in os.walk(folder):
        os.chmod(place, 0o755)
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                os.chmod(path, 0o644)
    if hasattr(os, "sync"):
        os.sync()
