"""NVRTC through ``cuda.core``: the toolchain, its headers, one compile to a cubin, PTX and SASS; no GPU needed.

Every lever of `ProgramOptions` is probed, none assumed: ``cuda-core`` 1.2.0 and newer have different ones.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuplate import headers
from cuplate.backend.cuda import importing
from cuplate.backend.protocol import Toolchain
from cuplate.cache import fork
from cuplate.cache.store import Store
from cuplate.compile import SOURCE_NAME, diagnose, not_defined
from cuplate.cubin import Cubin, Resources
from cuplate.cxx import defined_kernels, find_parameters, parameter_checks
from cuplate.errors import CompileError, ToolchainError
from cuplate.key import compiled_text
from cuplate.options import Options

if TYPE_CHECKING:
    from cuda.core import ProgramOptions

    from cuplate.render import Source

__all__ = [
    "Found",
    "build",
    "defined_kernels",
    "find_headers",
    "find_parameters",
    "parameter_checks",
    "program_key_bytes",
    "ptx",
    "sass",
    "toolchain",
    "toolkit_directories",
]

_INSTALL = "pip install 'cuplate[cuda13]' (or 'cuplate[cuda12]' for CUDA 12)"
_BANNER = re.compile(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)")
_BUILD = re.compile(r"\d+(?:\.\d+)+\Z")
_BUNDLED_SINCE = (13, 3)
_FORK_WAIT_S = 10.0
_KEY_NAME = "cuplate.cu"  # a key wants a name with no slash unless headers are vouched for; it decides nothing


# --- the compiler ----------------------------------------------------------------------------------------------------


@functools.cache
def _nvrtc() -> Any:
    """The raw bindings, once it is certain that the library behind them loads."""
    try:
        with importing:
            from cuda.bindings import nvrtc

        status, *_ = nvrtc.nvrtcVersion()
    except Exception as error:  # ImportError, or pathfinder's DynamicLibNotFoundError, which moves between releases
        raise ToolchainError(
            "the CUDA run-time compiler (NVRTC) cannot be loaded", given=str(error).splitlines()[0], try_=_INSTALL
        ) from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise ToolchainError("the CUDA run-time compiler (NVRTC) does not answer", given=str(status), try_=_INSTALL)
    return nvrtc


@functools.cache
def _version() -> tuple[int, int]:
    _, major, minor = _nvrtc().nvrtcVersion()
    return int(major), int(minor)


_toolchain: Toolchain | None = None


def toolchain(memo: Store | None = None) -> Toolchain:
    """The compiler of this process.

    Parameters
    ----------
    memo : Store, optional
        Remembers the full build of a compiler library across processes: asking the compiler costs an empty compile.

    Returns
    -------
    Toolchain
        Named once a process.

    Raises
    ------
    ToolchainError
        NVRTC is not installed; so no key is ever made without a compiler.
    """
    global _toolchain
    if _toolchain is None:
        nvrtc = _nvrtc()
        _, architectures = nvrtc.nvrtcGetSupportedArchs()
        names = tuple(f"sm_{number}" for number in sorted(architectures))
        _toolchain = Toolchain("nvrtc", ".".join(map(str, _version())), _full_build(memo), names)
    return _toolchain


def _full_build(memo: Store | None) -> str:
    """``13.5.37``; the version call says 13.5 only, and a patched compiler must not reuse old cubins."""
    token = _library_token() if memo is not None else None
    if memo is not None and token is not None and (known := memo.get(token)) is not None:
        found = known.decode("ascii", "replace")
        if _BUILD.match(found):
            return found
    try:
        # For its own cache NVRTC initialises the driver, and with that CUDA is lost to every child forked later.
        ptx = _raw_ptx("", [b"--no-cache"])
    except _RawFailure:  # an older one: it has neither the flag nor the cache
        ptx = _raw_ptx("", [])
    banner = _BANNER.search(ptx)
    if banner is None:
        raise ToolchainError("NVRTC does not say which build it is", try_=_INSTALL)
    found = banner[1].decode()
    if memo is not None and token is not None:
        memo.put(token, found.encode(), tag="toolchain")
    return found


def _library_token() -> bytes | None:
    """Identity of the loaded library and its builtins by path, size, time and inode; None when it cannot be told."""
    path = _library_path()
    if path is None:
        return None
    state = hashlib.sha256(b"cuplate toolchain")
    for file in (path, *sorted(path.parent.glob("libnvrtc-builtins*"))):
        status = file.stat()
        identity = [str(file), status.st_size, status.st_mtime_ns, status.st_ino]
        state.update(json.dumps(identity).encode("ascii"))
    return state.digest()


def _library_path() -> Path | None:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        found = load_nvidia_dynamic_lib("nvrtc").abs_path
        return Path(found).resolve(strict=True) if found else None
    except Exception:  # an unknown layout costs one empty compile, no more
        return None


def _check_arch(arch: str) -> None:
    compiler = toolchain()
    if not compiler.supports(arch):
        raise ToolchainError(
            f"NVRTC {compiler.build} does not compile for {arch}",
            given=f"arch={arch!r}",
            allowed=", ".join(compiler.architectures) + " (suffix a or f where the architecture has it)",
            try_=f"a toolkit that knows {arch}: {_INSTALL}; or another arch=",
        )


# --- headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """Where a source's headers come from.

    Attributes
    ----------
    closure : Closure
        For the key.
    directories : tuple of Path
        For the compiler: the user's, then the toolkit's where needed.
    bundled : bool
        Whether NVRTC's own headers are to be used.
    """

    closure: headers.Closure
    directories: tuple[Path, ...]
    bundled: bool = False


def find_headers(text: str, options: Options, directories: Sequence[Path] = ()) -> Found:
    """The header closure of a rendered source, and the directories to compile it with.

    Parameters
    ----------
    text : str
        Rendered source.
    options : Options
        ``bundled_headers`` decides between toolkit and bundled headers.
    directories : sequence of Path
        The user's, absolute.

    Raises
    ------
    ToolchainError
        ``bundled_headers=True`` where ``cuda-core`` or NVRTC has none.
    """
    if options.bundled_headers:
        _require_bundled()
        return Found(headers.closure(text, directories=directories), tuple(directories), True)
    wanted = toolkit_directories if options.bundled_headers is None else tuple
    closure, added = headers.complete(text, directories, wanted)
    missing = not added and options.bundled_headers is None and any(map(headers.is_cuda_header, closure.absent))
    return Found(closure, (*directories, *added), missing and _bundled_reason() is None)


def effective(options: Options, found: Found) -> Options:
    """The options with the choice of bundled headers made, for the key."""
    return options.replace(bundled_headers=found.bundled)


# Parts of a toolkit that come as wheels of their own, so that the folder of the others may lack them: a header that
# tells, the part's name for cuda.pathfinder, and its folder among the wheels of CUDA 12.
_PARTS = (("cuda/std/cstdint", "cccl", "cuda_cccl"), ("crt/mma.h", "nvcc", "cuda_nvcc"))


@functools.cache
def toolkit_directories() -> tuple[Path, ...]:
    """Directories of CUDA's headers, best match first; empty when there is no toolkit.

    What is of the compiler's own major version is preferred, then what lies beside it, then what ``cuda.pathfinder``
    finds (wheels, conda, ``CUDA_HOME``, the system's). Looked for once a process.
    """
    candidates = [d for d in _toolkit_candidates() if (d / "cuda_fp16.h").is_file()]
    if not candidates:
        return ()
    same = [d for d in candidates if _major(d) in (None, _version()[0])]
    best = (same or candidates)[0]
    wheels = best.parents[1]
    found = [best]
    for header, name, folder in _PARTS:
        places = (best, best / "cccl", wheels / folder / "include", *_pathfinder_headers(name), *same)
        found += [d for d in places if (d / header).is_file()][:1]
    return tuple(dict.fromkeys(found))


def _major(directory: Path) -> int | None:
    """Major version of a directory of CUDA headers; None when they do not say."""
    try:
        found = re.search(r"#define CUDA_VERSION (\d+)\d{3}\b", (directory / "cuda.h").read_text(errors="replace"))
    except OSError:
        return None
    return int(found[1]) if found else None


def _toolkit_candidates() -> list[Path]:
    library = _library_path()
    parents = library.parents[1:4] if library is not None else ()
    # CUDA 12 wheels have a folder each: nvidia/cuda_nvrtc/lib, nvidia/cuda_runtime/include.
    beside = [parent / end for parent in parents for end in ("include", "cuda_runtime/include")]
    named = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return [*beside, *_pathfinder_headers("cudart"), *named]


def _pathfinder_headers(name: str) -> list[Path]:
    try:
        from cuda.pathfinder import find_nvidia_header_directory

        found = find_nvidia_header_directory(name)
    except Exception:  # not there in every release; raises for what it does not know, or does not find
        return []
    return [Path(found)] if found else []


def _bundled_reason() -> str | None:
    """Why there are no bundled headers; None when there are."""
    if "use_bundled_headers" not in _levers():
        return "this cuda-core has no use_bundled_headers"
    if _version() < _BUNDLED_SINCE:
        return f"NVRTC {'.'.join(map(str, _version()))} is older than {'.'.join(map(str, _BUNDLED_SINCE))}"
    return None


def _require_bundled() -> None:
    if reason := _bundled_reason():
        raise ToolchainError(
            "bundled_headers=True cannot be had",
            given=reason,
            try_="bundled_headers=None, with the headers of a toolkit",
        )


# --- compiling -------------------------------------------------------------------------------------------------------


@functools.cache
def _levers() -> frozenset[str]:
    """Fields of this release's ProgramOptions."""
    try:
        with importing:
            from cuda.core import ProgramOptions
    except ImportError as error:
        raise ToolchainError("cuda.core cannot be imported", given=str(error), try_=_INSTALL) from error
    return frozenset(f.name for f in fields(ProgramOptions))


def _program_options(
    options: Options, arch: str, name: str, directories: Sequence[Path], bundled: bool, **more: object
) -> ProgramOptions:
    with importing:
        from cuda.core import ProgramOptions

    wanted: dict[str, Any] = {
        "arch": arch,
        "name": name,
        "std": options.std,
        "use_fast_math": options.fast_math or None,
        "max_register_count": options.max_registers,
        "lineinfo": options.line_info or None,
        "debug": options.debug or None,
        "define_macro": [n if value is None else (n, value) for n, value in options.define] or None,
        "include_path": [str(d) for d in directories] or None,
        "use_bundled_headers": bundled or None,
        **more,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    if lacking := [name for name in given if name not in _levers() and name not in more]:
        raise ToolchainError("this release of cuda-core lacks an option", given=", ".join(lacking), try_=_INSTALL)
    return ProgramOptions(**{name: value for name, value in given.items() if name in _levers()})


def _text(source: Source, options: Options, checks: str = "") -> str:
    text = compiled_text(source, options)
    return f"{text}\n{checks}" if checks else text


def program_key_bytes(source: Source, options: Options, arch: str, extra_digest: bytes = b"") -> bytes:
    """``cuda.core``'s own key of the program, 32 bytes: one ingredient of ours.

    Parameters
    ----------
    source : Source
        What was rendered.
    options : Options
        Include directories and bundled headers stay out, because their flags hold paths.
    arch : str
        ``"sm_90a"``.
    extra_digest : bytes
        Digest of the headers.
    """
    with importing:
        from cuda.core.utils import make_program_cache_key

    return bytes(
        make_program_cache_key(
            code=_text(source, options),
            code_type="c++",
            options=_program_options(options, arch, _KEY_NAME, (), False),
            target_type="cubin",
            name_expressions=(source.entry,),
            extra_digest=extra_digest or None,
        )
    )


def build(
    source: Source,
    options: Options,
    arch: str,
    *,
    checks: str = "",
    directories: Sequence[Path] = (),
    bundled: bool = False,
    key: str = "",
) -> Cubin:
    """One compile.

    Parameters
    ----------
    source : Source
        Its entry is always given to NVRTC as a name expression, so templates and C++ linkage work like ``extern "C"``.
    options : Options
        Without its include directories, which come as `directories`.
    arch : str
        ``"sm_90a"``.
    checks : str
        Appended to the source, see `parameter_checks`.
    directories : sequence of Path
        Include directories, absolute, as `find_headers` gives them.
    bundled : bool
        Use NVRTC's own headers.
    key : str
        Content key, hexadecimal, for errors.

    Returns
    -------
    Cubin
        With the lowered name of the entry and what the assembler reports; ``ingredients`` empty.

    Raises
    ------
    CompileError
        The compiler refused the source, at the template's line; or it gave no code.
    KernelNotFoundError
        The source does not define the entry.
    ToolchainError
        No NVRTC, or one that does not know `arch`.
    """
    _check_arch(arch)
    program_options = _program_options(
        options, arch, SOURCE_NAME, directories, bundled, no_cache=True, ptxas_options="-v"
    )
    start = time.perf_counter()
    try:
        code, entry, log = _compile(_text(source, options, checks), program_options, source.entry)
    except ToolchainError:
        raise
    except Exception as error:
        log = _log_of(error)
        raise diagnose(
            log,
            source,
            options=options.canonical(),
            key=key,
            directories=directories,
            checks=checks,
            install=_INSTALL,
        ) from None if log else error  # which says the same in the compiler's names
    seconds = time.perf_counter() - start
    _check_code(code, entry, source, log, options, key)
    return Cubin(
        code=code,
        entry=entry,
        arch=arch,
        function=source.function,
        resources=_resources(log, entry),
        log=log.replace("\0", ""),
        compile_s=seconds,
        toolchain=f"nvrtc {toolchain().build}",
        parameters_text=", ".join(f"{name}={value!r}" for name, value in source.parameters),
        source=compiled_text(source, options),
    )


class _Compiling:
    """Counts who is inside NVRTC: a child that is forked meanwhile inherits its locks, and would wait for ever."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._lost = False
        fork.register(self)

    def __enter__(self) -> None:
        with self._changed:
            if self._lost:
                raise ToolchainError(
                    "this process was forked while its parent compiled, so that NVRTC cannot be used in it",
                    try_="multiprocessing with spawn or forkserver",
                )
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Let the compiles under way end, and no other begin; for a while."""
        self._changed.acquire()
        self._changed.wait_for(lambda: self._inside == 0, _FORK_WAIT_S)

    def after_fork(self, *, child: bool) -> None:
        """Go on; in a child whose fork did not wait long enough, never again."""
        if child and self._inside:
            self._lost, self._inside = True, 0
        self._changed.release()


_compiling = _Compiling()


def _compile(text: str, options: ProgramOptions, entry: str) -> tuple[bytes, str, str]:
    """Code, lowered name and log."""
    with _compiling:
        return _compile_now(text, options, entry)


def _compile_now(text: str, options: ProgramOptions, entry: str) -> tuple[bytes, str, str]:
    from cuda.core import Program

    logs = io.StringIO()
    program = Program(text, "c++", options)
    try:
        compiled = program.compile("cubin", name_expressions=(entry,), logs=logs)
        name = compiled.symbol_mapping[entry]
        return bytes(compiled.code), name.decode() if isinstance(name, bytes) else str(name), logs.getvalue()
    finally:
        program.close()
        # Else an error's traceback keeps it, in a cycle, and a Program that the garbage collector takes apart writes
        # an AttributeError to stderr (cuda-core 1.2.2).
        del program


def _log_of(error: Exception) -> str:
    """The compiler's log out of an exception of cuda.core, which has no attribute for it."""
    return str(error).rpartition("compilation log:")[2].replace("\0", "\n").strip("\n")


def _check_code(code: bytes, entry: str, source: Source, log: str, options: Options, key: str) -> None:
    if not code:
        error = diagnose(log or "the compiler gave no code and no reason", source, options=options.canonical(), key=key)
        raise CompileError("the compiler gave an empty cubin", function=source.function, **error.facts)
    if b".text." + entry.encode() + b"\0" not in code:  # a section for each kernel; a mere declaration has none
        raise not_defined(source, log=log, options=options.canonical(), key=key)


_FIGURES = {
    "registers": r"Used (\d+) registers",
    "barriers": r"used (\d+) barriers",
    "static_shared_bytes": r"(\d+) bytes smem",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
    "stack_bytes": r"(\d+) bytes stack frame",
}


def _resources(log: str, entry: str) -> Resources:
    """What ``ptxas -v`` says of one entry; nothing where it says nothing."""
    _, found, section = log.partition(f"Compiling entry function '{entry}'")
    if not found:
        return Resources()
    section = section.partition("Compiling entry function")[0]
    figures = {name: re.search(pattern, section) for name, pattern in _FIGURES.items()}
    values = {name: int(match[1]) for name, match in figures.items() if match}
    constant = [int(n) for n in re.findall(r"(\d+) bytes cmem\[\d+\]", section)]
    return Resources(**{"static_shared_bytes": 0, **values, **({"constant_bytes": sum(constant)} if constant else {})})


# --- looking inside --------------------------------------------------------------------------------------------------


def ptx(source: Source, options: Options, arch: str, directories: Sequence[Path] = (), *, bundled: bool = False) -> str:
    """PTX of a rendered source, through the raw bindings: ``Program.compile("ptx")`` asks for a driver.

    Raises
    ------
    CompileError
        As `build`.
    """
    _check_arch(arch)
    flags = _program_options(options, arch, SOURCE_NAME, directories, bundled, no_cache=True).as_bytes("nvrtc")
    try:
        return _raw_ptx(_text(source, options), flags, source.entry).rstrip(b"\0").decode()
    except _RawFailure as failure:
        raise diagnose(
            str(failure), source, options=options.canonical(), directories=directories, install=_INSTALL
        ) from None


class _RawFailure(Exception):
    """The log of a raw compile."""


def _raw_ptx(text: str, flags: Sequence[bytes], entry: str | None = None) -> bytes:
    with _compiling:
        return _raw_ptx_now(text, flags, entry)


def _raw_ptx_now(text: str, flags: Sequence[bytes], entry: str | None) -> bytes:
    nvrtc = _nvrtc()
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), SOURCE_NAME.encode(), 0, None, None)
    try:
        if entry is not None:
            nvrtc.nvrtcAddNameExpression(program, entry.encode())
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), list(flags))
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _raw(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise _RawFailure(log.decode("utf-8", "replace"))
        return _raw(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _raw(program: Any, measure: Any, read: Any) -> bytes:
    _, size = measure(program)
    buffer = b" " * int(size)
    read(program, buffer)  # the bindings write into the bytes object: that is their interface
    return buffer


def sass(code: bytes) -> str | None:
    """Disassembly of a cubin; None where neither ``nvdisasm`` nor ``cuobjdump`` is installed.

    Parameters
    ----------
    code : bytes
        An ELF image.
    """
    for tool, flags in (("nvdisasm", ["--print-code"]), ("cuobjdump", ["--dump-sass"])):
        if (program := _find_tool(tool)) is None:
            continue
        with tempfile.TemporaryDirectory(prefix="cuplate-") as folder:
            file = Path(folder, "kernel.cubin")
            file.write_bytes(code)
            done = subprocess.run([program, *flags, str(file)], capture_output=True, text=True, check=False, timeout=60)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout
    return None


def _find_tool(name: str) -> str | None:
    homes = [os.path.join(os.environ[n], "bin") for n in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(n)]
    if found := shutil.which(name) or shutil.which(name, path=os.pathsep.join([*homes, "/usr/local/cuda/bin"])):
        return found
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility(name)
        return str(found) if found else None
    except Exception:  # as above
        return None
