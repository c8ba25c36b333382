"""A host compiler, and kernels compiled with it once per session."""

from __future__ import annotations

import functools
import importlib.util
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuplate.backend.cpu.build import build, runtime_object
from cuplate.backend.cpu.compilers import HostCompiler, find_compiler
from cuplate.backend.cpu.engine import ArrayArgument, Module
from cuplate.options import Options

NAME = "kernel.cu"


@functools.cache
def _missing(choice: str) -> str | None:
    if choice == "zig":
        return None if importlib.util.find_spec("ziglang") else "the package ziglang is not installed"
    return None if shutil.which(choice) else f"no {choice} on PATH"


@pytest.fixture(params=["g++", "zig"])
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Each compiler that is here; a test for another skips."""
    reason = _missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    return find_compiler(request.param)


@functools.cache
def runtime(compiler: HostCompiler, check: str) -> bytes:
    """Compiled once per session."""
    return runtime_object(compiler, "off" if check == "off" else "full")


@pytest.fixture
def runtime_of(compiler: HostCompiler) -> bytes:
    """The runtime object of an unchecked build."""
    return runtime(compiler, "off")


@functools.cache
def image(
    compiler: HostCompiler,
    text: str,
    entries: tuple[str, ...],
    check: str,
    options: Options,
    directories: tuple[Path, ...],
) -> bytes:
    """Compiled once per session."""
    return build(
        text,
        entries,
        name=NAME,
        compiler=compiler,
        options=options,
        check=check,
        arch=800,
        directories=directories,
        runtime=runtime(compiler, check),
    )


class Kernel:
    """A compiled kernel that takes NumPy arrays and scalars."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def __call__(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *values: Any,
        shared_bytes: int = 0,
        check: str = "off",
        budget_s: float = 30.0,
        workers: int = 1,
        order: int = 0,
        written: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        """Launches; every array that is no argument to const is written, or those numbered in ``written``."""
        constness = self.module.argument_constness
        arguments: list[ArrayArgument | bytes] = []
        for number, value in enumerate(values):
            if isinstance(value, np.ndarray):
                may = not constness[number] if written is None else number in written
                arguments.append(array(f"a{number}", value, may))
            else:
                arguments.append(value if isinstance(value, bytes) else np.asarray(value).tobytes())
        return self.module.launch(
            _three(grid),
            _three(block),
            shared_bytes,
            arguments,
            check=check,
            budget_s=budget_s,
            workers=workers,
            order=order,
        )


def array(name: str, value: np.ndarray, written: bool, fresh: bool = False) -> ArrayArgument:
    """What the walk makes of an array."""
    span = (
        value.nbytes
        if value.flags.c_contiguous
        else int((np.subtract(value.shape, 1) * value.strides).sum()) + value.itemsize
    )
    return ArrayArgument(name, value.ctypes.data, span, value.itemsize, value.shape, str(value.dtype), written, fresh)


def _three(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else size
    return (*sizes, 1, 1)[:3]


@pytest.fixture
def compiled(compiler: HostCompiler, request: pytest.FixtureRequest) -> Callable[..., Kernel]:
    """Compiles a text and loads its kernel ``entry``."""

    def make(
        text: str,
        entry: str = "k",
        *,
        check: str = "off",
        options: Options | None = None,
        directories: Sequence[Path] = (),
    ) -> Kernel:
        module = Module(image(compiler, text, (entry,), check, options or Options(), tuple(directories)))
        request.addfinalizer(module.close)
        return Kernel(module)

    return make
