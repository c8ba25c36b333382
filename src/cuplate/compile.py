"""One compile per key at a time: look on disk, join the thread or wait for the process at it, ask the shared tier,
compile, store.

What the compiler refuses becomes an error that points into the template.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
import stat
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, cast

from cuplate import cubin as cubins
from cuplate import events
from cuplate.cache.store import Distant, Store
from cuplate.cubin import Cubin
from cuplate.cxx import CHECKS_FILE, base_name, blank, defined_kernels, splice
from cuplate.errors import CacheWarning, CompileError, KernelNotFoundError
from cuplate.headers import is_cuda_header
from cuplate.instead import instead_of_header, instead_of_name
from cuplate.key import Key

if TYPE_CHECKING:
    from cuplate.render import Source

__all__ = ["SOURCE_NAME", "Flights", "Obtained", "diagnose", "not_defined", "obtain", "offer", "save"]

SOURCE_NAME = "/dev/null/cuplate.cu"
"""The rendered source's name for the compiler.

A compiler looks for quoted headers next to the source. Nothing can be next to this one, so the working directory
decides nothing. ``no_source_include`` would also stop headers from finding their neighbours, and break
``cooperative_groups.h``.
"""


class Obtained(NamedTuple):
    """A cubin, and how it was come by.

    Attributes
    ----------
    cubin : Cubin
        Ready to load.
    origin : str
        ``"disk"``, ``"shared"``, ``"compile"``, or ``"joined"`` when another thread got it meanwhile.
    lookup_s, compile_s, store_s : float
        Seconds this call spent looking it up (or waiting for a process that compiled it), compiling (or waiting for a
        thread that did), and storing.
    """

    cubin: Cubin
    origin: Literal["disk", "shared", "compile", "joined"]
    lookup_s: float = 0.0
    compile_s: float = 0.0
    store_s: float = 0.0


T = TypeVar("T")
_all_flights: weakref.WeakSet[Flights[Any]] = weakref.WeakSet()


class _Flight(Generic[T]):
    """One piece of work under way; whoever waits gets its value or its error."""

    __slots__ = ("done", "error", "landed", "owner", "value")

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.done = threading.Event()
        self.landed = False
        self.value: T | None = None
        self.error: Exception | None = None


class Flights(Generic[T]):
    """Work that is done once for all threads that want it at the same time, by token; different tokens overlap.

    A thread that asks for what it is itself working on does the work again rather than wait for itself. In a forked
    child, where nobody is left to finish what was under way, all is forgotten.
    """

    def __init__(self) -> None:
        self._forget()
        _all_flights.add(self)

    def _forget(self) -> None:
        self._lock = threading.RLock()  # a new one: in a child the old may be held by a thread that is gone
        self._flights: dict[Hashable, _Flight[T]] = {}

    def run(self, token: Hashable, work: Callable[[], T]) -> tuple[T, bool]:
        """The value of ``work``, from this thread or from the one that is at it.

        Parameters
        ----------
        token : hashable
            What the work is for.
        work : callable
            Runs with no lock held.

        Returns
        -------
        value, led : T, bool
            ``led`` is True when this thread did the work.

        Raises
        ------
        Exception
            What ``work`` raised. Each waiter gets a copy, because a traceback belongs to one thread; a later call works
            again. A worker that was interrupted (KeyboardInterrupt, SystemExit) does not fail its waiters: one of them
            takes over.
        """
        while True:
            with self._lock:
                flight = self._flights.get(token)
                if flight is None:
                    flight = self._flights[token] = _Flight()
                    leads = True
                else:
                    leads = False
            if leads:
                return self._lead(token, flight, work), True
            if flight.owner == threading.get_ident():
                return work(), True
            flight.done.wait()
            if flight.error is not None:
                raise _copy(flight.error)
            if flight.landed:
                return cast("T", flight.value), False

    def _lead(self, token: Hashable, flight: _Flight[T], work: Callable[[], T]) -> T:
        try:
            flight.value = work()
            flight.landed = True
            return flight.value
        except Exception as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                if self._flights.get(token) is flight:
                    del self._flights[token]
            flight.done.set()


_compiles: Flights[Obtained] = Flights()
_warned: set[tuple[str, str]] = set()


def _forget_flights() -> None:
    for flights in list(_all_flights):
        flights._forget()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget_flights)


def obtain(
    key: Key,
    *,
    store: Store | None,
    build: Callable[[], Cubin],
    function: str,
    unchanged: Callable[[], bool] | None = None,
    distant: Callable[[], Distant | None] | None = None,
) -> Obtained:
    """The cubin of a key, compiled at most once in this process, and once on this node if the store has flights.

    Parameters
    ----------
    key : Key
        One that is not storable is neither looked up nor stored; a warning says so once.
    store : Store or None
        The disk tier; None for none. A record that does not decode, or that belongs to another key, counts as a miss.
    build : callable
        Compiles; called with no lock held.
    function : str
        The specialized function, for events and for the store's listing.
    unchanged : callable, optional
        Asked after the compile whether the headers are still those of the key; if not, the cubin is used, not stored.
    distant : callable, optional
        Gives the shared tier, or None. Called where the disk has missed, by the one thread of this node that would
        compile, so that a key costs a node one look-up there. What it has is stored on the disk.

    Returns
    -------
    Obtained
        With the key's ingredients in the cubin.

    Raises
    ------
    CuplateError
        Whatever ``build`` raised; threads that waited for the same compile each get a copy, see `Flights.run`. Nothing
        is stored, and a later call compiles again.
    """
    if not key.storable:
        _warn_unstorable(key, function)
        store = distant = None
    start = time.perf_counter()
    found = _look(key, store)
    lookup_s = time.perf_counter() - start
    if found is not None:
        return Obtained(found, "disk", lookup_s)
    start = time.perf_counter()
    got, led = _compiles.run(key.digest, lambda: _compile(key, store, build, function, unchanged, distant))
    if led:
        return got._replace(lookup_s=lookup_s + got.lookup_s)
    return Obtained(got.cubin, "joined", lookup_s, time.perf_counter() - start)


def _compile(
    key: Key,
    store: Store | None,
    build: Callable[[], Cubin],
    function: str,
    unchanged: Callable[[], bool] | None,
    distant: Callable[[], Distant | None] | None,
) -> Obtained:
    """Look again, because who finished between our look and our turn has stored it; else fetch or compile."""
    start = time.perf_counter()

    def look() -> Obtained | None:
        found = _look(key, store, again=True)
        return None if found is None else Obtained(found, "disk", time.perf_counter() - start)

    def work() -> Obtained:
        away = distant() if distant is not None else None
        payload = away.get(key.digest) if away is not None else None
        found = None if payload is None else _read(key, payload)
        lookup_s = time.perf_counter() - start
        if payload is None or found is None:
            return _compile_now(key, store, build, function, unchanged, lookup_s, away, replace=payload is not None)
        return Obtained(found, "shared", lookup_s, store_s=_put(key, payload, store, function))

    flights = getattr(store, "flights", None)  # of all processes of this node; not every store has them
    return flights.run(key.digest, look, work) if flights is not None else look() or work()


def _compile_now(
    key: Key,
    store: Store | None,
    build: Callable[[], Cubin],
    function: str,
    unchanged: Callable[[], bool] | None,
    lookup_s: float,
    away: Distant | None,
    *,
    replace: bool,
) -> Obtained:
    looked = time.perf_counter()
    try:
        built = build().with_ingredients(key.ingredients)
        payload = cubins.encode(built)  # refuses what is no cubin, before anybody gets it
    except CompileError as error:
        if not error.facts.get("_key"):
            error.facts["_key"] = key.hex
            error.__dict__["key"] = key.hex
        raise
    compiled = time.perf_counter()
    events.emit("compile", function, key=key.hex, seconds=compiled - looked, arch=built.arch, bytes=len(built.code))
    store_s = 0.0
    if (store is not None or away is not None) and (unchanged is None or unchanged()):
        store_s = _put(key, payload, store, function)
        if away is not None:
            offer(key, built, away, replace=replace)
    return Obtained(built, "compile", lookup_s, compiled - looked, store_s)


def _put(key: Key, payload: bytes, store: Store | None, function: str) -> float:
    """Store it on the disk; the seconds that took."""
    start = time.perf_counter()
    if store is not None:
        store.put(key.digest, payload, tag=function)
    return time.perf_counter() - start


def offer(key: Key, built: Cubin, away: Distant, *, replace: bool) -> bool:
    """Offer a kernel to a shared tier, without its text: like an export, that goes to places where a text may not."""
    return away.offer(key.digest, cubins.encode(built.without_source()), replace=replace)


def _look(key: Key, store: Store | None, *, again: bool = False) -> Cubin | None:
    payload = store.get(key.digest, again=again) if store is not None else None
    return None if payload is None else _read(key, payload)


def _read(key: Key, payload: bytes) -> Cubin | None:
    try:
        return cubins.decode(payload, lazily=True)  # the seal binds it to this key
    except ValueError as error:
        events.say(f"a stored record is not readable and counts as a miss (key {key.hex[:16]}): {error}")
        return None


def _copy(error: Exception) -> Exception:
    try:
        twin = copy.copy(error)
    except Exception:
        return error
    twin.__cause__, twin.__suppress_context__ = error.__cause__, True
    return twin


def _warn_unstorable(key: Key, function: str) -> None:
    reason = key.reason or "it depends on what the key cannot see"
    if (function, reason) not in _warned:
        _warned.add((function, reason))
        message = f"{function} is compiled in every process and not stored: {reason}"
        try:
            warnings.warn(message, CacheWarning, stacklevel=events.caller_depth())
        except CacheWarning:  # a filter "error": nothing of a cache leaves a call
            events.say(message)


# --- what the compiler refused ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Finding:
    """One error in a log: file and line as the compiler says them, the message, and the lines that follow it."""

    file: str
    line: int
    message: str
    context: tuple[str, ...] = ()


_LOCATED = re.compile(
    r"(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic |internal )?error(?: #[\w-]+)?: (?P<message>.*)"
)
_UNLOCATED = re.compile(
    r"(?:ptxas (?:application ptx input, line \d+; )?|nvlink |nvrtc: |nvrtc |Command-line )?"
    r"(?:error|fatal)\s*:\s*(?P<message>.*)"
)
_AT_END = re.compile(r"At end of source: error(?: #[\w-]+)?: (?P<message>.*)")
_NAME_MAP = "__nv_name_map"
_FROM_CALL = re.compile(r'static assertion failed with "cuplate: (?P<text>.*)"\Z')
# In the words of NVRTC, of g++ and of clang++.
_UNKNOWN = re.compile(
    r"(?:identifier|name|namespace) \"(?P<name>[^\"]+)\""
    r"|'(?P<gcc>\w+)' (?:was not declared|does not name a type|has not been declared)"
    r"|(?:undeclared identifier|unknown type name) '(?P<clang>\w+)'"
)
_OF_STD = re.compile(
    r"(?:namespace \"std\" has no member|no member named) [\"'](?P<name>\w+)|'(?P<gcc>\w+)' is not a member of 'std'"
)
END_OF_SOURCE = -1
_SHOWN_LOG_LINES = 24


def diagnose(
    log: str,
    source: Source,
    *,
    options: Sequence[str] = (),
    key: str = "",
    directories: Iterable[Path] = (),
    checks: str = "",
    install: str | None = None,
    compiler: str = "the compiler",
) -> CompileError:
    """The error for a log, pointing at the template's line.

    Parameters
    ----------
    log : str
        All that the compiler said.
    source : Source
        What was rendered.
    options : sequence of str
        The options in canonical form.
    key : str
        The content key, hexadecimal.
    directories : iterable of Path
        Where headers were looked for.
    checks : str
        What was appended to the source, see `cuplate.cxx.parameter_checks`.
    install : str, optional
        What to do when one of CUDA's own headers is missing.
    compiler : str
        Who said it, where there are two.

    Returns
    -------
    CompileError
        To be raised. A `KernelNotFoundError` when the only fault is that the kernel is not there.
    """
    found = _findings(log)
    unnamed = [f for f in found if f.file == _NAME_MAP]
    in_text = [f for f in found if f.file not in (_NAME_MAP, CHECKS_FILE)]
    context = _Context(log, source, tuple(options), key, tuple(directories), checks, install)
    if found and not in_text:  # the text itself is in order: its kernel is another one
        refused = [m["text"] for f in found if (m := _FROM_CALL.search(f.message))]
        return _mismatch(refused, context) if refused and not unnamed else _not_found([*unnamed, *found][0], context)
    first = _most_telling(in_text, context) or _Finding("", 0, _last_line(log))
    return CompileError(
        f"{compiler} refused the rendered source: {first.message}",
        function=source.function,
        **_where(first, source),
        try_=_hint(first, context),
        **_common(context),
    )


def not_defined(source: Source, *, log: str, options: Sequence[str] = (), key: str = "") -> KernelNotFoundError:
    """The error for a source that compiles, but only declares its kernel."""
    context = _Context(log, source, tuple(options), key, (), "", None)
    return _not_found(_Finding(_NAME_MAP, 0, "declared, but not defined"), context)


@dataclass(frozen=True, slots=True)
class _Context:
    log: str
    source: Source
    options: tuple[str, ...]
    key: str
    directories: tuple[Path, ...]
    checks: str
    install: str | None


def _findings(log: str) -> list[_Finding]:
    found: list[_Finding] = []
    for line in log.replace("\0", "\n").splitlines():
        if located := _LOCATED.match(line):
            message = located["message"].removesuffix(": Not a directory")  # an artefact of SOURCE_NAME
            found.append(_Finding(located["file"], int(located["line"]), message))
        elif at_end := _AT_END.match(line):
            found.append(_Finding(SOURCE_NAME, END_OF_SOURCE, at_end["message"]))
        elif unlocated := _UNLOCATED.match(line):
            found.append(_Finding("", 0, unlocated["message"]))
        elif found and line.strip():
            found[-1] = replace(found[-1], context=(*found[-1].context, line))
    return found


def _most_telling(found: list[_Finding], context: _Context) -> _Finding | None:
    """The first error; of several on its line one that names what is missing, or else one that a hint explains."""
    if not found:
        return None
    same_line = [f for f in found if (f.file, f.line) == (found[0].file, found[0].line)]
    named = (f for f in same_line if _name_hint(f.message, context))
    return next(named, next((f for f in same_line if _hint(f, context)), found[0]))


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.replace("\0", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else "it gave no reason"


def _where(finding: _Finding, source: Source) -> dict[str, str | None]:
    """Template line and excerpt, and what the compiler saw where that is not the same."""
    line = _rendered_line(finding, source)
    if line is None:
        named = f"{finding.file}:{finding.line}" if finding.file else None
        return {"template": source.template_name, "header": named, "compiler_saw": _pointer(finding)}
    origin = source.origin(line, _column(finding, line, source))
    if origin is None:
        return {"template": f"{source.template_name}, rendered line {line}", "compiler_saw": _pointer(finding)}
    return {"template": str(origin), "excerpt": source.excerpt(origin), "compiler_saw": _pointer(finding)}


def _rendered_line(finding: _Finding, source: Source) -> int | None:
    """Line of the rendered text; with line info the compiler names template lines, which are looked up backwards."""
    if finding.file == SOURCE_NAME:
        return len(source.text.splitlines()) if finding.line == END_OF_SOURCE else finding.line
    for line in range(1, source.text.count("\n") + 2):
        origin = source.origin(line)
        if origin is not None and (origin.template, origin.line) == (finding.file, finding.line):
            return line
    return None


def _column(finding: _Finding, line: int, source: Source) -> int:
    """Column of the caret in the rendered line, from 1; 0 when the compiler shows none."""
    shown = _pointer(finding)
    if shown is None:
        return 0
    written, caret = shown.split("\n")
    start = source.text.split("\n")[line - 1].find(written)
    return start + len(caret) if start >= 0 else 0


def _pointer(finding: _Finding) -> str | None:
    """The compiler's own line with its caret."""
    for i, line in enumerate(finding.context):
        if i and line.strip() == "^":
            margin = len(finding.context[i - 1]) - len(finding.context[i - 1].lstrip())
            return f"{finding.context[i - 1][margin:].rstrip()}\n{line[margin:]}" if len(line) > margin else None
    return None


def _not_found(finding: _Finding, context: _Context) -> KernelNotFoundError:
    source = context.source
    defined = defined_kernels(source.text)
    name = base_name(source.entry)
    reason = None
    if "cannot determine which instance" in finding.message:
        reason = f"the name expression does not pick one of several: {finding.message}"
    elif "non-__global__" in finding.message:
        reason = f"{name} is not a __global__ function"
    elif name in defined:
        reason = finding.message
    hint = _name_hint(finding.message, context) if name in defined else None
    listed = ", ".join(defined) or "no __global__ function at all"
    what = "does not define this kernel" if hint is None else "does not know what the kernel's name names"
    return KernelNotFoundError(
        f"the rendered source {what}" + (f": {reason}" if reason else ""),
        function=source.function,
        template=source.template_name,
        given=source.entry,
        allowed=f"found: {listed}",
        try_=hint or _entry_hint(source.entry, defined),
        **{**_common(context), "compiler_log": None},  # it says the same in the words of a name map
    )


def _entry_hint(entry: str, defined: tuple[str, ...]) -> str | None:
    if base_name(entry) in defined:
        return f'a name expression, entry="{base_name(entry)}<...>", for a template; a cast for an overloaded function'
    return f'entry="{defined[0]}", or name the kernel {{{{ kernel }}}} in the template' if len(defined) == 1 else None


def _mismatch(refused: list[str], context: _Context) -> CompileError:
    source = context.source
    texts = [text.replace('\\"', '"') for text in refused]
    line = _kernel_line(source)
    where = _where(_Finding(SOURCE_NAME, line, ""), source) if line else {"template": source.template_name}
    return CompileError(
        f"the kernel's own parameter list does not match the call: {texts[0]}",
        function=source.function,
        **where,
        given="\n".join(texts) if len(texts) > 1 else None,
        try_="the type that is passed, in the kernel or in the annotation; {{ args }} writes the list",
        **_common(context),
    )


def _kernel_line(source: Source) -> int | None:
    """Rendered line on which the kernel's parameter list begins."""
    pattern = re.compile(rf"__global__[^;{{}}]*?\b({re.escape(base_name(source.entry))})\s*\(")
    text = source.text
    code = blank(text, literals=True) if splice(text) == text else text
    found = pattern.search(code)
    return code.count("\n", 0, found.start(1)) + 1 if found else None


def _common(context: _Context) -> dict[str, Any]:
    """What every error about a source ends with; underscored facts are attributes only."""
    source = context.source
    saved = save(source.text + context.checks)
    return {
        "parameters": ", ".join(f"{name}={value!r}" for name, value in source.parameters) or None,
        "compiler_log": _shown_log(context.log, source),
        "rendered_to": saved,
        "_saved": saved,
        "_source": source.text,
        "_log": context.log,
        "_options": context.options,
        "_key": context.key,
    }


def _shown_log(log: str, source: Source) -> str | None:
    """The log, its beginning at least, with the template's lines for ours."""

    def place(match: re.Match[str]) -> str:
        origin = source.origin(int(match[1]))
        return str(origin) if origin is not None else f"rendered line {match[1]}"

    text = re.sub(re.escape(SOURCE_NAME) + r"\((\d+)\)", place, log.replace("\0", "\n"))
    lines = [line for line in text.replace(SOURCE_NAME, source.template_name).splitlines() if line.strip()]
    more = len(lines) - _SHOWN_LOG_LINES
    return "\n".join(lines[:_SHOWN_LOG_LINES] + ([f"... {more} more lines, see .log"] if more > 0 else [])) or None


def _hint(finding: _Finding, context: _Context) -> str | None:
    """What to try, for the errors that newcomers meet."""
    message = finding.message
    if found := re.search(r'cannot open source file "([^"]+)"|could not open source file "([^"]+)"', message):
        return _missing_header(found[1] or found[2], context)
    if found := re.search(r"<([^<>]+)> is not available on the CPU backend", message):
        return instead_of_header(found[1])
    if named := _name_hint(message, context):
        return named
    if found := re.search(r"too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)", message):
        used, most = int(found[1], 16), int(found[2], 16)
        return f"a smaller tile, or extern __shared__ with shared_bytes=: {used} bytes are declared, {most} are allowed"
    if "Unresolved extern function" in message:
        return "a definition: a device function is declared, but not defined in this source"
    if "is considered a host variable" in message:
        return "__device__ or __constant__ in front of the variable"
    if "calling a __host__ function" in message:
        return "__device__ in front of the function that is called"
    if "failed to create directory" in message:
        return "a writable user folder for NVRTC's bundled headers, a CUDA toolkit, or Options(bundled_headers=False)"
    if "--std" in message or "unrecognized option" in message:
        return "another option, or a newer compiler: " + ", ".join(context.options)
    return None


def _name_hint(message: str, context: _Context) -> str | None:
    if found := _OF_STD.search(message):
        return instead_of_name(found["name"] or found["gcc"], of_std=True)
    if (found := _UNKNOWN.search(message)) is None:
        return None
    name = found["name"] or found["gcc"] or found["clang"]
    if name in dict(context.source.parameters):
        return f"{{{{ {name} }}}}: a parameter reaches the text only in double braces"
    return instead_of_name(name)


def _missing_header(name: str, context: _Context) -> str:
    if known := instead_of_header(name):
        return f"{known} (NVRTC has no standard library)"
    searched = ", ".join(str(d) for d in context.directories) or "no directory"
    if is_cuda_header(name) and context.install:
        return f"{context.install} (searched: {searched})"
    return f'options=Options(include="directory of {os.path.basename(name)}") (searched: {searched})'


def save(text: str) -> str | None:
    """File that holds the rendered source, readable by its owner only; None when it cannot be written.

    It is named by its content, so the same error again makes no further file. Nobody but the system removes them.
    """
    data = text.encode("utf-8", "surrogatepass")
    name = f"cuplate-{hashlib.sha256(data).hexdigest()[:16]}.cu"
    path = os.path.join(tempfile.gettempdir(), name)
    try:
        if _holds(path, data):
            return path
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        except FileExistsError:  # not ours, or of another content: leave it alone
            descriptor, path = tempfile.mkstemp(prefix="cuplate-", suffix=".cu")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError:
        return None
    return path


def _holds(path: str, data: bytes) -> bool:
    """Whether a file of this very content is there, and is ours (the temp directory is everybody's)."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
            return False
        with open(path, "rb") as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False
