"""A planned specialization, rendered, matched with the kernel's own parameter list, and keyed: ready to be built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cuplate import headers
from cuplate.backend.cuda import nvrtc
from cuplate.backend.protocol import Toolchain
from cuplate.binding import Binding
from cuplate.cache.store import Store
from cuplate.cubin import HOST_ARCH, Cubin, decode
from cuplate.cxx import base_name, find_parameters, parameter_checks
from cuplate.errors import LaunchError, ToolchainError
from cuplate.key import Key, make, request, request_of
from cuplate.options import Options
from cuplate.plan import Plan, make_slot, match_slots
from cuplate.render import Source, render
from cuplate.specialization import Slot
from cuplate.template import READS_GRID

if TYPE_CHECKING:
    from cuplate.backend.cpu.device import Target

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
    shipped : callable
        The key of the same kernel that another compiler has built, if layers of the given store have it; else None.
    """

    source: Source
    slots: tuple[Slot, ...]
    key: Key
    arch: str
    parameters_text: str
    build: Callable[[], Cubin]
    ptx: Callable[[], str]
    unchanged: Callable[[], bool]
    shipped: Callable[[Store], Key | None] = lambda store: None


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
        slots = _with_nulls(slots, plan, binding, source)
        return slots, parameter_checks(source.entry, slots)
    types = slots is not None and any(s.struct is not None or s.kind == "map" for s in slots)  # that the text defines
    printed = ", ".join(slot.declared for slot in slots or ())
    if slots is not None and text.count("__global__") == 1 and f"{base_name(source.entry)}({printed})" in text:
        return slots, parameter_checks(source.entry, slots) if types else ""
    # A template that writes {{ args }} may do so on some paths only, or for another kernel of the same text.
    listed = find_parameters(text, source.entry)
    if slots is not None and listed == tuple(slot.name for slot in slots):
        return slots, parameter_checks(source.entry, slots) if types else ""
    if slots is not None and listed is None and printed in text:
        return slots, parameter_checks(source.entry, slots)  # in a macro, most likely
    slots = match_slots(plan, listed, binding.template.name)
    return slots, parameter_checks(source.entry, slots)


def _with_nulls(slots: tuple[Slot, ...], plan: Plan, binding: Binding, source: Source) -> tuple[Slot, ...]:
    """The list of ``args=`` with the absent arrays in it, if the kernel has a parameter for each of them as well."""
    names = [token for token, _ in binding.arguments or ()]
    listed = find_parameters(source.text, source.entry)
    if len(slots) == len(names) or listed is None or len(listed) != len(names):
        return slots
    return tuple(make_slot(name, plan.specialization, own_list=True) for name in names)


def make_content(binding: Binding, plan: Plan, *, memo: Store | None, target: Target | None = None) -> Content:
    """Render and key what `plan` needs.

    Parameters
    ----------
    binding : Binding
    plan : Plan
    memo : Store or None
        Where the compiler's build may be remembered from one process to the next.
    target : Target or None
        What of the CPU backend to build for; None for a GPU.

    Raises
    ------
    TemplateError
        The template fails to render, or the kernel's parameter list does not match.
    ToolchainError
        There is no compiler, and what would be compiled is not stored.
    """
    spec = plan.specialization
    source = render(binding.template, spec)
    if plan.grid is not None and plan.grid.folded:
        _check_folded(source, plan, binding)
    slots, checks = _parameters(binding, plan, source)
    own = binding.template.directory
    directories = (*binding.options.directories(own or Path.cwd()), *((own,) if own is not None else ()))
    parameters = ", ".join(f"{name}={value!r}" for name, value in spec.parameters)
    if target is not None:
        from cuplate.host import HostBuild, no_ptx

        def on_host() -> _Wish:
            closure = headers.closure(source.text, directories=directories)
            return _Wish(source, binding.options, target.arch, closure, checks, target.requested())

        if not target.builds:
            wish = on_host()
            return _stored_only(wish, memo, slots, HOST_ARCH, parameters, target.why_not(), directories)
        host = HostBuild(source, binding.options, target, directories, checks=checks, store=memo)
        told = source, slots, host.key, HOST_ARCH, parameters, host.build, no_ptx, host.unchanged
        return Content(*told, lambda store: on_host().stored(store))

    def on_gpu() -> _Wish:
        closure = headers.closure(source.text, directories=directories)
        return _Wish(source, binding.options, spec.arch, closure, checks)

    try:
        toolchain = nvrtc.toolchain(memo=memo)
        found = nvrtc.find_headers(source.text, binding.options, directories)
    except ToolchainError as error:
        wish = on_gpu()
        return _stored_only(wish, memo, slots, spec.arch, parameters, error, directories)
    options = nvrtc.effective(binding.options, found)
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

    return Content(
        source, slots, key, spec.arch, parameters, build, ptx, unchanged, lambda store: on_gpu().stored(store)
    )


@dataclass(frozen=True, slots=True)
class _Wish:
    """What can be told of a key without its compiler; see `cuplate.key.request`."""

    source: Source
    options: Options
    arch: str
    closure: headers.Closure
    checks: str
    more: tuple[tuple[str, str], ...] = ()

    def stored(self, memo: Store) -> Key | None:
        """The key under which a store has the kernel, as `cuplate.cache.packing.export` has noted it."""
        asked = self._asked()
        digest = memo.get(asked, again=True)
        record = memo.get(digest, again=True) if digest is not None else None
        if digest is not None and record is not None:
            try:
                ingredients = decode(record).ingredients
            except ValueError:
                ingredients = ()
            if request_of(ingredients) == asked:  # a note that leads elsewhere leads nobody to another kernel
                return Key(digest, ingredients, self.closure.storable, self.closure.reason)
        return None

    def _asked(self) -> bytes:
        return request(self.source, self.options, self.arch, self.closure, checks=self.checks, more=self.more)

    def find(self, memo: Store) -> Key | None:
        """That key; or, of what layers do not hold, one that nothing is stored under: enough to say what is missing.

        None without layers.
        """
        if (key := self.stored(memo)) is not None:
            return key
        if not getattr(memo, "layers", ()):
            return None
        unknown = make(
            self.source,
            self.options,
            Toolchain("not", "", "installed", ()),
            self.arch,
            self.closure,
            checks=self.checks,
            more=self.more,
        )
        return Key(self._asked(), unknown.ingredients)


def _stored_only(
    wish: _Wish,
    memo: Store | None,
    slots: tuple[Slot, ...],
    arch: str,
    parameters: str,
    error: ToolchainError,
    directories: tuple[Path, ...],
) -> Content:
    """What can be loaded, and not built.

    Raises
    ------
    ToolchainError
        The given one: nothing is stored that could be loaded.
    """
    key = wish.find(memo) if memo is not None else None
    if key is None:
        raise error

    def no_compiler() -> NoReturn:
        raise error

    def unchanged() -> bool:
        return headers.closure(wish.source.text, directories=directories).files == wish.closure.files

    return Content(wish.source, slots, key, arch, parameters, no_compiler, no_compiler, unchanged)
