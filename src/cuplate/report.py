"""What a call runs, on one page: the receipt of `inspect`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cuplate.cubin import Cubin
from cuplate.grid import Grid
from cuplate.hints import by_reason

if TYPE_CHECKING:
    from cuplate.autotune.tuned import Tuned

__all__ = ["Report"]

_ORIGINS = {
    "disk": "HIT (disk)",
    "shared": "HIT (shared)",
    "compile": "MISS (compiled now)",
    "joined": "MISS (another thread compiled it)",
}


@dataclass(frozen=True, slots=True)
class Report:
    """One specialization of a function; ``str()`` is the receipt.

    Attributes
    ----------
    function, called_as : str
        The function, and the call in one line.
    source : str
        Rendered CUDA C++.
    options : tuple of str
        Compiler options in canonical form.
    arch : str
        ``"sm_90"``.
    key : str
        Content key, hexadecimal.
    ingredients : tuple of (str, str)
        What the key is made of.
    cubin : Cubin
        With `Resources`: registers, spills, shared memory.
    origin : str
        ``"disk"``, ``"shared"``, ``"compile"`` or ``"joined"``.
    lookup_s, compile_s, store_s : float, seconds
    grid : Grid or None
        None when sizes were not given.
    block : tuple of int
        Threads in x, y, z.
    variant : str
        The function that runs: one of ``variants=``, or `function` itself.
    variant_parameters : tuple of (str, object)
        Its compile-time values.
    passed_over : tuple of (str, str)
        Variants that stood before it, and what was against each.
    tuned : Tuned or None
        What was tried for its tuned parameters.
    """

    function: str
    called_as: str
    source: str
    options: tuple[str, ...]
    arch: str
    key: str
    ingredients: tuple[tuple[str, str], ...]
    cubin: Cubin
    origin: str
    lookup_s: float
    compile_s: float
    store_s: float
    grid: Grid | None
    block: tuple[int, int, int]
    variant: str
    variant_parameters: tuple[tuple[str, object], ...]
    passed_over: tuple[tuple[str, str], ...]
    make_ptx: Callable[[], str] = field(repr=False, compare=False)
    tuned: Tuned | None = None

    @property
    def ptx(self) -> str:
        """The PTX text; compiled when asked for, without a driver.

        Raises
        ------
        CompileError, ToolchainError
        """
        return self.make_ptx()

    @property
    def sass(self) -> str | None:
        """The machine code as text; None where neither ``nvdisasm`` nor ``cuobjdump`` is found."""
        from cuplate.backend.cuda import nvrtc

        return nvrtc.sass(self.cubin.code)

    def __str__(self) -> str:
        rows = [
            ("key", self.key),
            ("cache", f"{_ORIGINS[self.origin]}, {self._times()}"),
            ("arch", f"{self.arch}, {self.cubin.toolchain}"),
            ("options", " ".join(self.options)),
            ("kernel", f"{self.cubin.entry}, {len(self.cubin.code)} bytes"),
            *self._resources(),
            ("block", f"{self.block} = {self.block[0] * self.block[1] * self.block[2]} threads"),
            ("grid", self._grid()),
            *self._variant(),
            *self._tuned(),
        ]
        return "\n".join([self.called_as, *(f"  {name:<10} {value}" for name, value in rows)])

    def _variant(self) -> list[tuple[str, str]]:
        """Which function runs, where there are several, and why not those before it."""
        rows = []
        if self.variant != self.function:
            parameters = ", ".join(f"{name}={value!r}" for name, value in self.variant_parameters)
            rows.append(("variant", f"{self.variant}({parameters})"))
        return [*rows, *(("not taken", told) for told in by_reason(self.passed_over))]

    def _tuned(self) -> list[tuple[str, str]]:
        """Where tuned parameters come from."""
        if self.tuned is None:
            return []
        winner = self.tuned.tried[self.tuned.winner]
        said = {"default": "by default, not measured"}.get(self.tuned.origin, f"fastest of {len(self.tuned.tried)}")
        return [("tuned", f"{winner}, {said}")]

    def _resources(self) -> list[tuple[str, str]]:
        r = self.cubin.resources
        if r.registers is None:  # a host build
            return [("shared", f"{self.grid.shared_memory_bytes} bytes dynamic")] if self.grid else []
        return [
            ("registers", f"{r.registers} a thread, {r.spill_store_bytes} + {r.spill_load_bytes} bytes spilled"),
            ("shared", f"{r.static_shared_bytes} bytes static{self._dynamic()}"),
        ]

    def _times(self) -> str:
        parts = [f"look-up {self.lookup_s * 1e3:.2f} ms"]
        if self.origin not in ("disk", "shared"):
            parts += [f"compile {self.compile_s * 1e3:.1f} ms", f"store {self.store_s * 1e3:.2f} ms"]
        return ", ".join(parts)

    def _dynamic(self) -> str:
        return f" + {self.grid.shared_memory_bytes} bytes dynamic" if self.grid else ""

    def _grid(self) -> str:
        if self.grid is None:
            return "depends on the sizes, or on the device"
        cluster = f" in clusters of {self.grid.cluster}" if self.grid.cluster else ""
        folded = ", folded onto x" if self.grid.folded else ""
        return f"{self.grid.grid}{cluster}{folded}"
