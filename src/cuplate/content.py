"""A planned specialization, rendered, matched with the kernel's own parameter list, and keyed: ready to be built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cuplate.backend.cuda import nvrtc
from cuplate.binding import Binding
from cuplate.cache.store import Store
from cuplate.cubin import Cubin
from cuplate.cxx import find_parameters, parameter_checks
from cuplate.key import Key, make
from cuplate.plan import Plan, match_slots
from cuplate.render import Source, render
from cuplate.specialization import Slot

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
    slots, checks = spec.slots, ""
    if slots is None:
        slots = match_slots(plan, find_parameters(source.text, source.entry), binding.template.name)
    if not binding.template.writes_args:
        checks = parameter_checks(source.entry, slots)
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
