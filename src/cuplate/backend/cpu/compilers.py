"""Finds a host C++ compiler and says what identifies it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cuplate.errors import ToolchainError
from cuplate.key import HOST_CHECK
from cuplate.options import Options

__all__ = [
    "ABSENT",
    "FileIdentity",
    "HostCompiler",
    "cpu_features",
    "file_identity",
    "find_compiler",
    "is_still",
]

FileIdentity = tuple[str, int, int, int, int]
"""Path, device, inode, size, and time of the last change in nanoseconds."""

# In this order: what the system calls its C++ compiler, then the two by name.
_ON_PATH = ("c++", "g++", "clang++")

_LANGUAGE = (
    "-fPIC",
    "-nostdinc",  # NVRTC has no system headers either
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-fno-threadsafe-statics",
    "-fno-math-errno",
    "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector",
    "-ffp-contract=fast",  # a*b+c is one operation, as NVRTC has it
    "-gdwarf-4",
    "-g1",  # lines only: what names the place of a fault; costs no time that can be measured
    "-fno-ident",
    "-w",
)
# A frame larger than a page touches each of its pages, so that it cannot step over a stack's guard page.
_PROBES = ("-fstack-clash-protection",)
# Shifts by too much are left out: hardware defines them, and rotations by 0 are written so.
_CHECKED = (
    "-fsanitize=thread",
    "-fsanitize=alignment,integer-divide-by-zero",
    "-gdwarf-4",  # reports read types of shared arrays and inlined calls from it
    "-g",
)
# Volatile accesses apart from plain ones: they may be part of a protocol between threads.
_CHECKED_GCC = (
    "-fsanitize=bounds",
    "-fno-var-tracking",
    "-fno-var-tracking-assignments",
    "-fexpensive-optimizations",  # with -O1, else no product and sum become one operation
)
_CHECKED_GCC_11 = ("--param=tsan-distinguish-volatile=1",)
_CHECKED_CLANG = (
    "-ffp-contract=on",  # in the front end: the checks part what "fast" would put together
    "-fsanitize=array-bounds",  # its "bounds" has a second check, which cannot say what it found
    *("-mllvm", "-tsan-distinguish-volatile=1"),
    *("-mllvm", "-tsan-instrument-read-before-write=1"),  # x += 1 of shared memory that is not initialised
    *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
)


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A C++ compiler for this machine.

    Attributes
    ----------
    family : str
        ``"gcc"``, ``"clang"`` or ``"zig"``.
    command : tuple of str
        What runs it; the flags follow.
    version : str
        For messages: ``"12.2.0"``.
    build : str
        Full identity with the target, for keys.
    cpu : str
        Short digest of the CPU features that ``-march=native`` stands for here.
    """

    family: str
    command: tuple[str, ...]
    version: str
    build: str
    cpu: str

    def flags(self, *, check: str, options: Options) -> tuple[str, ...]:
        """Flags that decide the machine code, in a fixed order and without paths.

        Parameters
        ----------
        check : str
            ``"full"`` or ``"bounds"`` (one instrumented build serves both), or ``"off"``.
        options : Options
            ``std``, ``fast_math``, ``debug`` and ``define`` are honoured.
        """
        checked = check != "off"
        flags = [f"-std={_standard(options.std)}", *_LANGUAGE, *_PROBES, *self._target()]
        flags.append("-O0" if options.debug else "-O1" if checked else "-O2")
        # Vectorized sums part products from sums that the GPU fuses; and clang instruments no access above 16 bytes.
        flags += ["-fno-tree-vectorize"] if self.family == "gcc" else ["-fno-vectorize", "-fno-slp-vectorize"]
        if checked:
            flags += [HOST_CHECK, *_CHECKED, *self._checked()]
        if options.debug:
            flags.append("-ffp-contract=off")  # as NVRTC: else clang's front end does what nothing behind it would
        if options.fast_math:
            # What --use_fast_math lets NVRTC do, less reassociation: it does not do that either.
            flags += ["-DCUPLATE_FAST_MATH", "-fno-signed-zeros", "-freciprocal-math", "-fno-trapping-math"]
        flags += [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in options.define]
        return tuple(flags)

    def _checked(self) -> tuple[str, ...]:
        if self.family != "gcc":
            return _CHECKED_CLANG
        return _CHECKED_GCC + (_CHECKED_GCC_11 if int(self.version.split(".")[0]) >= 11 else ())

    def _target(self) -> tuple[str, ...]:
        native = "-mcpu=native" if self.family != "gcc" and _machine() == "arm64" else "-march=native"
        flags = [native]
        if _machine() == "x86-64":
            flags.append("-fcf-protection=none")  # fibers return to addresses that a shadow stack has not seen
            flags.append("-mno-red-zone")  # a barrier pushes its return address below a frame that knows of no call
        if self.family == "gcc":
            flags += ["-fno-gnu-unique", "-fmax-errors=20"]
            if _machine() == "x86-64":
                flags += ["--param=avoid-fma-max-bits=0"]  # else tuned for Zen it does not fuse chains
                # __shared__ variables are thread-local: their address by a descriptor can leave a loop, by a call not.
                flags += ["-mtls-dialect=gnu2"]
        else:
            flags += ["-ferror-limit=20", "-fno-sanitize-trap=all", "-fno-caret-diagnostics"]
        if self.family == "zig":
            # What zig adds by itself: libc++, NDEBUG where it optimizes, checks of its own where it does not.
            flags += ["-nostdinc++", "-UNDEBUG", "-fno-sanitize=undefined"]
        return tuple(flags)


ABSENT = HostCompiler("none", (), "", "", "")
"""In place of a compiler where there is none."""


def find_compiler(choice: str | None = None) -> HostCompiler:
    """The compiler that builds kernels for the CPU backend.

    Parameters
    ----------
    choice : str, optional
        A command, a path or ``"zig"``. Default: the first of ``c++``, ``g++`` and ``clang++`` on PATH, else the
        package ``ziglang``.

    Raises
    ------
    ToolchainError
        None was found, or the chosen one does not run.
    """
    path = os.environ.get("PATH", "")
    return _find(choice or None, path, tuple(map(file_identity, [choice] if choice else _ON_PATH)))


def file_identity(command: str) -> FileIdentity | None:
    """The file that a command runs, and what changes when it is replaced; None if there is none."""
    path = shutil.which(command)
    try:
        return None if path is None else (path, *_stamps(path))
    except OSError:
        return None


def is_still(identity: FileIdentity | None) -> bool:
    """Whether a file is the one that it was; True for none."""
    try:
        return identity is None or _stamps(identity[0]) == identity[1:]
    except OSError:
        return False


def _stamps(path: str) -> tuple[int, int, int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=16)
def _find(choice: str | None, path: str, files: tuple[FileIdentity | None, ...]) -> HostCompiler:
    del path, files  # parts of the key: another PATH may have another compiler, and an upgrade replaces one
    if choice is not None:
        command = _zig() if choice == "zig" else _command(choice)
        if command is None:
            raise ToolchainError(
                f"the CPU backend's compiler {choice!r} was not found",
                given=f"CUPLATE_CPU_COMPILER={choice}",
                allowed="a command or path of g++ or clang++, or zig (the package ziglang)",
            )
        return _identify(command)
    for name in _ON_PATH:
        if shutil.which(name):
            return _identify((name,))
    command = _zig()
    if command is None:
        raise ToolchainError(
            "the CPU backend needs a C++ compiler and found none",
            allowed="c++, g++, clang++ on PATH, or the package ziglang",
            try_='pip install "cuplate[cpu]"',
        )
    return _identify(command)


def _command(choice: str) -> tuple[str, ...] | None:
    if shutil.which(choice) is None:
        return None
    return (choice, "c++") if Path(choice).stem == "zig" else (choice,)


def _zig() -> tuple[str, ...] | None:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    for directory in spec.submodule_search_locations:
        found = shutil.which("zig", path=directory)
        if found:
            return (found, "c++")
    return None


def _identify(command: tuple[str, ...]) -> HostCompiler:
    """Asks the compiler what it is: one run, and one more for what -march=native means."""
    text = _ask(command, "--version")
    if "clang" in text.lower():
        family = "zig" if command[-1] == "c++" and Path(command[0]).stem == "zig" else "clang"
        found = re.search(r"clang version (\S+)", text)
        version = found[1] if found else "unknown"
        target = re.search(r"^Target: (\S+)", text, re.MULTILINE)
        build = f"{text.splitlines()[0]} {target[1] if target else ''}".strip()
        if family == "zig":  # which people know by its own number, not by that of the clang in it
            version = _ask(command[:1], "version").strip()
            build = f"zig {version} {build}"
    else:
        family = "gcc"
        version = _ask(command, "-dumpfullversion", "-dumpversion").strip()
        build = f"{text.splitlines()[0]} {_ask(command, '-dumpmachine').strip()}"
    # zig names the kernel that runs, of which no code depends
    build = re.sub(r"linux[\d.]+-", "linux-", re.sub(r"^\S*/", "", build))
    return HostCompiler(family, command, version, build, cpu_features())


def _ask(command: tuple[str, ...], *arguments: str) -> str:
    try:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, env=environment())
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError("the CPU backend's compiler does not run", given=" ".join(command)) from error
    if done.returncode:
        raise ToolchainError(
            "the CPU backend's compiler does not run", given=" ".join((*command, *arguments)), said=done.stderr.strip()
        )
    return done.stdout


def environment() -> dict[str, str]:
    """The process's environment with messages in English and without what changes what a compiler reads."""
    dropped = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LANGUAGE", "GCC_COLORS", "CLICOLOR_FORCE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "LC_ALL": "C", "TERM": "dumb"}


@functools.lru_cache(maxsize=1)
def cpu_features() -> str:
    """Digest of what the CPU says it is: a kernel built for one machine's CPU may not run on another's."""
    text = platform.machine() + platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        if sys.platform == "darwin":
            text += _ask(("sysctl",), "-n", "machdep.cpu.brand_string")
    else:
        wanted = ("flags", "Features", "model name", "vendor_id", "cpu family", "model", "CPU part", "CPU implementer")
        text += "\n".join(line for line in lines if line.split("\t")[0].split(":")[0].strip() in wanted)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _machine() -> str:
    return {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "arm64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )


def _standard(name: str) -> str:
    # The gnu dialects would bring keywords that NVRTC does not have (typeof), yet some extensions are common ground.
    return {"c++23": "c++2b"}.get(name, name)
