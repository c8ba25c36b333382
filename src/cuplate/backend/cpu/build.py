"""Compiles rendered CUDA C++ into a shared object for this machine."""

from __future__ import annotations

import functools
import hashlib
import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cuplate.backend.cpu.compilers import HostCompiler, environment
from cuplate.backend.cpu.includes import lay_out, unavailable
from cuplate.backend.cpu.source import Rewritten, analyse
from cuplate.errors import ToolchainError
from cuplate.options import Options

__all__ = ["BuildError", "Finding", "build", "runtime_object", "shim_digest"]

_SHIM = Path(__file__).parent / "shim"
_TIMEOUT_S = 600.0
_FINDING = re.compile(
    r"(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)?\s*(?:fatal )?error:\s*(?P<message>.*)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One error of the compiler.

    Attributes
    ----------
    file : str
        As the ``name`` of `build`, or a header's path.
    line, column : int
        From 1; the column is 0 where the compiler gives none.
    message : str
    context : tuple of str
        Notes that belong to it.
    """

    file: str
    line: int
    column: int
    message: str
    context: tuple[str, ...] = ()


class BuildError(Exception):
    """The compiler refused a source.

    Attributes
    ----------
    log : str
        All it said.
    findings : tuple of Finding
    """

    def __init__(self, log: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(log, findings)
        self.log = log
        self.findings = findings

    def __str__(self) -> str:
        return self.log


@functools.lru_cache(maxsize=1)
def shim_digest() -> str:
    """Digest over all files that the shim is made of: names and contents."""
    digest = hashlib.sha256()
    for path in sorted(p for p in _SHIM.rglob("*") if p.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_SHIM).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def runtime_object(compiler: HostCompiler, check: str) -> bytes:
    """The runtime compiled once for a compiler and a check mode: what `build` links into each kernel.

    Parameters
    ----------
    compiler : HostCompiler
    check : str
        ``"full"`` and ``"bounds"`` give the same bytes.

    Raises
    ------
    BuildError
        The compiler refuses the runtime: it is too old or of another kind.
    ToolchainError
        It does not run, or no temporary file can be written.
    """
    flags = [f for f in compiler.flags(check=check, options=Options()) if not f.startswith(("-fsanitize", "-g", "-O"))]
    # Two neighbouring fields loaded as one would wait for the stores to each: no vectors of what lies side by side.
    flags += ["-O2", "-g0", "-fno-tree-slp-vectorize", "-I", str(_SHIM), "-c"]
    parts = []
    with _Directory() as directory:
        for number, arguments in enumerate((["runtime.cpp"], ["guard.cpp", "-DCUPLATE_FRONT"], ["guard.cpp"])):
            target = directory / f"{number}.o"
            _run(compiler, [*flags, *arguments[1:], str(_SHIM / arguments[0]), "-o", str(target)], directory)
            parts.append(target.read_bytes())
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def build(
    text: str,
    entries: Sequence[str],
    *,
    name: str,
    compiler: HostCompiler,
    options: Options,
    check: str,
    arch: int,
    directories: Sequence[Path],
    runtime: bytes,
) -> bytes:
    """A shared object with the kernels of ``text`` and the runtime that runs them.

    Parameters
    ----------
    text : str
        Rendered CUDA C++.
    entries : sequence of str
        Kernels: names, or C++ name expressions such as ``"scale<float, 4>"``.
    name : str
        What messages call the text.
    compiler : HostCompiler
    options : Options
        ``std``, ``fast_math``, ``debug`` and ``define``; the rest is for GPUs.
    check : str
        ``"full"``, ``"bounds"`` or ``"off"``.
    arch : int
        Value of ``__CUDA_ARCH__``: 800.
    directories : sequence of Path
        Searched for headers, in this order.
    runtime : bytes
        From `runtime_object` of the same compiler and check mode.

    Raises
    ------
    BuildError
        The compiler refuses the source.
    ToolchainError
        The compiler does not run, or no temporary file can be written.
    """
    rewritten = analyse(text)
    flags = [*compiler.flags(check=check, options=options), f"-D__CUDA_ARCH__={arch}"]
    flags += ["-include", str(_SHIM / "cuplate_cpu.h")]
    with _Directory() as work:
        # zig knows the system's headers whatever it is told
        layout = lay_out(rewritten.text, directories, _SHIM, work, refuse=compiler.family == "zig")
        outside = rewritten.dynamic_outside or layout.dynamic_outside
        rewritten = replace(rewritten, text=layout.text, dynamic_outside=outside)
        for directory in layout.directories:
            flags += ["-I", str(directory)]
        flags.append(f"-ffile-prefix-map={work}=.")  # the same source gives the same bytes
        source, target = Path("kernel.cpp"), work / "kernel.so"
        (work / source).write_text(_unit(rewritten, entries, name), encoding="utf-8")
        runtime_o, front, back = _unpack(runtime, work)
        libraries = ["-lgcc"] if compiler.family == "gcc" else []
        link = ["-shared", "-nostdlib", "-Wl,--build-id=none", runtime_o, front]
        if compiler.family == "gcc":
            _run(compiler, [*flags, "-pipe", *link, str(source), back, *libraries, "-o", str(target)], work)
        else:
            # In two steps: told to sanitize, the driver would link libraries that answer what the runtime answers.
            compiled = work / "kernel.o"
            _run(compiler, [*flags, "-c", str(source), "-o", str(compiled)], work)
            _run(compiler, [*link, str(compiled), back, *libraries, "-o", str(target)], work)
        return target.read_bytes()


def _unit(rewritten: Rewritten, entries: Sequence[str], name: str) -> str:
    """The translation unit: the source under its own name and line numbers, then what calls its kernels."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    lines = [f'#line 1 "{quoted}"', rewritten.text, '#line 1 "<entries>"']
    if rewritten.dynamic_outside:
        lines.append("CUPLATE_DYNAMIC_MEMORY")
    for number, entry in enumerate(entries):
        lines.append(f"CUPLATE_ENTRY({number}, {entry})")
        if entry in rewritten.bounds:
            lines.append(f"CUPLATE_BOUNDS({number}, {rewritten.bounds[entry]})")
    return "\n".join(lines) + "\n"


def _unpack(runtime: bytes, directory: Path) -> list[str]:
    """Writes the objects that `runtime_object` put together."""
    paths: list[str] = []
    at = 0
    while at < len(runtime):
        (size,) = struct.unpack_from("<Q", runtime, at)
        path = directory / f"runtime{len(paths)}.o"
        path.write_bytes(runtime[at + 8 : at + 8 + size])
        paths.append(str(path))
        at += 8 + size
    return paths


class _Directory:
    """A private temporary directory; failing to have one is the toolchain's failure, not the kernel's."""

    def __enter__(self) -> Path:
        try:
            self._held = tempfile.TemporaryDirectory(prefix="cuplate-", ignore_cleanup_errors=True)
        except OSError as error:
            raise ToolchainError(
                "the CPU backend cannot write a temporary file",
                given=str(error),
                try_="set TMPDIR to a writable directory",
            ) from error
        return Path(self._held.name)

    def __exit__(self, *_: object) -> None:
        self._held.cleanup()


def _run(compiler: HostCompiler, arguments: Sequence[str], work: Path) -> None:
    command = [*compiler.command, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_S, env=environment(), stdin=subprocess.DEVNULL, cwd=work
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError("the CPU backend's compiler does not run", given=" ".join(compiler.command)) from error
    if done.returncode == 0:
        return
    log = done.stderr.decode("utf-8", "replace") or done.stdout.decode("utf-8", "replace")
    raise BuildError(log, _findings(log))


_NO_FILE = re.compile(r"(?:'(?P<clang>[^']+)' file not found|(?P<gcc>\S+): No such file or directory)")
_NOTE = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:\d+:)?\s*(?:note|required from)")
_FROM = re.compile(r"In file included from (?P<file>[^:]+):(?P<line>\d+)")
_ABSENT = "absent/"


def _findings(log: str) -> tuple[Finding, ...]:
    """The errors of a log, each with the notes that follow it."""
    found: list[Finding] = []
    asked: tuple[str, int] | None = None
    for line in log.splitlines():
        included = _FROM.match(line)
        if included:
            asked = (included["file"], int(included["line"]))  # clang says the innermost last
            continue
        match = _FINDING.match(line)
        if match:
            place = (match["file"], int(match["line"]))
            if _ABSENT in match["file"] and asked is not None:
                place = asked  # of the include, not of the header that stands for one that is not there
            found.append(Finding(*place, int(match["column"] or 0), _message(match["message"])))
        elif found and _NOTE.match(line):
            last = found[-1]
            found[-1] = Finding(last.file, last.line, last.column, last.message, (*last.context, line.strip()))
        asked = None if match else asked
    return tuple(found)


def _message(text: str) -> str:
    missing = _NO_FILE.search(text)
    if missing is None:
        return text
    return unavailable(missing["clang"] or missing["gcc"])
