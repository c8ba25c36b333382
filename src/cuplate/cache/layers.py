"""Read-only layers: pre-filled directories below the writable tier, read without a write, on any file system.

`export` makes one. It holds sealed entries, a file each, and two kinds of entries that are no kernels: which toolchains
compiled the others, and for each kernel what can be told of its key where no compiler is installed (`request`), so that
a process without NVRTC finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from cuplate.cache import fork
from cuplate.cache.counts import count
from cuplate.cache.directory import FORMAT, check_trust, make_private
from cuplate.cache.faults import Refused, tell
from cuplate.cache.files import FOLDER
from cuplate.cache.flight import NodeFlights
from cuplate.cache.folder import BadFile, Folder
from cuplate.cache.listing import Listed, is_kernel, list_folder, list_rows, sealed_in, unreadable
from cuplate.cache.program import ForeignStore
from cuplate.cache.reader import DATABASE, Reader
from cuplate.cache.store import NoStore, Tier
from cuplate.cubin import decode, encode
from cuplate.errors import CacheError, SettingError
from cuplate.seal import seal, unseal

__all__ = ["Exported", "Layer", "Layered", "export", "merge", "toolchains"]

_LARGEST_BYTES = 1 << 30
_QUERY_S = 60.0
_FAILURES_UNTIL_OFF = 5
_TOOLCHAIN, _REQUEST = "(toolchains)", "(request)"
_TOOLCHAIN_KEY = hashlib.sha256(b"cuplate layer toolchains").digest()


class Layer:
    """One pre-filled directory. Making a layer touches no disk, and nothing ever writes to it.

    Parameters
    ----------
    directory : str or path
        As `export` made it, or a copy of a cache directory; a link to it is followed.
    secret : bytes
        Key of the seal; with one, a directory that others can write is accepted.
    on_error : str
        As in `cuplate.CachePolicy`.
    setting : str
        Where it was set, for warnings: a variable, ``file:line`` of a pyproject.toml, or ``"code"``.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, secret: bytes = b"", on_error: str = "warn", setting: str = ""
    ) -> None:
        self.directory = os.fspath(directory)
        self._setting = "" if not setting else f" (setting: layers, from {setting})"
        self.off: str | None = None
        self._secret, self._on_error = secret, on_error
        self._lock = threading.RLock()
        self._forking = False
        self._failures = 0
        self._source: Folder | Reader | None = None
        fork.register(self)

    def __repr__(self) -> str:
        return f"Layer({self.directory!r}{f', off={self.off!r}' if self.off else ''})"

    def get(self, key: bytes) -> tuple[bytes | None, int]:
        """Payload, or None, and the number of errors to count. Never raises."""
        try:
            source = self._open()
            if isinstance(source, Folder):
                file = source.read(key, _LARGEST_BYTES)
                blob: object = None if file is None else file.blob
            elif source is not None:
                with self._lock:
                    blob = source.one(key)
            else:
                return None, 0
        except BadFile as error:
            return None, self._bad(str(error))
        except Exception as error:
            self._failed(error)
            return None, 1
        self._failures = 0
        if blob is None:
            return None, 0
        payload = unseal(key, blob, self._secret)
        return (None, self._bad("its seal is wrong")) if payload is None else (payload, 0)

    def all(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, tag and payload of every good entry. Never raises."""
        try:
            source = self._open()
            if isinstance(source, Folder):
                yield from self._all_files(source)
            elif source is not None:
                with self._lock:
                    keys = source.keys(_QUERY_S)
                for key, tag in keys:
                    payload, _ = self.get(key)
                    if payload is not None:
                        yield key, tag, payload
        except Exception as error:
            self._failed(error)

    def sums(self) -> tuple[int, int]:
        """Number of entries, and the sum of their sizes in bytes. Never raises."""
        try:
            source = self._open()
            if isinstance(source, Folder):
                sizes = [row.size for row in source.all_rows()]
                return len(sizes), sum(sizes)
            if source is not None:
                with self._lock:
                    return source.sums()
        except Exception as error:
            self._failed(error)
        return 0, 0

    def listing(self) -> Iterator[Listed]:
        """Every entry, contents unread.

        Yields
        ------
        Listed

        Raises
        ------
        CacheError
            The layer cannot be read.
        """
        try:
            source = self._asked()
            if isinstance(source, Folder):
                yield from list_folder(source, self.directory)
            else:
                with self._lock:
                    found = list(list_rows(source, self.directory))
                yield from found
        except Exception as error:
            raise unreadable(self.directory, error) from error

    def sealed(self, key: bytes) -> object:
        """What lies under a key, unchecked; None for nothing.

        Raises
        ------
        CacheError
            The layer, or the file, cannot be read.
        """
        try:
            source = self._asked()
            if isinstance(source, Reader):
                with self._lock:
                    return source.one(key)
        except Exception as error:
            raise unreadable(self.directory, error) from error
        return sealed_in(source, key, _LARGEST_BYTES)

    def _asked(self) -> Folder | Reader:
        source = self._open()
        if source is None:
            raise Refused(self.off)
        return source

    def _all_files(self, folder: Folder) -> Iterator[tuple[bytes, str, bytes]]:
        for row in folder.all_rows():
            with suppress(BadFile, OSError):
                file = folder.read_name(row.name, _LARGEST_BYTES)
                payload = unseal(file.key, file.blob, self._secret) if file is not None else None
                if file is not None and payload is not None:
                    yield file.key, file.tag, payload

    def _open(self) -> Folder | Reader | None:
        if self._source is None and self.off is None:
            with self._lock:
                if self._source is None:
                    self._source = self._find()
        return self._source if self.off is None else None

    def _find(self) -> Folder | Reader:
        base = os.path.realpath(self.directory)
        for folder in (os.path.join(base, FOLDER), os.path.join(base, FORMAT)):
            if not os.path.isdir(folder):
                continue
            check_trust(base, folder, keyed=bool(self._secret))
            if folder.endswith(FOLDER):
                return Folder(folder)
            if os.path.isfile(os.path.join(folder, DATABASE)):
                self._tell_of_log(os.path.join(folder, f"{DATABASE}-wal"))
                return Reader(folder, busy_s=1.0, largest_bytes=_LARGEST_BYTES, query="mode=ro&immutable=1")
        raise Refused(f"{self.directory} holds neither {FOLDER} nor {FORMAT}/{DATABASE}")

    def _tell_of_log(self, log: str) -> None:
        """Copied while a process had it open, or after that was killed: SQLite reads a log only where it may write."""
        if os.path.exists(log) and os.path.getsize(log):
            tell(
                self._on_error,
                self.directory,
                "log",
                f"cuplate: the read-only layer {self.directory} has a log ({os.path.basename(log)}), which is not "
                "read: what was stored last is not found there. Make layers with cuplate.cache.export.",
            )

    def _bad(self, reason: str) -> int:
        tell(
            self._on_error,
            self.directory,
            "bad entry",
            f"cuplate: an entry of the read-only layer {self.directory} is damaged or sealed with another secret "
            f"({reason}) and counts as absent.",
        )
        return 1

    def _failed(self, error: Exception) -> None:
        """One hiccup of a file server is a miss; what is refused, or fails again and again, is left alone."""
        if isinstance(error, CacheError):  # on_error="raise": it has been told
            raise error
        self._failures += 1
        with self._lock:
            if isinstance(self._source, Reader):
                self._source.close()
            self._source = None
        reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        if isinstance(error, Refused) or self._failures >= _FAILURES_UNTIL_OFF:
            self.off = reason
        tell(
            self._on_error,
            self.directory,
            "off" if self.off else "error",
            f"cuplate: the read-only layer {self.directory} {'is not used' if self.off else 'failed'}: "
            f"{reason}{self._setting}.",
        )

    def before_fork(self) -> None:
        """Close: SQLite's connections must not cross a fork."""
        self._forking = self._lock.acquire(timeout=5.0)
        if self._forking and isinstance(self._source, Reader):
            self._source.close()
            self._source = None

    def after_fork(self, *, child: bool) -> None:
        """Release; in the child, replace what another thread held at the fork.

        Parameters
        ----------
        child : bool
            Whether this is the new process.
        """
        taken, self._forking = self._forking, False
        if child and not taken:
            _abandoned.append(self._source)
            self._lock, self._source = threading.RLock(), None
        elif taken:
            self._lock.release()


_abandoned: list[object] = []  # closing the parent's connection in the child would drop its locks


class Layered:
    """A writable tier, or none, with layers below it: what the tier lacks is looked for there, in order.

    Parameters
    ----------
    top : Tier or NoStore
    layers : iterable of Layer
    others : iterable of ForeignStore
        Looked in last, and written to as well.
    """

    def __init__(self, top: Tier | NoStore, layers: Iterable[Layer], others: Iterable[ForeignStore] = ()) -> None:
        self.top, self.layers, self.others = top, tuple(layers), tuple(others)

    def __repr__(self) -> str:
        return f"Layered({self.top!r}, {self.layers!r})"

    @property
    def _stores(self) -> tuple[Tier | NoStore | Layer, ...]:
        return self.top, *self.layers

    @property
    def flights(self) -> NodeFlights | None:
        """Those of the writable tier."""
        return self.top.flights

    @property
    def directory(self) -> str | None:
        """The writable tier's folder; None for none."""
        return self.top.directory

    def get(self, key: bytes, *, again: bool = False) -> bytes | None:
        """From the writable tier, else from the first layer that has it."""
        return self.find(key, again=again)[0]

    def find(self, key: bytes, *, again: bool = False) -> tuple[bytes | None, bool]:
        """As `get`, and whether it came from below the writable tier."""
        payload = self.top.get(key, again=True)
        if payload is not None:
            return payload, False
        start, errors = perf_counter(), 0
        for look in (*(layer.get for layer in self.layers), *(other.look for other in self.others)):
            payload, failed = look(key)
            errors += failed
            if payload is not None:
                count("disk", hits=1, errors=errors, read_bytes=len(payload), seconds=perf_counter() - start)
                return payload, True
        count("disk", misses=not again, errors=errors, seconds=perf_counter() - start)
        return None, False

    def put(self, key: bytes, payload: bytes, *, tag: str = "") -> bool:
        """Into the writable tier, and the others."""
        stored = self.top.put(key, payload, tag=tag)
        for other in self.others:
            stored |= other.put(key, payload, tag=tag)
        return stored

    def delete(self, key: bytes) -> bool:
        """From the writable tier, and the others."""
        gone = self.top.delete(key)
        for other in self.others:
            gone |= other.delete(key)
        return gone

    def entries(self, tag: str, *, limit: int = 16) -> Iterator[tuple[bytes, bytes]]:
        """Of the writable tier, then of the layers."""
        seen: set[bytes] = set()
        for key, payload in self._entries(tag, limit):
            if key not in seen:
                seen.add(key)
                yield key, payload
            if len(seen) >= limit:
                return

    def _entries(self, tag: str, limit: int) -> Iterator[tuple[bytes, bytes]]:
        yield from self.top.entries(tag, limit=limit)
        for layer in self.layers:
            yield from ((key, payload) for key, found, payload in layer.all() if found == tag)

    def all(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, tag and payload of every good entry, the layers' included; what is there twice comes once."""
        seen: set[bytes] = set()
        for store in self._stores:
            for key, tag, payload in store.all():
                if key not in seen:
                    seen.add(key)
                    yield key, tag, payload

    def listing(self) -> Iterator[Listed]:
        """Of the writable tier, then of the layers; what is there twice comes once."""
        seen: set[bytes] = set()
        for store in self._stores:
            for found in store.listing():
                if found.key not in seen:
                    seen.add(found.key)
                    yield found

    def peek(self, key: bytes) -> bytes | None:
        """Of the writable tier, else of the first layer that has it."""
        payload = self.top.peek(key)
        return (
            payload if payload is not None else next(filter(None, (layer.get(key)[0] for layer in self.layers)), None)
        )

    def sealed(self, key: bytes) -> object:
        """Of the writable tier, else of the first layer that has it."""
        found = (store.sealed(key) for store in self._stores)
        return next((blob for blob in found if blob is not None), None)

    def orphans(self) -> int:
        """Of the writable tier."""
        return self.top.orphans()

    def clear(self) -> int:
        """The writable tier only."""
        return self.top.clear()

    def prune(self) -> Any:
        """The writable tier only."""
        return self.top.prune()

    def sums(self) -> tuple[int, int]:
        """Of the writable tier."""
        return self.top.sums()

    def volume(self) -> int:
        """Of the writable tier."""
        return self.top.volume()

    def counters(self) -> Mapping[str, int]:
        """Of the writable tier."""
        return self.top.counters()

    def state(self) -> str:
        """Of the writable tier."""
        return self.top.state()

    def close(self) -> None:
        """The writable tier."""
        self.top.close()


# ---- making and merging ----------------------------------------------------------------------------------------------


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
    directory: str | os.PathLike[str],
    *,
    secret: bytes = b"",
    functions: Collection[str] | None = None,
    archs: Collection[str] | None = None,
    keys: Collection[bytes] | None = None,
    sources: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Exported:
    """Write kernels of a store to a directory that can be a read-only layer anywhere.

    Parameters
    ----------
    store : Tier, Layered or Layer
        Where they come from.
    directory : path
        Made if need be; what it holds already stays as it is. Everybody may read what is made.
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
        The directory cannot be written.
    SettingError
        It is the store's own, or inside: its entries would lose their sources, and everybody could read it.
    """
    from cuplate.key import request_of

    base = os.path.abspath(os.fspath(directory))
    own = getattr(getattr(store, "top", store), "base", None) or store.directory
    if own is not None and os.path.realpath(own) in (os.path.realpath(base), os.path.realpath(os.path.dirname(base))):
        raise SettingError("kernels are exported to another directory than they come from.", given=base)
    folder = Folder(os.path.join(base, FOLDER))
    if not os.path.isdir(base):
        os.makedirs(base)
        os.chmod(base, 0o755)
    make_private(folder.path)
    kernels = size = 0
    requests: dict[bytes, tuple[tuple[int, ...], bytes]] = {}
    there = Layer(base, secret=secret)
    compilers = set(toolchains(there))
    for key, tag, payload in store.all():
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
        folder.write(key, tag, seal(key, payload, secret), sync=False)
        kernels, size = kernels + 1, size + len(payload)
        compilers.add(cubin.toolchain)
        asked = request_of(cubin.ingredients)
        if asked is not None:
            build = _build(cubin.toolchain)
            requests[asked] = max(requests.get(asked, ((), b"")), (build, key))  # of two compilers the newer
        if progress is not None:
            progress(kernels)
    for asked, (build, key) in requests.items():
        if build >= _asked_build(there, asked):
            folder.write(asked, _REQUEST, seal(asked, key, secret), sync=False)
    folder.write(_TOOLCHAIN_KEY, _TOOLCHAIN, seal(_TOOLCHAIN_KEY, _told(compilers), secret), sync=False)
    _publish(folder.path)
    return Exported(kernels=kernels, size_bytes=size, toolchains=tuple(sorted(compilers)))


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
        if tag == _TOOLCHAIN:
            into.put(key, _told({*toolchains(given), *toolchains(into)}), tag=tag)
        elif tag == _REQUEST and _asked_build(given, key) <= _asked_build(into, key):
            continue
        elif tag != _REQUEST and _look(into, key) is not None:
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
