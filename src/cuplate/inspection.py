"""What a call would run, told without launching it: `inspect`, `compile` and `explain` of one function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cuplate import config
from cuplate.backend.protocol import NOWHERE, DeviceFacts
from cuplate.call import Call, check_call
from cuplate.choice import Choice, Chosen
from cuplate.compile import Obtained
from cuplate.content import Content
from cuplate.cubin import HOST_ARCH, Cubin
from cuplate.encode import encoder
from cuplate.errors import ArgumentError, CompileError, FrozenCacheError
from cuplate.grid import Limits, limits_for
from cuplate.grid import check as check_grid
from cuplate.indices import check_indices
from cuplate.plan import Plan
from cuplate.report import Report
from cuplate.variants import Variants
from cuplate.wanted import Wanted, importable, missing, reduced, used

if TYPE_CHECKING:
    from cuplate.autotune.tuned import Tuned
    from cuplate.autotune.tuner import Tuner
    from cuplate.backend.cpu.device import Target

__all__ = ["Inspection"]


class _Described(NamedTuple):
    """A call that is only described, as far as no compiler is needed."""

    call: Call
    plan: Plan
    content: Content
    limits: Limits
    chosen: Chosen
    tuned: Tuned | None


class Inspection:
    """One function's answers about a call; arrays may be `ArraySpec`, dtype names, or left out, and no GPU is needed.

    Parameters
    ----------
    choice : Choice
        The function and its variants.
    reference : str
        ``"module:qualified.name"`` of the function.
    tuner : callable
        Gives what knows the function's winners.
    """

    def __init__(self, choice: Choice, reference: str, tuner: Callable[[], Tuner]) -> None:
        self.choice, self.reference, self.tuner = choice, reference, tuner
        self.signature = choice.own.binding.signature
        self.name = self.signature.function

    @property
    def variants(self) -> Variants:
        """What the function's own template has been rendered to."""
        return self.choice.own

    def named(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]:
        """Values by name, and what fits no name: positional ones too many, and unknown keywords.

        Raises
        ------
        ArgumentError
            An argument is given twice.
        """
        names = [a.name for a in self.signature.arguments]
        known = {*names, *(p.name for p in self.signature.parameters), "out", "stream"}
        given = dict(zip(names, args, strict=False))
        twice = sorted(given.keys() & kwargs.keys())
        if twice:
            raise ArgumentError(f"argument {twice[0]!r} is given twice.", function=self.name)
        given.update({k: v for k, v in kwargs.items() if k in known})
        unknown = {k: v for k, v in kwargs.items() if k not in known}
        return given, args[len(names) :], unknown

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """A described call, checked as far as no compiler is needed."""
        given, more, unknown = self.named(args, kwargs)
        choice = self.choice
        layouts = not choice.others
        call = check_call(choice.own.binding, given, more, unknown, partial=True, layouts=layouts)
        for scalar in self.signature.scalars:
            if given.get(scalar.name) is not None:  # None: left out; a value that no call takes is refused here too
                encoder(scalar, self.name)(given[scalar.name])
        return call

    def _described(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], arch: str | None) -> _Described:
        return self._planned(self._call(args, kwargs), arch)

    def _chosen(
        self, call: Call, arch: str | None, sm_count: int | None = None
    ) -> tuple[Chosen, DeviceFacts, Target | None]:
        """Which function runs a call, and where."""
        choice = self.choice
        on_host = arch == HOST_ARCH or (arch is None and call.device is not None and call.device[0] == "cpu")
        target = self._host() if on_host else None
        facts = self._facts(call, arch) if target is None else self._host_facts(target)
        if target is None and sm_count is not None:
            facts = replace(facts, limits=replace(facts.limits, sm_count=sm_count))
        return choice.choose(call, arch=facts.arch, limits=facts.limits), facts, target

    def _planned(
        self, call: Call, arch: str | None, sm_count: int | None = None, *, listed: bool = False
    ) -> _Described:
        chosen, facts, target = self._chosen(call, arch, sm_count)
        tuned = self._tuned(call, chosen, facts, target)
        parameters = chosen.parameters if tuned is None else chosen.candidates[tuned.winner]
        chosen = replace(chosen, parameters=parameters)
        if target is None and config.debugging():
            chosen = replace(chosen, variants=chosen.variants.debugged())
        variants = chosen.variants
        called_as = call.called_as(self.name)
        plan = self.choice.plan(chosen, variants, parameters, arch=facts.arch, limits=facts.limits, called_as=called_as)
        content = variants.content(plan, target=target, current=True, listed=listed)
        check_indices(plan, content.source, content.slots, variants.binding.options)
        return _Described(call, plan, content, facts.limits, chosen, tuned)

    def _tuned(self, call: Call, chosen: Chosen, facts: DeviceFacts, target: Target | None) -> Tuned | None:
        """The winner that is known for a call, or the default; None where nothing is to be chosen."""
        if not chosen.candidates:
            return None
        from cuplate.autotune.job import Job

        job = Job(self.name, call, chosen, facts, target, call.called_as(self.name))
        return self.tuner().known(job)

    def tuning(self, *args: Any, **kwargs: Any) -> Tuned:
        """What was tried for a call; see `cuplate.typing.Specialized.tuning`."""
        arch = kwargs.pop("arch", None)
        call = self._call(args, kwargs)
        chosen, facts, target = self._chosen(call, arch)
        tuned = self._tuned(call, chosen, facts, target)
        if tuned is None:
            raise ArgumentError(
                "there is nothing to tune.",
                function=self.name,
                called_as=call.called_as(self.name),
                try_="tune() as the default of a parameter, and a call that does not give it",
            )
        return tuned

    def _host(self) -> Target:
        from cuplate.backend.cpu import device as cpu

        return cpu.target(config.cpu_settings(), again=True)

    def _host_facts(self, target: Target) -> DeviceFacts:
        from cuplate.backend.cpu import device as cpu

        return cpu.device_facts(target.arch)

    def _facts(self, call: Call, arch: str | None) -> DeviceFacts:
        if arch is not None:
            return DeviceFacts(str(arch), limits_for(str(arch)), NOWHERE)
        try:
            from cuplate.backend.cuda import device as gpu

            return gpu.device_facts(call.device[1] if call.device else 0)
        except Exception as error:
            raise ArgumentError(
                "there is no GPU here, so arch= is needed.", function=self.name, try_='arch="sm_90"'
            ) from error

    def wanted(self, *args: Any, **kwargs: Any) -> Wanted:
        """What a call is of, for any architecture; see `cuplate.typing.Specialized.wanted`."""
        call = self._call(args, kwargs)
        use = used(self.choice, call, "", None)
        return reduced(self.choice, use, importable(self.reference) or self.reference)

    def prepared(self, wanted: Wanted, arch: str | None) -> tuple[Variants, Content]:
        """What a specialization of a manifest is rendered to, and by which function.

        Parameters
        ----------
        wanted : Wanted
            Of this function.
        arch : str or None
            The device's: a suffix (``"sm_90a"``) is the business of the function's options. ``"host"`` for the CPU
            backend, None for the device that is here.
        """
        names = tuple(output.name for output in self.signature.outputs)
        device = re.sub(r"(?<=\d)[af]\Z", "", arch) if arch is not None else None
        described = self._planned(self._call((), wanted.arguments(names)), device, wanted.sm_count, listed=True)
        return described.chosen.variants, described.content

    def inspect(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Report:
        """The receipt of a call; see `cuplate.typing.Specialized.inspect`."""
        described = self._described(args, kwargs, arch)
        call, plan, content, limits, chosen, tuned = described
        obtained = self._obtain(described)
        if plan.grid is not None:
            shared = obtained.cubin.resources.static_shared_bytes or 0
            check_grid(plan.grid, limits, static_shared_bytes=shared, kernel=obtained.cubin.entry, function=self.name)
        own = chosen.name == self.name
        left_out = frozenset() if own else self.choice.asked - call.given
        if own:
            call = replace(call, parameters=chosen.parameters)
        return Report(
            function=self.name,
            called_as=call.called_as(self.name, without=left_out),
            source=content.source.text,
            options=chosen.variants.binding.options.canonical(),
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
            variant=chosen.name,
            variant_parameters=chosen.parameters,
            passed_over=chosen.passed_over,
            tuned=tuned,
            make_ptx=content.ptx,
        )

    def compile(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Cubin:
        """The cubin of a call; see `cuplate.typing.Specialized.compile`."""
        return self._obtain(self._described(args, kwargs, arch)).cubin

    def explain(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """Why a call is a hit or a miss; see `cuplate.typing.Specialized.explain`."""
        described = self._described(args, kwargs, arch)
        chosen = described.chosen
        name = self.name if chosen.name == self.name else f"{self.name}, by {chosen.name}"
        return f"{name}: {chosen.variants.nearest(described.content)}"

    def _obtain(self, described: _Described) -> Obtained:
        try:
            return described.chosen.variants.obtain(described.content)
        except CompileError as error:  # who wrote the template has no use for our frames
            raise error.with_traceback(None) from error.__cause__
        except FrozenCacheError as error:
            device = f"sm_{described.limits.arch}", described.limits
            use = used(self.choice, described.call, described.chosen.name, device)
            raise missing(error, self.choice, use, self.reference) from None
