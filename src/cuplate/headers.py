"""The header closure: every file that a source can pull in, by name and content, found without compiling.

Conditionals are ignored, so the closure is never too small: a header that ``#if 0`` excludes costs a recompile when it
is edited, one that is missed would hand out a stale cubin. The search is NVRTC's own (probed): a quoted name is looked
for in the directory of the *header* that asks, then in the include directories in order; a name in angle brackets, and
a quoted one in the rendered source itself, in the include directories only.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuplate.cxx import blank, splice

__all__ = ["Closure", "closure", "complete", "is_cuda_header", "reachable"]

_INCLUDE = re.compile(
    r'(?m)^[ \t]*(?:\#|%:)[ \t]*(include_next|include|import|embed)\b[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>|([^\n]*))'
)
_PROBE = re.compile(r'__has_(?:include|embed)(?:_next)?[ \t]*\(?[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>)')
_ANY_PROBE = re.compile(r"__has_(?:include|embed)(?:_next)?")
# Asking whether the operator exists, and defining it away, probes no file.
_HARMLESS_PROBE = re.compile(
    r"(?:\#[ \t]*(?:ifn?def|undef)[ \t]+|\bdefined[ \t]*\(?[ \t]*)__has_(?:include|embed)(?:_next)?\b"
)
_CLOCK = re.compile(r"\b__(?:TIME|DATE|TIMESTAMP)__\b")
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"')
# In a toolkit's headers (megabytes, well-formed) only plain directives are looked for: a tenth of the time.
_FAST_INCLUDE = re.compile(rb'#[ \t]*include[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>)')
_FAST_COMPUTED = re.compile(rb"\n[ \t]*#[ \t]*include[ \t]+[A-Za-z_]")
_FAST_PROBE = re.compile(rb'__has_include[ \t]*\([ \t]*(?:"([^"\n]*)"|<([^>\n]*)>)')


@dataclass(frozen=True, slots=True)
class Closure:
    """What a source includes, without a path.

    Attributes
    ----------
    files : tuple of (str, str)
        The user's headers: (name relative to its include directory, SHA-256 of the content in hexadecimal), in the
        order first met.
    absent : tuple of str
        Names that are asked for (or probed with ``__has_include``) and exist nowhere, in the order first met.
    toolkit : str or None
        One digest over names and contents of all files that come from the CUDA toolkit; None when there are none.
    storable : bool
        False when the content that decides the binary cannot be told from here.
    reason : str or None
        Why not storable, one sentence.
    """

    files: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()
    toolkit: str | None = None
    storable: bool = True
    reason: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256 over all of it, in hexadecimal; of an empty closure too."""
        absent = tuple(("absent", name) for name in self.absent)
        return _digest((*self.files, *absent, ("toolkit", self.toolkit or "")))


def _digest(pairs: Iterable[tuple[str, str]]) -> str:
    state = hashlib.sha256()
    for pair in pairs:
        for field in pair:
            data = field.encode("utf-8", "surrogateescape")
            state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


@dataclass(frozen=True, slots=True)
class _Ask:
    """One ``#include`` or ``__has_include``: a name, and how it is looked for."""

    name: str
    quoted: bool
    everywhere: bool  # include_next: which copy is meant depends on where it stands, so all of them count
    scan: bool = True  # what is embedded is not C++


@dataclass(frozen=True, slots=True)
class _Scan:
    """What one file asks for."""

    digest: str
    asks: tuple[_Ask, ...]
    reason: str | None
    computed: bool = False


_Identity = tuple[str, int, int, int, int, bool]
_Question = tuple[_Ask, str | None, str]
_scans: dict[_Identity, _Scan] = {}
_trees: dict[str, str] = {}
_SCANS_LIMIT = 8192
_CUDA_PREFIXES = ("cuda", "cooperative_groups", "nv/", "cub/", "thrust/", "crt/", "curand")
_CUDA_NAMES = frozenset(("mma.h", "cuComplex.h", "math_constants.h", "vector_types.h", "vector_functions.h"))
# A file that changed this recently may change again within one tick of its clock; then it is read, not remembered.
_SETTLED_NS = 2_000_000_000


def _without_headers(text: str) -> bool:
    """Whether a text asks for no header at all, the common case."""
    return "include" not in text and "import" not in text and "embed" not in text


def closure(text: str, *, directories: Sequence[Path] = (), toolkit: Sequence[Path] = ()) -> Closure:
    """Every header that a source can reach.

    Parameters
    ----------
    text : str
        Rendered source.
    directories : sequence of Path
        The user's include directories, absolute, in search order.
    toolkit : sequence of Path
        Directories of the CUDA toolkit's headers, searched last. Their files count by content like all others, but are
        scanned faster, and one with a computed include brings in its whole directory.

    Returns
    -------
    Closure
        Not storable when the text or a user's header includes a name made by a macro, or reads the clock
        (``__TIME__``, ``__DATE__``, ``__TIMESTAMP__``).
    """
    scan = _scan_text(text, digest="")
    if not scan.asks and scan.reason is None:
        return Closure()
    return _Walk([str(d) for d in directories], [str(d) for d in toolkit]).run(scan)


def reachable(text: str, *, directories: Sequence[Path] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where the headers lie that `closure` tells of by name and content.

    Parameters
    ----------
    text : str
        Rendered source.
    directories : sequence of Path
        As for `closure`.

    Returns
    -------
    paths, absent : tuple of str
        Files as they are opened, in the order first met, and names that exist nowhere.
    """
    scan = _scan_text(text, digest="")
    if not scan.asks:
        return (), ()
    walk = _Walk([str(d) for d in directories], [])
    walk.run(scan)
    return (*walk.files, *(path for path in walk.theirs if path not in walk.trees)), tuple(walk.absent)


class _Walk:
    """One traversal; ``files`` and ``absent`` keep the order in which the compiler would meet them."""

    def __init__(self, user: list[str], toolkit: list[str]) -> None:
        self.directories = list(dict.fromkeys((*user, *toolkit)))
        self.toolkit = {d for d in self.directories if d in toolkit or _holds_toolkit(d)}
        self.files: dict[str, tuple[str, str]] = {}
        self.theirs: dict[str, tuple[str, str]] = {}
        self.absent: dict[str, None] = {}
        self.trees: dict[str, None] = {}
        self.asked: set[tuple[_Ask, str | None]] = set()
        self.reason: str | None = None

    def run(self, scan: _Scan) -> Closure:
        self.reason = scan.reason
        stack = [self._questions(scan, None, "")]
        while stack:  # depth first, without recursion: chains of headers have any length
            question = next(stack[-1], None)
            if question is None:
                stack.pop()
            else:
                stack.extend(self._answer(*question))
        self.theirs |= {directory: ("", _tree_digest(directory)) for directory in self.trees}
        toolkit = _digest(self.theirs.values()) if self.theirs else None
        return Closure(tuple(self.files.values()), tuple(self.absent), toolkit, self.reason is None, self.reason)

    def _questions(self, scan: _Scan, root: str | None, relative: str) -> Iterator[_Question]:
        folder = os.path.dirname(relative)
        for ask in scan.asks:
            own = root if ask.quoted else None
            key = (ask, None if own is None else os.path.join(own, folder))
            if key not in self.asked:
                self.asked.add(key)
                yield ask, own, folder

    def _answer(self, ask: _Ask, own: str | None, folder: str) -> list[Iterator[_Question]]:
        """What the files that answer a question ask in turn; usually exactly one file answers."""
        found, asks = False, []
        for root, relative in self._places(ask, own, folder):
            path = os.path.join(root, relative)
            if path in self.files or path in self.theirs:
                found = True
            elif (scan := _scan_file(path, fast=root in self.toolkit)) is not None:
                found = True
                self._take(path, root, relative, scan)
                asks.append(self._questions(scan, root, relative) if ask.scan else iter(()))
            if found and not ask.everywhere:
                break
        if not found:
            self.absent[_shown(ask.name)] = None
        return asks[::-1]

    def _take(self, path: str, root: str, relative: str, scan: _Scan) -> None:
        named = (_shown(relative), scan.digest)
        if root in self.toolkit:
            self.theirs[path] = named
            if scan.computed:
                self.trees[root] = None
        else:
            self.files[path] = named
            if scan.reason and self.reason is None:
                self.reason = f"{named[0]} {scan.reason}"

    def _places(self, ask: _Ask, own: str | None, folder: str) -> Iterator[tuple[str, str]]:
        if os.path.isabs(ask.name):
            yield os.path.dirname(ask.name), os.path.basename(ask.name)
            return
        if own is not None:
            yield own, os.path.join(folder, ask.name)
        for root in self.directories:
            yield root, ask.name


def _holds_toolkit(directory: str) -> bool:
    """Whether a directory that a user names is a CUDA toolkit's own (or its CCCL)."""
    return any(os.path.exists(os.path.join(directory, mark)) for mark in ("cuda_runtime_api.h", "nv/target"))


def _shown(relative: str) -> str:
    """A name without a machine's path in it."""
    return os.path.basename(relative) if os.path.isabs(relative) else os.path.normpath(relative).replace(os.sep, "/")


def _scan_file(path: str, *, fast: bool) -> _Scan | None:
    """What a file asks for, memoised by identity; None when it cannot be read as a file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    changed = (status.st_mtime_ns, status.st_ctime_ns)
    identity = (path, status.st_size, *changed, status.st_ino, fast)
    if (known := _scans.get(identity)) is not None:
        return known
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    digest = hashlib.sha256(data).hexdigest()
    scan = _scan_fast(data, digest) if fast else _scan_text(data.decode("utf-8", "surrogateescape"), digest=digest)
    if time.time_ns() - max(changed) > _SETTLED_NS:
        if len(_scans) >= _SCANS_LIMIT:
            _scans.clear()
        _scans[identity] = scan
    return scan


def _scan_fast(data: bytes, digest: str) -> _Scan:
    found = [*_FAST_INCLUDE.findall(data), *(_FAST_PROBE.findall(data) if b"__has_include" in data else ())]
    asks = (_Ask((quoted or angle).decode("utf-8", "surrogateescape"), bool(quoted), False) for quoted, angle in found)
    return _Scan(digest, tuple(dict.fromkeys(asks)), None, _FAST_COMPUTED.search(data) is not None)


def _scan_text(text: str, *, digest: str) -> _Scan:
    scan = _scan_plain(text, digest=digest)
    if "??=" not in text and "??/" not in text:
        return scan
    # Trigraphs, in C++11 and C++14 only: both readings count.
    other = _scan_plain(text.replace("??=", "#").replace("??/", "\\"), digest=digest)
    return _Scan(digest, tuple(dict.fromkeys((*scan.asks, *other.asks))), scan.reason or other.reason)


def _scan_plain(text: str, *, digest: str) -> _Scan:
    # Form feeds and vertical tabs are blanks to the preprocessor, before a # as well.
    text = splice(text.replace("\r\n", "\n")).replace("\f", " ").replace("\v", " ")
    if _without_headers(text) and not _CLOCK.search(text):
        return _Scan(digest, (), None)
    code = blank(text, keep_lines=False)
    asks, reason = [], _clock(code)
    for word, quoted, angle, computed in _INCLUDE.findall(code):
        if quoted or angle:
            asks.append(_Ask(quoted or angle, bool(quoted), word == "include_next", word != "embed"))
        elif computed.strip():
            reason = reason or f"includes a name that a macro makes ({computed.strip()[:60]})"
    asks += [_Ask(quoted or angle, bool(quoted), True) for quoted, angle in _PROBE.findall(code)]
    probes = len(_ANY_PROBE.findall(code)) - len(_PROBE.findall(code)) - len(_HARMLESS_PROBE.findall(code))
    if probes > 0:
        reason = reason or "probes with __has_include for a name that a macro makes"
    return _Scan(digest, tuple(dict.fromkeys(asks)), reason)


def _clock(code: str) -> str | None:
    found = _CLOCK.search(code)
    if found and (found := _CLOCK.search(_LITERAL.sub('""', code))):
        return f"reads the clock ({found[0]})"
    return None


def _tree_digest(directory: str) -> str:
    """SHA-256 over every name and content below a toolkit directory; looked at once a process."""
    if directory not in _trees:
        state = hashlib.sha256()
        for root, folders, names in os.walk(directory, followlinks=True):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(root, name)
                with open(path, "rb") as file:
                    state.update(os.path.relpath(path, directory).encode("utf-8", "surrogateescape") + b"\0")
                    state.update(hashlib.sha256(file.read()).digest())
        _trees[directory] = state.hexdigest()
    return _trees[directory]


def is_cuda_header(name: str) -> bool:
    """Whether a header that was not found is one that CUDA brings."""
    return name.startswith(_CUDA_PREFIXES) or name in _CUDA_NAMES


def complete(
    text: str, directories: Sequence[Path], toolkit: Callable[[], Sequence[Path]]
) -> tuple[Closure, tuple[Path, ...]]:
    """The closure, with the toolkit's directories only where the user's lack something.

    Parameters
    ----------
    text : str
        Rendered source.
    directories : sequence of Path
        The user's include directories.
    toolkit : callable
        Called at most once, and only when a name was not found, because finding a toolkit is slow.

    Returns
    -------
    closure, added : Closure, tuple of Path
        ``added`` are the toolkit directories that the compiler needs.
    """
    own = closure(text, directories=directories)
    added = tuple(toolkit()) if own.absent else ()
    return (closure(text, directories=directories, toolkit=added), added) if added else (own, ())
