"""Compiles a manifest where no GPU is, and writes what came out as one bundle or one directory; and what one lacks."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuplate.cache.bundle import SUFFIX
from cuplate.cache.directory import FOLDER
from cuplate.cache.packing import Exported, export
from cuplate.cubin import HOST_ARCH, decode, encode
from cuplate.errors import CuplateError, SettingError
from cuplate.grid import limits_for
from cuplate.key import request_of
from cuplate.warmup import Row, Warmed, listed, run, tasks

if TYPE_CHECKING:
    from cuplate.content import Content
    from cuplate.manifest import Manifest
    from cuplate.variants import Variants

__all__ = ["Built", "Lacking", "build", "check_archs", "lacking"]


@dataclass(frozen=True, slots=True)
class Built:
    """What `build` did; ``str()`` says it.

    Attributes
    ----------
    warmed : Warmed
        A row for each specialization and architecture.
    target : str
        Path of what was written.
    exported : Exported or None
        What it holds; None where something failed, and nothing was written.
    """

    warmed: Warmed
    target: str
    exported: Exported | None

    def __str__(self) -> str:
        if self.exported is None:
            return f"{len(self.warmed.failed)} of {len(self.warmed)} failed; {self.target} is not written"
        return f"{self.target}: {self.exported}"


def build(
    manifest: Manifest | str | os.PathLike[str] | Iterable[Any],
    archs: Sequence[str],
    target: str | os.PathLike[str],
    *,
    host: bool = False,
    secret: bytes = b"",
    sources: bool = False,
    progress: bool | Callable[[int, int], object] | None = None,
) -> Built:
    """Compile a manifest for architectures and write what can be mounted; whole, or not at all.

    Parameters
    ----------
    manifest : Manifest, path, or iterable of Wanted and specialized functions
    archs : sequence of str
        Devices, ``"sm_90"``; a suffix is each function's own affair: ``"sm_90a"`` names the same device.
    target : path
        One file if its name ends in ``.cuplate``, else a directory. What is there is replaced.
    host : bool
        For the CPU backend as well, as the settings have it (``CUPLATE_CPU_CHECK``), and for CPUs like this one only.
    secret : bytes
        Key of the seal.
    sources : bool
        The rendered texts too.
    progress : bool or callable, optional
        As of `cuplate.warmup`.

    Returns
    -------
    Built

    Raises
    ------
    ManifestError, SettingError
        The manifest cannot be read; there is no such architecture, or a directory of something else in the way.
    OSError
    """
    wanted_archs = check_archs(archs, host=host)
    base = os.path.abspath(os.fspath(target))
    _check_target(base)
    contents: dict[str, tuple[Variants, Content]] = {}
    start = time.perf_counter()
    rows, planned = tasks(
        listed(manifest),
        wanted_archs,
        on_key=lambda key, variants, content: contents.update({key: (variants, content)}),
    )
    keys = {(task.line, task.arch): rows[task.rows[0]].key for task in planned}
    records = _Records()

    def work(line: str, arch: str) -> Row:
        began, row = time.perf_counter(), Row(wanted=line, arch=arch, key=keys[line, arch])
        variants, content = contents[row.key]
        try:
            if not content.key.storable:
                raise SettingError("what it compiles to cannot be stored.", reason=content.key.reason)
            obtained = variants.obtain(content)
        except CuplateError as error:
            return replace(row, error=str(error), seconds=time.perf_counter() - began)
        records.found[content.key.digest] = variants.name, encode(obtained.cubin)
        return replace(row, origin=obtained.origin, seconds=time.perf_counter() - began)

    run(planned, rows, None, progress, work=work)
    warmed = Warmed(tuple(rows), time.perf_counter() - start)
    written = None if warmed.failed else _write(records, base, secret=secret, sources=sources)
    return Built(warmed, base, written)


class _Records:
    """What was compiled, as a store that `export` reads."""

    directory = None

    def __init__(self) -> None:
        self.found: dict[bytes, tuple[str, bytes]] = {}

    def all(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, tag and record, by key: equal manifests give equal bundles."""
        for key, (tag, record) in sorted(self.found.items()):
            yield key, tag, record


def check_archs(archs: Sequence[str], *, host: bool) -> tuple[str, ...]:
    """The architectures that are meant, each once.

    Raises
    ------
    SettingError
        None, or one that nobody knows.
    """
    for arch in archs:
        try:
            if re.fullmatch(r"sm_\d+[af]?", arch) is None:
                raise ValueError
            limits_for(arch)
        except (ValueError, CuplateError):
            raise SettingError("there is no such architecture.", given=arch, allowed='"sm_90" and the like') from None
    found = tuple(dict.fromkeys((*archs, *((HOST_ARCH,) if host else ()))))
    if not found:
        raise SettingError("a bundle is built for some architecture.", try_="--arch sm_80,sm_90, or --host")
    return found


def _check_target(base: str) -> None:
    """Refuse, before the work, to replace a directory that holds something else, or one that cannot be written."""
    if os.path.isdir(base) and (base.endswith(SUFFIX) or not set(os.listdir(base)) <= {FOLDER}):
        raise SettingError("a directory of something else is in the way.", given=base, try_="another name")
    if os.path.exists(base) and not os.path.isdir(base) and not (base.endswith(SUFFIX) and os.path.isfile(base)):
        raise SettingError("a file of something else is in the way.", given=base, try_=f"{base}{SUFFIX}")
    if not os.path.isdir(os.path.dirname(base)):
        raise SettingError("there is no directory to write to.", given=os.path.dirname(base))


def _write(records: _Records, base: str, *, secret: bytes, sources: bool) -> Exported:
    if base.endswith(SUFFIX):
        return export(records, base, secret=secret, sources=sources)
    fresh, old = (f"{base}.{os.getpid()}.{word}" for word in ("new", "old"))
    try:
        exported = export(records, fresh, secret=secret, sources=sources)
        with suppress(FileNotFoundError):
            os.rename(base, old)
        os.rename(fresh, base)
    except BaseException:
        with suppress(OSError):  # it was not moved away, or somebody else's is there by now
            os.rename(old, base)
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return exported


@dataclass(frozen=True, slots=True)
class Lacking:
    """A specialization that a bundle does not hold.

    Attributes
    ----------
    wanted : str
        Line of the manifest.
    arch : str
    reason : str
        Why it is not known whether it does, where it could not be planned; else empty.
    """

    wanted: str
    arch: str
    reason: str = ""


def _answers(record: bytes, wish: bytes) -> bool:
    try:
        return request_of(decode(record).ingredients) == wish
    except ValueError:
        return False


def lacking(manifest: Manifest, archs: Sequence[str], look: Callable[[bytes], bytes | None]) -> list[Lacking]:
    """What of a manifest a bundle lacks, whatever compiler has made it.

    Parameters
    ----------
    manifest : Manifest
    archs : sequence of str
    look : callable
        The payload of a key, None for none.
    """
    missing: list[Lacking] = []

    def asked(row: Row, content: Content) -> None:
        wish = request_of(content.key.ingredients) or content.key.digest
        digest = look(wish) or content.key.digest
        record = look(digest)
        if record is None:
            missing.append(Lacking(row.wanted, row.arch))
        elif digest != content.key.digest and not _answers(record, wish):  # a process without a compiler goes by it
            missing.append(Lacking(row.wanted, row.arch, "the note that leads to it leads to another kernel"))

    rows, _ = tasks(manifest, archs, on_row=asked)
    return [*(Lacking(row.wanted, row.arch, row.error) for row in rows if row.error), *missing]
