"""Read-only layers: pre-filled directories and bundles below the writable tier, read without a write.

`cuplate.cache.packing` makes one; or it is mounted by the package that has it, see `Mounted`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cuplate.cache import fork
from cuplate.cache.bundle import Bundle
from cuplate.cache.counts import count
from cuplate.cache.directory import FOLDER, FORMAT, check_trust
from cuplate.cache.faults import Refused, tell
from cuplate.cache.folder import BadFile, Folder
from cuplate.cache.reader import DATABASE, Reader
from cuplate.cache.store import NoStore, Tier
from cuplate.seal import unseal

if TYPE_CHECKING:
    from cuplate.cache.flight import NodeFlights
    from cuplate.cache.listing import Listed
    from cuplate.cache.program import ForeignStore

__all__ = ["Layer", "Layered", "Mounted"]

_LARGEST_BYTES = 1 << 30
_QUERY_S = 60.0
_FAILURES_UNTIL_OFF = 5


class Layer:
    """One pre-filled directory, or one bundle. Making a layer touches no disk, and nothing ever writes to it.

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
    trusted : bool
        True takes it although others can write it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        secret: bytes = b"",
        on_error: str = "warn",
        setting: str = "",
        trusted: bool = False,
    ) -> None:
        self.directory = os.fspath(directory)
        self._setting = "" if not setting else f" (setting: layers, from {setting})"
        self.off: str | None = None
        self._secret, self._on_error, self._trusted = secret, on_error, trusted
        self._lock = threading.RLock()
        self._forking = False
        self._failures = 0
        self._source: Folder | Reader | Bundle | None = None
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
            elif isinstance(source, Bundle):
                blob = source.one(key)
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
                    keys = source.rows() if isinstance(source, Bundle) else source.keys(_QUERY_S)
                for key, tag, *_ in keys:
                    payload, _ = self.get(key)
                    if payload is not None:
                        yield key, tag, payload
        except Exception as error:
            self._failed(error)

    def sums(self) -> tuple[int, int]:
        """Number of entries, and the sum of their sizes in bytes. Never raises."""
        try:
            source = self._open()
            if isinstance(source, Folder | Bundle):
                rows = source.rows() if isinstance(source, Bundle) else source.all_rows()
                sizes = [row[2] if isinstance(row, tuple) else row.size for row in rows]
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
        from cuplate.cache.listing import list_bundle, list_folder, list_rows, unreadable

        try:
            source = self._asked()
            if isinstance(source, Folder):
                yield from list_folder(source, self.directory)
            elif isinstance(source, Bundle):
                yield from list_bundle(source, self.directory)
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
        from cuplate.cache.listing import sealed_in, unreadable

        try:
            source = self._asked()
            if isinstance(source, Bundle):
                return source.one(key)
            if isinstance(source, Reader):
                with self._lock:
                    return source.one(key)
        except Exception as error:
            raise unreadable(self.directory, error) from error
        return sealed_in(source, key, _LARGEST_BYTES)

    def _asked(self) -> Folder | Reader | Bundle:
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

    def _open(self) -> Folder | Reader | Bundle | None:
        if self._source is None and self.off is None:
            with self._lock:
                if self._source is None:
                    self._source = self._find()
        return self._source if self.off is None else None

    def _find(self) -> Folder | Reader | Bundle:
        base = os.path.realpath(self.directory)
        if os.path.isfile(base):
            return Bundle(base, secret=self._secret, trusted=self._trusted)
        for folder in (os.path.join(base, FOLDER), os.path.join(base, FORMAT)):
            if not os.path.isdir(folder):
                continue
            check_trust(base, folder, keyed=bool(self._secret) or self._trusted)
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
        from cuplate.errors import CacheError

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
        self._forking = self._lock.acquire(timeout=fork.WAIT_S)
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


class Mounted(Layer):
    """The bundle, or the directory, that a package carries among its own files.

    Whoever can write those can change the code that mounts them as well, so they are trusted as that code is.

    Parameters
    ----------
    package : str
        Importable; looked for at the first look-up.
    name : str
        Of the file or directory in it.
    secret : bytes
        Key of the seal.
    """

    def __init__(self, package: str, name: str, *, secret: bytes = b"") -> None:
        super().__init__(f"{package}/{name}", secret=secret, trusted=True)
        self._package, self._name = package, name
        self._setting = f" (mounted by cuplate.mount({package!r}))"
        self._files = ExitStack()  # of a package in an archive, whose bundle is unpacked for as long as we live
        weakref.finalize(self, self._files.close)

    def _find(self) -> Folder | Reader | Bundle:
        from importlib.resources import as_file, files

        place = files(self._package) / self._name
        if not (place.is_file() or place.is_dir()):
            raise Refused(f"the package {self._package} has no {self._name}")
        self.directory = os.fspath(self._files.enter_context(as_file(place)))
        return super()._find()


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
