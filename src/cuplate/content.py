"""A planned specialization, rendered, matched with the kernel's own parameter list, and keyed: ready to be built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cuplate.backend.cuda import nvrtc
from cuplate.binding import Binding
from cuplate.cache.store import Store
from cuplate.cubin import Cubin
from cuplate.cxx import base_name, find_parameters, parameter_checks
from cuplate.errors import LaunchError
from cuplate.key import Key, make
from cuplate.plan import Plan, match_slots
from cuplate.render import Source, render
from cuplate.specialization import Slot
from cuplate.template import READS_GRID

__all__ = ["Content", "make_content"]


@dataclass(frozen=True, slots=True)
class Content:
    """What one specialization compiles to, and how to compile it.

    Attributes
    ----------
    source : Source
    slots : tuple of Slot
        The kernel's parameter list, standard or matched.
    key : Key
    arch : str
    parameters_text : str
        ``"tile=16, relu=True"``.
    build : callable
        Compiles to a `Cubin`; no arguments.
    ptx : callable
        Compiles to PTX text; no arguments.
    unchanged : callable
        Whether the headers are still those of the key.
    """

    source: Source
    slots: tuple[Slot, ...]
    key: Key
    arch: str
    parameters_text: str
    build: Callable[[], Cubin]
    ptx: Callable[[], str]
    unchanged: Callable[[], bool]


def _check_folded(source: Source, plan: Plan, binding: Binding) -> None:
    """Refuse a folded grid to a text that reads its block index after all, by a value or a macro of the options."""
    text = source.text
    for axis in plan.specialization.axes:
        text = text.replace(axis.tile_index, "") if axis.tile_index else text
    macros = " ".join(value or "" for _, value in binding.options.define)
    if READS_GRID.search(text) or READS_GRID.search(macros):
        raise LaunchError(
            "an axis passes the device's limit, and the rendered text reads blockIdx beside its tile_index.",
            function=source.function,
            given=", ".join(f"{size.text} in steps of {tile.text}" for size, tile in binding.tiles),
            try_="{{ N.tile_index }} for every axis, a larger tile, or the long axis first in tiles=",
        )


def _parameters(binding: Binding, plan: Plan, source: Source) -> tuple[tuple[Slot, ...], str]:
    """The kernel's parameter list, and the text that makes the compiler check one that the kernel writes itself."""
    slots, text = plan.specialization.slots, source.text
    if slots is not None and binding.arguments is not None:
        return slots, parameter_checks(source.entry, slots)
    printed = ", ".join(slot.declared for slot in slots or ())
    if slots is not None and text.count("__global__") == 1 and f"{base_name(source.entry)}({printed})" in text:
        return slots, ""
    # A template that writes {{ args }} may do so on some paths only, or for another kernel of the same text.
    listed = find_parameters(text, source.entry)
    if slots is not None and listed == tuple(slot.name for slot in slots):
        return slots, ""
    if slots is not None and listed is None and printed in text:
        return slots, parameter_checks(source.entry, slots)  # in a macro, most likely
    slots = match_slots(plan, listed, binding.template.name)
    return slots, parameter_checks(source.entry, slots)


def make_content(binding: Binding, plan: Plan, *, memo: Store | None) -> Content:
    """Render and key what `plan` needs.

    Parameters
    ----------
    binding : Binding
    plan : Plan
    memo : Store or None
        Where the compiler's build may be remembered from one process to the next.

    Raises
    ------
    TemplateError
        The template fails to render, or the kernel's parameter list does not match.
    ToolchainError
        There is no compiler.
    """
    spec = plan.specialization
    source = render(binding.template, spec)
    if plan.grid is not None and plan.grid.folded:
        _check_folded(source, plan, binding)
    slots, checks = _parameters(binding, plan, source)
    own = binding.template.directory
    directories = (*binding.options.directories(own or Path.cwd()), *((own,) if own is not None else ()))
    found = nvrtc.find_headers(source.text, binding.options, directories)
    options = nvrtc.effective(binding.options, found)
    toolchain = nvrtc.toolchain(memo=memo)
    program_key = nvrtc.program_key_bytes(source, options, spec.arch, bytes.fromhex(found.closure.digest))
    key = make(source, options, toolchain, spec.arch, found.closure, program_key=program_key, checks=checks)

    def build() -> Cubin:
        return nvrtc.build(
            source, options, spec.arch, checks=checks, key=key.hex, directories=found.directories, bundled=found.bundled
        )

    def ptx() -> str:
        return nvrtc.ptx(source, options, spec.arch, found.directories, bundled=found.bundled)

    def unchanged() -> bool:
        return nvrtc.find_headers(source.text, binding.options, directories).closure == found.closure

    parameters = ", ".join(f"{name}={value!r}" for name, value in spec.parameters)
    return Content(source, slots, key, spec.arch, parameters, build, ptx, unchanged)
