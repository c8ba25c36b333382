"""What a specialization compiles to for the CPU: its key, its build, and the CUDA compiler's consent.

The rendered text is the same as for a GPU. Where NVRTC is installed it compiles the text too, and what it refuses is
refused here: what runs on the CPU backend then also is CUDA C++.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from cuplate import headers, key
from cuplate.backend.cpu.build import BuildError, Finding, build, runtime_object
from cuplate.backend.cuda import nvrtc
from cuplate.backend.protocol import Toolchain
from cuplate.compile import SOURCE_NAME, Flights, diagnose
from cuplate.cubin import HOST_ARCH, Cubin
from cuplate.errors import CompileError, ToolchainError

if TYPE_CHECKING:
    from cuplate.backend.cpu.device import Target
    from cuplate.cache.store import Store
    from cuplate.headers import Closure
    from cuplate.options import Options
    from cuplate.render import Source

__all__ = ["HostBuild", "no_ptx", "runtime"]

_runtimes: dict[bytes, bytes] = {}
_making: Flights[bytes] = Flights()
_ENTRIES = "<entries>"  # what `build` calls the lines that it adds


class HostBuild:
    """One rendered source for one `Target`.

    Parameters
    ----------
    source : Source
    options : Options
    target : Target
    directories : sequence of Path
        The user's include directories, absolute.
    checks : str
        Appended to the source, see `cuplate.cxx.parameter_checks`.
    store : Store or None
        Where the runtime that each kernel is linked with is kept.

    Attributes
    ----------
    key : Key
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        target: Target,
        directories: Sequence[Path],
        *,
        checks: str,
        store: Store | None,
    ) -> None:
        self.source, self.options, self.target = source, options, target
        self.directories, self.checks, self._store = tuple(directories), checks, store
        self._closure = self._headers()
        self._cuda_compiler = self._find_cuda_compiler()
        self.key = self._key()

    def _headers(self) -> Closure:
        return headers.closure(self.source.text, directories=self.directories)

    def _key(self) -> key.Key:
        compiler = self.target.compiler
        toolchain = Toolchain(compiler.family, compiler.version, compiler.build, ())
        more = (*self.target.ingredients(self.options), ("cuda compiler", self._cuda_compiler))
        return key.make(
            self.source, self.options, toolchain, self.target.arch, self._closure, checks=self.checks, more=more
        )

    def _find_cuda_compiler(self) -> str:
        """The NVRTC that is asked for its consent, or none."""
        try:
            toolchain = nvrtc.toolchain(memo=self._store)
        except ToolchainError:
            return "none"
        return f"nvrtc {toolchain.build}" if toolchain.supports(self.target.arch) else "none"

    def unchanged(self) -> bool:
        """Whether the headers and the compiler are still those of the key."""
        return self.target.unchanged() and self._headers() == self._closure

    def build(self) -> Cubin:
        """Compile.

        Raises
        ------
        CompileError
            One of the compilers refused the source, at the template's line.
        ToolchainError
        """
        start = time.perf_counter()
        consent = _beside(self._ask_cuda_compiler)
        try:
            code = self._compile()
        except CompileError:
            consent.result()  # what it refuses too is told in its words: a GPU would get them
            raise
        consent.result()
        source = self.source
        return Cubin(
            code=code,
            entry=source.entry,
            arch=HOST_ARCH,
            function=source.function,
            compile_s=time.perf_counter() - start,
            toolchain=f"{self.target.compiler.family} {self.target.compiler.version}, standing for {self.target.arch}",
            parameters_text=", ".join(f"{name}={value!r}" for name, value in source.parameters),
            source=key.compiled_text(source, self.options),
        )

    def _compile(self) -> bytes:
        target = self.target
        try:
            return build(
                f"{self.source.text}\n{self.checks}" if self.checks else self.source.text,
                [self.source.entry],
                name=SOURCE_NAME,
                compiler=target.compiler,
                options=self.options,
                check=target.check,
                arch=int(target.arch.removeprefix("sm_")) * 10,
                directories=self.directories,
                runtime=runtime(target, self._store),
            )
        except BuildError as error:
            raise self._diagnosed(error) from None

    def _diagnosed(self, error: BuildError) -> CompileError:
        log = "\n".join(_as_nvrtc_says(finding) for finding in error.findings) or error.log
        return diagnose(
            log,
            self.source,
            options=self.options.canonical(),
            key=self.key.hex,
            directories=self.directories,
            checks=self.checks,
            compiler=f"the CPU backend's compiler ({self.target.compiler.family} {self.target.compiler.version})",
        )

    def _ask_cuda_compiler(self) -> None:
        if self._cuda_compiler == "none":
            return
        found = nvrtc.find_headers(self.source.text, self.options, self.directories)
        nvrtc.build(
            self.source,
            nvrtc.effective(self.options, found),
            self.options.target(self.target.arch),
            checks=self.checks,
            key=self.key.hex,
            directories=found.directories,
            bundled=found.bundled,
        )


def _beside(work: Callable[[], None]) -> Future[None]:
    """Runs it in a thread that nobody has to wait for: Ctrl-C ends a build, and cannot end what NVRTC is at."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="cuplate-nvrtc", daemon=True).start()
    return done


def runtime(target: Target, store: Store | None) -> bytes:
    """The object that each kernel is linked with: from this process, the store, or the compiler.

    Raises
    ------
    ToolchainError
        The compiler cannot build it.
    """
    from cuplate.options import Options

    parts = ("cuplate cpu runtime", "off" if target.check == "off" else "checked")
    ingredients = (value for _, value in target.ingredients(Options()))
    digest = hashlib.sha256("\0".join((*parts, *ingredients)).encode()).digest()
    made = _runtimes.get(digest)
    if made is None:
        made = _making.run(digest, lambda: _obtain_runtime(digest, target, store))[0]
    return made


def no_ptx() -> str:
    """What `Report.ptx` of a host build comes to.

    Raises
    ------
    ToolchainError
        Always.
    """
    raise ToolchainError("a kernel that is built for the CPU has no PTX.", try_='inspect(..., arch="sm_90").ptx')


def _obtain_runtime(digest: bytes, target: Target, store: Store | None) -> bytes:
    made = store.get(digest, again=True) if store is not None else None  # no kernel's miss
    if made is None:
        try:
            made = runtime_object(target.compiler, target.check)
        except BuildError as error:
            raise ToolchainError(
                "the C++ compiler cannot build the CPU backend's runtime.",
                given=f"{target.compiler.family} {target.compiler.version}",
                allowed="g++ 11 or newer, clang++ 15 or newer, or the package ziglang",
                said=error.log.strip()[-2000:],
            ) from None
        if store is not None:
            store.put(digest, made, tag="cuplate cpu runtime")
    _runtimes[digest] = made
    return made


_REFUSED = re.compile(r"call to '.*' declared with (?:attribute error|'error' attribute): (.*)\Z", re.DOTALL)
_ASSERTED = re.compile(r"static assertion failed(?:: | due to requirement '.*': ?)\"?(.*?)\"?\Z", re.DOTALL)


def _as_nvrtc_says(finding: Finding) -> str:
    """A host compiler's error in the form that `diagnose` reads."""
    message = finding.message.replace("\n", " ")
    if (refused := _REFUSED.match(message)) is not None:
        message = refused[1]
    asserted = _ASSERTED.match(message)
    if asserted is not None:
        message = f'static assertion failed with "{asserted[1]}"'
    file = "__nv_name_map" if finding.file == _ENTRIES else finding.file
    return "\n".join((f"{file}({finding.line}): error: {message}", *finding.context))
