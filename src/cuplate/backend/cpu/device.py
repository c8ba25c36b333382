"""The CPU as the walk sees a device: what it stands for, kernels loaded on it, and launches."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuplate.backend.cpu.build import shim_digest
from cuplate.backend.cpu.compilers import (
    ABSENT,
    FileIdentity,
    HostCompiler,
    cpu_features,
    file_identity,
    find_compiler,
    is_still,
)
from cuplate.backend.cpu.engine import ArrayArgument, Module
from cuplate.backend.protocol import DeviceFacts
from cuplate.config import Settings
from cuplate.errors import LaunchError, ToolchainError
from cuplate.grid import Grid, limits_for
from cuplate.key import HOST_CHECK
from cuplate.options import Options

if TYPE_CHECKING:
    from cuplate.backend.cpu.reports import Report
    from cuplate.cubin import Cubin

__all__ = [
    "ArrayArgument",
    "HostKernel",
    "Target",
    "check",
    "device_facts",
    "load",
    "prepare",
    "run_on",
    "target",
    "zero",
]


_CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Target:
    """What a kernel is built for here.

    Attributes
    ----------
    compiler : HostCompiler
        `ABSENT` where there is none: then what is stored can be run, and nothing built.
    check : str
        ``"full"``, ``"bounds"`` or ``"off"``.
    arch : str
        The architecture that the CPU stands for: ``"sm_80"``.
    file : FileIdentity or None
        Of the compiler.
    choice : str or None
        The compiler that was asked for.
    """

    compiler: HostCompiler
    check: str
    arch: str
    file: FileIdentity | None = None
    choice: str | None = None

    @property
    def builds(self) -> bool:
        """Whether there is a compiler."""
        return self.compiler is not ABSENT

    def why_not(self) -> ToolchainError:
        """Why there is no compiler."""
        try:
            find_compiler(self.choice)
        except ToolchainError as error:
            return error
        return ToolchainError("a C++ compiler was installed during the call.", try_="the call again")

    def unchanged(self) -> bool:
        """Whether the compiler is still the one that was asked what it is: what another makes must not get its key."""
        return self.builds and is_still(self.file)

    def ingredients(self, options: Options) -> tuple[tuple[str, str], ...]:
        """What decides the machine code besides the source, for keys; no path is in it."""
        flags = self.compiler.flags(check=self.check, options=options)
        return (
            ("host compiler", f"{self.compiler.family} {self.compiler.build}"),
            ("host flags", " ".join(flags)),
            ("host cpu", self.compiler.cpu),
            ("cpu backend", shim_digest()),
        )

    def requested(self) -> tuple[tuple[str, str], ...]:
        """What of those can be told without a compiler, for `cuplate.key.request`."""
        return (
            ("host flags", "" if self.check == "off" else HOST_CHECK),
            ("host cpu", cpu_features()),
            ("cpu backend", shim_digest()),
        )


def target(settings: Settings, *, again: bool = False) -> Target:
    """What the settings ask for, as far as it is there.

    Parameters
    ----------
    settings : Settings
    again : bool
        Look whether the compiler has been replaced, or has come, since.
    """
    known = _target[0] if _target else None
    if known is None or known[0] is not settings or (again and not known[1].unchanged()):
        choice = settings.cpu_compiler
        try:
            file = file_identity(find_compiler(choice).command[0])
            compiler = find_compiler(choice)  # after: what is replaced meanwhile is seen at the next look
        except ToolchainError:
            file, compiler = None, ABSENT
        known = settings, Target(compiler, settings.cpu_check, settings.cpu_arch, file, choice)
        _target[:] = [known]
    return known[1]


_target: list[tuple[Settings, Target]] = []  # of the last settings: `config.cpu_settings` gives the same object again


@functools.lru_cache
def device_facts(arch: str) -> DeviceFacts:
    """The limits of the architecture that the CPU stands for; it has a multiprocessor for each of its cores."""
    return DeviceFacts(arch, replace(limits_for(arch), sm_count=_CORES, on_gpu=False, cluster_blocks=1), "CPU")


class HostKernel:
    """A kernel that this process can run; unloaded when the last reference to it goes.

    Attributes
    ----------
    cubin : Cubin
        Of a host build.
    evicted : bool
        Set when the memory tier has let go of it.
    """

    def __init__(self, cubin: Cubin) -> None:
        self.cubin = cubin
        self.evicted = False
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.registers = None
        self._module = Module(cubin.code)

    @property
    def static_shared_bytes(self) -> int:
        """Static shared memory a block."""
        return self._module.static_shared_bytes

    @property
    def threads_per_block(self) -> int:
        """Largest block that ``__launch_bounds__`` allows."""
        return self._module.max_threads

    @property
    def argument_bytes(self) -> tuple[int, ...]:
        """Size of each kernel argument."""
        return self._module.argument_bytes

    def run(self, grid: Grid, values: Sequence[ArrayArgument | int | bytes], settings: Settings) -> tuple[Report, ...]:
        """Launch, and wait for the end.

        Parameters
        ----------
        grid : Grid
        values : sequence of ArrayArgument, int or bytes
            In the kernel's order; a scalar as the integer with the same bytes, a struct as its bytes.
        settings : Settings
            Check mode, budget and threads.

        Returns
        -------
        tuple of Report
            What the checker found.

        Raises
        ------
        KernelFault, BudgetExceeded
            See `Module.launch`.
        """
        given = [
            (value & ((1 << 8 * size) - 1)).to_bytes(size, "little") if isinstance(value, int) else value
            for value, size in zip(values, self.argument_bytes, strict=True)
        ]
        return self._module.launch(
            grid.grid,
            grid.block,
            grid.shared_memory_bytes,
            given,
            check=settings.cpu_check,
            budget_s=settings.cpu_budget_s,
            workers=settings.cpu_threads or _CORES,
        )

    def __del__(self) -> None:
        module = getattr(self, "_module", None)
        if module is not None:
            module.close()


def zero(pointer: int, size_bytes: int) -> None:
    """Zero host memory."""
    ctypes.memset(pointer, 0, size_bytes)


def run_on(device: int) -> contextlib.AbstractContextManager[None]:
    """Nothing: a thread needs no preparation."""
    del device
    return contextlib.nullcontext()


def load(cubin: Cubin, device: int) -> HostKernel:
    """Load a host build.

    Raises
    ------
    ToolchainError
        It is of another version, or cannot be loaded.
    """
    del device  # there is one
    return HostKernel(cubin)


def check(grid: Grid, function: str) -> None:
    """Refuse what blocks that run one after another cannot give.

    Raises
    ------
    LaunchError
        The launch has clusters or is cooperative.
    """
    if grid.cluster is not None:
        raise LaunchError("the CPU backend has no clusters.", function=function, given=f"cluster {grid.cluster}")
    if grid.cooperative:
        raise LaunchError(
            "the CPU backend runs blocks one after another, so that a cooperative grid would wait for ever.",
            function=function,
            try_="a launch for each step of the kernel",
        )


def prepare(grid: Grid, loaded: HostKernel) -> Grid:
    """The launch configuration of `grid`: itself."""
    del loaded
    return grid
