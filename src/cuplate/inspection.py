"""What a call would run, told without launching it: `inspect`, `compile` and `explain` of one function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuplate import config
from cuplate.call import Call, check_call
from cuplate.content import Content
from cuplate.cubin import Cubin
from cuplate.encode import encoder
from cuplate.errors import ArgumentError
from cuplate.grid import Limits, limits_for
from cuplate.grid import check as check_grid
from cuplate.indices import check_indices
from cuplate.plan import Plan, make_plan
from cuplate.report import Report
from cuplate.variants import Variants

if TYPE_CHECKING:
    from cuplate.backend.cpu.device import Target

__all__ = ["Inspection"]


class Inspection:
    """One function's answers about a call; arrays may be `ArraySpec`, dtype names, or left out, and no GPU is needed.

    Parameters
    ----------
    variants : Variants
    """

    def __init__(self, variants: Variants) -> None:
        self.variants = variants
        self.signature = variants.binding.signature
        self.name = self.signature.function

    def _described(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], arch: str | None
    ) -> tuple[Call, Plan, Content, Limits, Variants]:
        names = [a.name for a in self.signature.arguments]
        known = {*names, *(p.name for p in self.signature.parameters), "out", "stream"}
        given = dict(zip(names, args, strict=False))
        twice = sorted(given.keys() & kwargs.keys())
        if twice:
            raise ArgumentError(f"argument {twice[0]!r} is given twice.", function=self.name)
        given.update({k: v for k, v in kwargs.items() if k in known})
        unknown = {k: v for k, v in kwargs.items() if k not in known}
        call = check_call(self.variants.binding, given, args[len(names) :], unknown, partial=True)
        for scalar in self.signature.scalars:
            if given.get(scalar.name) is not None:  # None: left out; a value that no call takes is refused here too
                encoder(scalar, self.name)(given[scalar.name])
        on_host = arch is None and call.device is not None and call.device[0] == "cpu"
        target = self._host() if on_host else None
        compiled_for, limits = self._arch(call, arch if target is None else target.arch)
        variants = self.variants.debugged() if target is None and config.debugging() else self.variants
        plan = make_plan(
            variants.binding,
            call.solved,
            call.parameters,
            arch=compiled_for,
            limits=limits,
            called_as=call.called_as(self.name),
        )
        content = variants.content(plan, target=target, current=True)
        check_indices(plan, content.source, content.slots, variants.binding.options)
        return call, plan, content, limits, variants

    def _host(self) -> Target:
        from cuplate.backend.cpu import device as cpu

        return cpu.target(config.cpu_settings())

    def _arch(self, call: Call, arch: str | None) -> tuple[str, Limits]:
        options = self.variants.binding.options
        if arch is not None:
            return options.target(str(arch)), limits_for(str(arch))
        try:
            from cuplate.backend.cuda import device as gpu

            facts = gpu.device_facts(call.device[1] if call.device else 0)
        except Exception as error:
            raise ArgumentError(
                "there is no GPU here, so arch= is needed.", function=self.name, try_='arch="sm_90"'
            ) from error
        return options.target(facts.arch), facts.limits

    def inspect(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Report:
        """The receipt of a call; see `cuplate.typing.Specialized.inspect`."""
        call, plan, content, limits, variants = self._described(args, kwargs, arch)
        obtained = variants.obtain(content)
        if plan.grid is not None:
            shared = obtained.cubin.resources.static_shared_bytes or 0
            check_grid(plan.grid, limits, static_shared_bytes=shared, kernel=obtained.cubin.entry, function=self.name)
        return Report(
            function=self.name,
            called_as=call.called_as(self.name),
            source=content.source.text,
            options=variants.binding.options.canonical(),
            arch=content.arch,
            key=content.key.hex,
            ingredients=content.key.ingredients,
            cubin=obtained.cubin,
            origin=obtained.origin,
            lookup_s=obtained.lookup_s,
            compile_s=obtained.compile_s,
            store_s=obtained.store_s,
            grid=plan.grid,
            block=plan.specialization.block,
            make_ptx=content.ptx,
        )

    def compile(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Cubin:
        """The cubin of a call; see `cuplate.typing.Specialized.compile`."""
        _, _, content, _, variants = self._described(args, kwargs, arch)
        return variants.obtain(content).cubin

    def explain(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """Why a call is a hit or a miss; see `cuplate.typing.Specialized.explain`."""
        _, _, content, _, variants = self._described(args, kwargs, arch)
        return f"{self.name}: {variants.nearest(content)}"
