"""One specialized function: takes a call through the rooms, and remembers what it met on the way."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuplate import cache, config, debug, events
from cuplate.arguments import product
from cuplate.backend import owners
from cuplate.binding import Binding, read_binding
from cuplate.cache.counts import HitCounter
from cuplate.cache.memory import Entry, next_tick
from cuplate.cache.stats import CacheInfo
from cuplate.call import Call, check_call
from cuplate.choice import Choice, Chosen
from cuplate.compile import Flights
from cuplate.content import Content
from cuplate.cxx import MAP_BYTES
from cuplate.dispatch import MISSING
from cuplate.encode import encoder
from cuplate.errors import (
    ArgumentError,
    CaptureError,
    CompileError,
    DeviceError,
    FrozenCacheError,
    LaunchError,
    ManifestError,
)
from cuplate.grid import Grid, Limits
from cuplate.grid import check as check_grid
from cuplate.hostpath import HostPath
from cuplate.hotpath import PLANS, HotPath
from cuplate.indices import check_indices
from cuplate.inspection import Inspection
from cuplate.parameters import check_defaults, parameter_key
from cuplate.plan import Plan, Recipe, make_recipes
from cuplate.signature import Signature
from cuplate.specialization import Fact, Specialization
from cuplate.variants import Variants
from cuplate.verdict import raise_found, raise_stopped
from cuplate.wanted import Used, find_object, missing, used

if TYPE_CHECKING:
    from cuplate.autotune.settle import Settler
    from cuplate.autotune.tuned import Tuned
    from cuplate.autotune.tuner import Tuner
    from cuplate.backend.cpu.device import Target

__all__ = ["Walk", "find_walk", "live_walks", "recorders"]

POINTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan whose kernel is loaded: what a launch needs besides the arrays."""

    plan: Plan
    recipes: tuple[Recipe, ...]
    entry: Entry[Any]
    config: Any
    content: Content
    written: frozenset[str]  # names of arrays, scratch too
    told: Mapping[str, Any]  # what events say beside the function: which variant runs
    used: Used  # what a manifest says of it
    kept: bool = True  # False: not to be remembered, as a tuning is still to come


class Walk:
    """Everything that one decorated function knows; its public face is the function in `function`.

    Parameters
    ----------
    signature : Signature
    reference : function
        As written by the user.
    template : str, Path or Inline
    anchor : Path or None
        Folder of the file that decorates.
    keywords : mapping
        Of `specialize`.
    others : sequence of Walk
        The functions of ``variants=``.
    """

    def __init__(
        self,
        signature: Signature,
        reference: Any,
        template: Any,
        anchor: Path | None,
        keywords: Mapping[str, Any],
        others: Sequence[Walk] = (),
    ) -> None:
        self.signature = signature
        self.name = signature.function
        self.reference = f"{reference.__module__}:{reference.__qualname__}"
        self._declared = (template, anchor, keywords)
        self._others = tuple(others)
        self._names = (
            *(a.name for a in signature.arguments), *(p.name for p in signature.parameters), "out", "stream"
        )  # fmt: skip
        self.counter = HitCounter.of_function()
        self.choice = self._chosen_among(self.read(), [other.variants.binding for other in self._others])
        self.inspection = Inspection(self.choice, self.reference, self.tuner)
        check_defaults(signature)
        self._encoders = {s.name: encoder(s, self.name) for s in signature.scalars}
        self.hot = HotPath(self.choice, self.counter, self.cold, self._encoders, reference.__module__)
        self._ready: dict[Any, Ready] = {}  # plans of the calls that the hot path does not take
        self._host = HostPath(self.choice, self._encoders)
        self._untraced: Callable[..., Any] | None = None
        self._has_dropped = False  # whether plans have been dropped whole, whose specializations are used all the same
        _walks.add(self)
        self._reference = reference
        self._settler: Settler | None = None

    @property
    def others(self) -> tuple[Walk, ...]:
        """The functions of ``variants=``."""
        return self._others

    @property
    def variants(self) -> Variants:
        """What the function's own template has been rendered to."""
        return self.choice.own

    def _fresh_choice(self) -> Choice:
        """The decoration with its templates as they are now, and nothing rendered yet."""
        return self._chosen_among(self.read(), [other.read() for other in self._others])

    def _chosen_among(self, own: Binding, others: Sequence[Binding]) -> Choice:
        policy = self._declared[2]["policy"]
        return Choice(Variants(own, self.counter, policy), [Variants(b, self.counter, policy) for b in others])

    def read(self) -> Binding:
        """The decoration, with the template as it is now."""
        template, anchor, keywords = self._declared
        return read_binding(self.signature, template, anchor=anchor, keywords=keywords)

    # a call -----------------------------------------------------------------------------------------------------------

    def cold(self, more: Sequence[Any], unknown: Mapping[str, Any], *given: Any) -> Any:
        """Any call that the hot path does not take: checked from the ground up, then planned, compiled and launched."""
        if "torch._dynamo" in sys.modules:
            if self._untraced is None:
                self._untraced = owners.untraced(self._cold)
            return self._untraced(more, unknown, *given)
        return self._cold(more, unknown, *given)

    def _cold(self, more: Sequence[Any], unknown: Mapping[str, Any], *given: Any) -> Any:
        choice = self.choice  # one template for the whole call, whatever reload() does meanwhile
        values = self._by_name(given)
        if self._host.plans and not (more or unknown):
            result = self._again_on_host(choice, values)
            if result is not MISSING:
                return result
        call = self.checked(choice, values, more, unknown)
        assert call.device is not None
        if call.device[0] == "cpu":
            return self._on_host(choice, call, values)
        pointer = self.stream_of(call, call.device[1])
        if debug.checking():
            choice = choice.debugged()
            self._check_before(call, pointer)
        self.wait_for_exports(call, pointer)
        own_stream = call.values.get("stream") is not None
        ready = self._find_ready(choice, call, pointer)
        return self._launch(choice, call, ready, pointer, own_stream=own_stream)

    def checked(
        self, choice: Choice, values: Mapping[str, Any], more: Sequence[Any], unknown: Mapping[str, Any]
    ) -> Call:
        """A call that can be launched, as far as that can be told without a compiler."""
        call = check_call(choice.own.binding, values, more, unknown, layouts=not choice.others)
        for name, encode in self._encoders.items():
            encode(call.values[name])  # a wrong scalar is refused before anything is compiled, or zeroed
        if call.device is None or call.owner is None:
            raise ArgumentError(
                "there is no array to launch on.",
                function=self.name,
                try_="out=" if not self.signature.arrays else "real arrays: an ArraySpec is for inspect and compile",
            )
        described = [n for n, a in call.arrays.items() if a is not None and a.device is None]
        if described:
            raise ArgumentError(
                f"array {described[0]!r} is only described, among real arrays.",
                function=self.name,
                try_="a real array: an ArraySpec is for inspect and compile",
            )
        if call.device[0] not in ("cpu", "cuda"):
            raise DeviceError(
                f"the arrays are on a device of kind {call.device[0]!r}.",
                function=self.name,
                given=", ".join(n for n, a in call.arrays.items() if a is not None),
                allowed="arrays on one GPU, or in host memory",
            )
        return call

    def stream_of(self, call: Call, device: int) -> int:
        """Pointer of the stream to launch on: the given one, or the one on which all arrays are in order.

        Raises
        ------
        DeviceError
            The arrays' libraries disagree, so that no single stream keeps the order; or the given one is another GPU's.
        """
        stream = call.values.get("stream")
        if stream is not None:
            return self._given_stream(owners.stream_pointer(stream, self.name), device)
        current = {n: a.stream for n, a in call.arrays.items() if a is not None and a.stream is not None}
        current |= {o.name: o.current_stream(device) for o in call.owners if o.has_current_stream}
        pointers = {0 if pointer == owners.LEGACY_STREAM else pointer for pointer in current.values()}
        if len(pointers) > 1:
            raise DeviceError(
                "the arrays' libraries have different current streams.",
                function=self.name,
                given=", ".join(f"{name}: {pointer:#x}" for name, pointer in current.items()),
                try_="stream=, after making it wait for the others",
            )
        return pointers.pop() if pointers else 0

    def wait_for_exports(self, call: Call, pointer: int) -> None:
        """Put the launch stream behind the streams of exported arrays, which only their exporters know."""
        for name, array in call.arrays.items():
            if array is not None and array.view is not None:
                from cuplate.backend.cuda import views

                views.order(call.outputs[name] if name in call.outputs else call.values[name], pointer)

    def _given_stream(self, pointer: int, device: int) -> int:
        from cuplate.backend.cuda import device as gpu

        if gpu.device_count() > 1:
            own = gpu.device_of_stream(pointer)
            if own not in (None, device):
                raise DeviceError(
                    "the stream belongs to another device than the arrays.",
                    function=self.name,
                    given=f"stream= of cuda {own}, arrays on cuda {device}",
                    allowed=f"a stream of cuda {device}",
                )
        return 0 if pointer == owners.LEGACY_STREAM else pointer

    def _check_before(self, call: Call, pointer: int) -> None:
        from cuplate.backend.cuda import device as gpu

        assert call.device is not None
        with gpu.run_on(call.device[1]):
            if not (gpu.is_capturing(pointer) or gpu.joins_capture(pointer)):
                debug.check_before(gpu, pointer, self.name, call.called_as(self.name))

    def _by_name(self, given: Sequence[Any]) -> dict[str, Any]:
        return {name: value for name, value in zip(self._names, given, strict=True) if value is not MISSING}

    # from a call to a loaded kernel -----------------------------------------------------------------------------------

    def _find_ready(self, choice: Choice, call: Call, stream: int, target: Target | None = None) -> Ready | None:
        """The plan of a call with its kernel loaded; None when there is nothing to launch."""
        key = choice, target, *self._ready_key(choice, call)
        ready = self._ready.get(key)
        if ready is None:
            try:
                ready = self._make_ready(choice, call, stream, target, key)
            except CompileError as error:  # who wrote the template has no use for our frames
                raise error.with_traceback(None) from error.__cause__
        else:
            self.counter.cell.hits += 1
            ready.entry.tick = next_tick()
            if events.heard():
                events.emit("hit", self.name, key=ready.content.key.hex, tier="memory", **ready.told)
        return ready

    def _ready_key(self, choice: Choice, call: Call) -> tuple[Any, ...]:
        aligned = [(f.array, f.value) for f in choice.facts if f.name == "aligned" and f.value]
        arrays = tuple(a and (n, a.dtype, a.shape, a.strides) for n, a in call.arrays.items())
        alignments = tuple(a.aligned(size) for n, size in aligned if (a := call.arrays.get(n)) is not None)
        parameters = tuple(parameter_key(v) for _, v in call.parameters)
        return call.device, arrays, alignments, parameters, choice.asked & call.given

    def _make_ready(self, choice: Choice, call: Call, stream: int, target: Target | None, key: Any) -> Ready | None:
        assert call.device is not None and call.owner is not None
        number = call.device[1]
        backend: Any
        if target is None:
            from cuplate.backend.cuda import device as backend

            facts = backend.device_facts(number)
        else:
            from cuplate.backend.cpu import device as backend

            facts = backend.device_facts(target.arch)
        counted = self.counter.cell.misses
        chosen = choice.plain.choose(call, arch=facts.arch, limits=facts.limits)
        variants = chosen.variants.debugged() if choice.debug else chosen.variants
        told: dict[str, Any] = {"variant": chosen.name} if choice.others else {}
        parameters, kept = chosen.parameters, True
        if chosen.candidates:
            parameters, kept = self.settler().settle(choice, call, chosen, facts, backend, stream, target)
        use = used(choice, _settled(call, chosen, parameters), chosen.name, (facts.arch, facts.limits))
        called_as = call.called_as(self.name)
        plan = choice.plan(chosen, variants, parameters, arch=facts.arch, limits=facts.limits, called_as=called_as)
        if plan.empty:
            return None
        assert plan.grid is not None
        if target is not None:
            backend.check(plan.grid, self.name)
        content = variants.content(plan, target=target)
        check_indices(plan, content.source, content.slots, variants.binding.options)
        entry = _memory().get((content.key.digest, number))
        if entry is None and (now := variants.content(plan, target=target, current=True)) is not content:
            content, entry = now, _memory().get((now.key.digest, number))
        if entry is not None:
            events.emit("hit", self.name, key=content.key.hex, tier="memory", **told)
        else:
            if target is None:
                self._check_capture(backend, call, stream)
            try:
                entry = self._load(backend, variants, content, number, told)
            except FrozenCacheError as error:
                raise missing(error, choice, use, self.reference) from None
        if self.counter.cell.misses == counted:  # nothing was rendered, and it is a miss all the same: the call walked
            self.counter.cell.misses += 1
        ready = self.finish(backend, facts.limits, number, plan, content, entry, variants, told, use=use, kept=kept)
        if not kept:
            return ready
        loaded = entry.value
        if len(self._ready) >= PLANS:
            self._ready.clear()
            self._has_dropped = True
        self._ready[key] = ready
        for recorder in (*recorders,):
            recorder(self, use, plan.specialization)
        loaded.users.add(self)
        if loaded.evicted:  # by another thread, between our look-up and this line
            self._ready.pop(key, None)
        return ready

    @property
    def packed(self) -> bool:
        """Whether an argument is a struct by value."""
        return self.signature.has_structs

    def settler(self) -> Settler:
        """What decides the parameters that calls leave open; made when one does."""
        if self._settler is None:
            from cuplate.autotune.settle import Settler

            self._settler = Settler(self, self._reference)
        return self._settler

    def tuner(self) -> Tuner:
        """What the function knows of its winners."""
        return self.settler().tuner

    def tune(self, *args: Any, executor: Any = None, sets: int | None = None, **kwargs: Any) -> Tuned:
        """Measure the candidates for a call; see `cuplate.typing.Specialized.tune`."""
        return self.settler().tune(args, kwargs, executor, sets)

    def forget_plans(self) -> None:
        """Drop every plan; kernels stay loaded."""
        self.hot.clear()
        self._host.plans.clear()
        self._ready.clear()

    def _called_as(self, call: Call, ready: Ready) -> str:
        """The call in one line, with what was chosen for it."""
        if self.choice.tuned and ready.told.get("variant", self.name) == self.name:
            call = replace(call, parameters=ready.plan.specialization.parameters)
        return call.called_as(self.name)

    # a loaded kernel --------------------------------------------------------------------------------------------------

    def finish(
        self,
        backend: Any,
        limits: Limits,
        number: int,
        plan: Plan,
        content: Content,
        entry: Entry[Any],
        variants: Variants,
        told: Mapping[str, Any],
        *,
        use: Any = None,
        kept: bool = True,
    ) -> Ready:
        """A loaded kernel, checked against its plan.

        Raises
        ------
        LaunchError
        """
        assert plan.grid is not None
        tables = {name: (layout.memory, backend.descriptors(layout)) for name, layout in plan.maps.items()}
        recipes = make_recipes(content.slots, plan.integers, tables)
        with backend.run_on(number):  # the driver answers about a kernel only in a thread that has a context
            self._check_loaded(plan, recipes, entry.value, limits)
            prepared = backend.prepare(plan.grid, entry.value)
            if plan.grid.cooperative:
                self._check_resident(plan.grid, backend.resident_blocks(entry.value, plan.grid))
        return Ready(plan, recipes, entry, prepared, content, variants.binding.written, told, use, kept)

    def _check_capture(self, gpu: Any, call: Call, stream: int) -> None:
        """Refuse to compile or load inside a graph capture, before anything that is forbidden there."""
        if gpu.is_capturing(stream):
            raise CaptureError(
                "the first call of a specialization came inside a graph capture, where nothing may be compiled or "
                "loaded.",
                function=self.name,
                called_as=call.called_as(self.name),
                try_="call it once with these parameters before the capture begins",
            )
        assert call.device is not None
        with gpu.run_on(call.device[1]):
            joins = gpu.joins_capture(stream)
        if joins:
            raise CaptureError(
                "the call would run on the default stream while another stream that waits for it is captured.",
                function=self.name,
                called_as=call.called_as(self.name),
                try_="with stream: around the call, or stream=; and one such call before the capture begins",
            )

    def _load(
        self, backend: Any, variants: Variants, content: Content, number: int, told: Mapping[str, Any]
    ) -> Entry[Any]:
        """The loaded kernel, from the cubin that disk or compiler gives; once for all threads that want it now."""
        events.emit("miss", self.name, key=content.key.hex, tier="memory", **told)
        key = (content.key.digest, number)

        def load() -> Entry[Any]:
            entry = _memory().get(key, again=True)
            if entry is None:  # else another thread has landed since this one looked
                loaded, seconds = variants.load(content, lambda cubin: backend.load(cubin, number))
                entry = _memory().put(key, loaded)
                events.emit("load", self.name, key=content.key.hex, seconds=seconds, device=number, **told)
            return entry

        return _loads.run(key, load)[0]

    def _check_loaded(self, plan: Plan, recipes: tuple[Recipe, ...], loaded: Any, limits: Any) -> None:
        """What only the loaded kernel knows: registers, static shared memory, and the width of its parameters."""
        assert plan.grid is not None
        check_grid(
            plan.grid,
            limits,
            static_shared_bytes=loaded.static_shared_bytes,
            kernel_threads=loaded.threads_per_block,
            registers=loaded.registers,
            kernel=loaded.cubin.entry,
            function=self.name,
        )
        sizes = loaded.argument_bytes
        if len(sizes) != len(recipes):
            raise LaunchError(
                f"the loaded kernel takes {len(sizes)} arguments, and a call passes {len(recipes)}.",
                function=self.name,
                given=", ".join(r.name for r in recipes),
            )
        passed = {s.name: s.itemsize for s in self.signature.scalars}
        for recipe, size in zip(recipes, sizes, strict=True):
            by_kind = {"int": size, "map": MAP_BYTES}
            wanted = by_kind.get(recipe.kind, passed.get(recipe.name, POINTER_BYTES))
            if size != wanted:
                raise LaunchError(
                    f"the loaded kernel takes {size} bytes for {recipe.name!r}, and a call passes {wanted}.",
                    function=self.name,
                )
            if recipe.kind == "int" and not -(1 << 8 * size - 1) <= recipe.value < 1 << 8 * size - 1:
                raise LaunchError(
                    f"{recipe.name} = {recipe.value} does not fit the kernel's {8 * size}-bit parameter.",
                    function=self.name,
                    try_="index_t, or a 64-bit integer in the kernel's own list",
                )

    def _check_resident(self, grid: Grid, capacity: int) -> None:
        blocks = product(grid.grid)
        if blocks > capacity:
            raise LaunchError(
                f"a cooperative grid of {blocks} blocks cannot be resident at once.",
                function=self.name,
                given=f"grid {grid.grid}, block {grid.block}",
                allowed=f"{capacity} blocks of this kernel on this device",
                try_="grid= with sm_count and a loop in the kernel",
            )

    # launch -----------------------------------------------------------------------------------------------------------

    def _launch(self, choice: Choice, call: Call, ready: Ready | None, pointer: int, *, own_stream: bool) -> Any:
        from cuplate.backend.cuda import device as gpu

        assert call.owner is not None and call.device is not None
        order = pointer if own_stream else None
        outputs = self._outputs(call, call.device[1], order)
        if ready is not None:
            self._run(gpu, call, ready, outputs, pointer, order, checked=choice.debug)
            self._wrote(choice.own, call)
            if not ready.kept:
                return self._result(outputs)
            self.hot.offer(gpu, choice.own.binding, call, ready.plan, ready.recipes, ready.entry, ready.config)
        return self._result(outputs)

    def _wrote(self, variants: Variants, call: Call) -> None:
        """Tell the libraries which of the caller's arrays a kernel writes."""
        for name in variants.binding.written:
            if call.arrays.get(name) is not None:
                value = call.outputs[name] if name in call.outputs else call.values[name]
                owners.find_owner(name, value, self.name).wrote(value)

    def _outputs(self, call: Call, device: int, order: int | None) -> dict[str, Any]:
        """The given outputs, and fresh ones for the others."""
        assert call.owner is not None
        outputs = dict(call.outputs)
        for output in self.signature.outputs:
            if output.name not in outputs:
                shape, dtype = call.solved.output_shapes[output.name], call.solved.dtypes[output.name]
                outputs[output.name] = call.owner.empty(shape, dtype, device, order)
        return outputs

    def _result(self, outputs: Mapping[str, Any]) -> Any:
        values = [outputs[o.name] for o in self.signature.outputs]
        if self.signature.result_type is not None:
            return self.signature.result_type(*values)
        return values[0] if values else None

    def _run(
        self,
        gpu: Any,
        call: Call,
        ready: Ready,
        outputs: Mapping[str, Any],
        pointer: int,
        order: int | None,
        *,
        checked: bool,
    ) -> None:
        assert call.owner is not None and call.device is not None
        number, owner = call.device[1], call.owner
        pointers = {n: a.pointer for n, a in call.arrays.items() if a is not None}
        bytes_of = {n: a.size * a.itemsize for n, a in call.arrays.items() if a is not None}
        kept = []  # scratch lives until the launch is enqueued; its memory is reused in stream order
        fresh = [(n, v) for n, v in outputs.items() if n not in pointers]
        for name, size, dtype in ready.plan.scratch:
            kept.append(owner.empty((size,), dtype, number, order))
            fresh.append((name, kept[-1]))
        for name, value in fresh:
            described = owner.describe(name, value, self.name)
            pointers[name], bytes_of[name] = described.pointer, described.size * described.itemsize
        stream = gpu.stream_of(pointer)
        capturing = gpu.is_capturing(pointer)
        if capturing:
            ready.entry.value.keep(*kept)
        with gpu.run_on(number):
            values = [self.value_of(r, pointers, call.values) for r in ready.recipes]
            for name in ready.plan.zeroed:
                gpu.zero(pointers[name], bytes_of[name], stream)
            try:
                launch = gpu.launch_packed if self.signature.has_structs else gpu.launch
                launch(stream, ready.config, ready.entry.value.kernel, *values)
            except Exception as error:
                raise LaunchError(
                    f"the launch was refused: {error}",
                    function=self.name,
                    called_as=self._called_as(call, ready),
                    grid=ready.plan.grid.grid if ready.plan.grid else None,
                    block=ready.plan.grid.block if ready.plan.grid else None,
                ) from error
            if views := [a.view for a in call.arrays.values() if a is not None and a.view is not None]:
                from cuplate.backend.cuda.views import hold

                hold(views, stream, capturing=capturing)
            if checked and not capturing and (found := gpu.wait(stream)) is not None:
                raise debug.fault(found, ready.content, ready.plan.grid, self._called_as(call, ready))
        if order is not None:
            self._record(call, order)
        if events.heard():
            events.emit("launch", self.name, key=ready.content.key.hex, device=number, **ready.told)

    def _record(self, call: Call, stream: int) -> None:
        """Tell the given arrays' libraries of a stream that is not their current one; fresh arrays belong to it."""
        assert call.device is not None
        for name, described in call.arrays.items():
            if described is not None:
                array = call.outputs.get(name, call.values.get(name))
                owner = owners.find_owner(name, array, self.name)
                if owner.has_current_stream and owner.current_stream(call.device[1]) != stream:
                    owner.record(array, call.values["stream"])

    def value_of(self, recipe: Recipe, pointers: Mapping[str, int], values: Mapping[str, Any]) -> Any:
        """One argument of a launch on a GPU."""
        if recipe.kind == "array":
            return pointers[recipe.name]
        if recipe.kind == "map":
            return recipe.value[pointers[recipe.name]]
        if recipe.kind == "scalar":
            return self._encoders[recipe.name](values[recipe.name])
        return recipe.value

    # host memory ------------------------------------------------------------------------------------------------------

    def _on_host(self, choice: Choice, call: Call, given: Mapping[str, Any]) -> Any:
        """A call whose arrays are in host memory: the same rooms, with the CPU backend at the end."""
        from cuplate.backend.cpu import device as cpu

        if call.values.get("stream") is not None:
            raise ArgumentError("stream= has no meaning for arrays in host memory.", function=self.name)
        settings = config.cpu_settings()
        target = cpu.target(settings, again=True)
        assert call.owner is not None
        ready = self._find_ready(choice, call, 0, target)
        outputs = self._outputs(call, owners.HOST, None)
        if ready is not None:
            scratch = {n: call.owner.empty((size,), d, owners.HOST, None) for n, size, d in ready.plan.scratch}
            values = self.host_values(call, ready, outputs, scratch, choice.facts)
            self._wrote(choice.own, call)  # before: an error may come when much is written
            self.run_on_host(ready, values, settings, lambda: self._called_as(call, ready), scratch)
            self._told_on_host(ready)
            key = self._host.key(given, target) if choice is self.choice and ready.kept else None
            if key is not None:
                self._host.offer(key, call, ready, values)
            if ready.entry.value.evicted:  # by another thread, before the plan was there to be forgotten
                self._host.forget(ready.entry)
        return self._result(outputs)

    def _again_on_host(self, choice: Choice, values: Mapping[str, Any]) -> Any:
        """A call of a kind that has run before; `MISSING` when it has to take the whole walk."""
        from cuplate.backend.cpu import device as cpu

        settings = config.cpu_settings()
        key = self._host.key(values, cpu.target(settings))
        plan = self._host.find(key)
        if plan is None:
            return MISSING
        outputs = {o.name: values["out"] for o in self.signature.outputs}
        for name, shape, dtype in plan.outputs:
            outputs[name] = plan.owner.empty(shape, dtype, owners.HOST, None)
        given = self._host.arguments(plan, {**values, **outputs}, values)
        if given is None:
            return MISSING
        self.counter.cell.hits += 1
        plan.ready.entry.tick = next_tick()
        if events.heard():
            events.emit("hit", self.name, key=plan.ready.content.key.hex, tier="memory", **plan.ready.told)

        def called_as() -> str:
            return self._called_as(check_call(choice.own.binding, values, (), {}), plan.ready)

        self.run_on_host(plan.ready, given, settings, called_as)
        self._told_on_host(plan.ready)
        return self._result(outputs)

    def run_on_host(
        self,
        ready: Ready,
        values: Sequence[Any],
        settings: config.Settings,
        called_as: Callable[[], str],
        scratch: Collection[str] = (),
    ) -> None:
        """Launch on the CPU backend, and raise what it found."""
        try:
            reports = ready.entry.value.run(ready.config, values, settings)
        except Exception as error:
            raise_stopped(error, ready.content, called_as)
        if reports and (left := [r for r in reports if r.kind != "never written" or r.array not in scratch]):
            raise_found(left, ready.content, called_as)

    def _told_on_host(self, ready: Ready) -> None:
        if events.heard():
            events.emit("launch", self.name, key=ready.content.key.hex, device="cpu", **ready.told)

    def host_values(
        self,
        call: Call,
        ready: Ready,
        outputs: Mapping[str, Any],
        scratch: Mapping[str, Any],
        facts: Collection[Fact],
    ) -> list[Any]:
        """The kernel's arguments for the CPU backend, zeroed where they are to be."""
        from cuplate.backend.cpu import device as cpu

        assert call.owner is not None
        arrays = {n: a for n, a in call.arrays.items() if a is not None}
        for name, value in (*outputs.items(), *scratch.items()):
            if name not in arrays:
                arrays[name] = call.owner.describe(name, value, self.name)
        given = {}
        asked = [(f.array, f.value) for f in facts if f.name == "aligned" and f.value]
        for name, array in arrays.items():
            low, high = array.extent()
            zeroed = name in ready.plan.zeroed
            if zeroed:
                cpu.zero(low, high - low)
            gaps = array.size * array.itemsize < high - low  # nobody has to write what lies between the elements
            given[name] = cpu.ArrayArgument(
                name=name,
                pointer=low,
                offset_bytes=array.pointer - low,
                size_bytes=high - low,
                itemsize=array.itemsize,
                shape=array.shape or (),
                dtype=array.dtype,
                written=name in ready.written,
                fresh=(name in outputs or name in scratch) and not zeroed and not gaps,
                alignment=max([16, *(size for n, size in asked if n == name and array.aligned(size))]),
            )
        return [given[r.name] if r.kind == "array" else self.value_of(r, {}, call.values) for r in ready.recipes]

    # recording --------------------------------------------------------------------------------------------------------

    def in_use(self) -> list[tuple[Used, Specialization]]:
        """What the plans in memory are of; plans of which no more is known are dropped, and told of when made again."""
        if self._has_dropped:
            self.hot.clear()
            self._host.plans.clear()
        return [(ready.used, ready.plan.specialization) for ready in list(self._ready.values())]

    # forgetting -------------------------------------------------------------------------------------------------------

    def forget(self, entry: Entry[Any]) -> None:
        """Drop every plan that leads to `entry`."""
        self.hot.forget(entry)
        self._host.forget(entry)
        for key, ready in list(self._ready.items()):
            if ready.entry is entry:
                self._ready.pop(key, None)

    def cache_info(self) -> CacheInfo:
        """This function's counts, all threads together."""
        return CacheInfo(**self.counter.total(), variants=len(self.choice))

    def cache_clear(self) -> None:
        """Forget plans, renders and loaded kernels; what is on disk stays."""
        entries = {id(r.entry): r.entry for r in list(self._ready.values())}
        self.choice.clear()
        self.forget_plans()
        if self._settler is not None:
            self._settler.tuner.clear()
        for entry in entries.values():
            _memory().discard(entry.key)

    def torch_op(self, name: str) -> Any:
        """The function as an operator of torch; see `cuplate.typing.Specialized.torch_op`."""
        from cuplate.backend.custom_op import register

        return register(name, self.hot.function, self.signature, self.variants.binding.mutates)

    def reload(self) -> None:
        """Read the template again, and those of the variants; equal renders keep their cubins."""
        self.choice = self.inspection.choice = self._fresh_choice()
        self.hot.rebind(self.choice)
        self._host = HostPath(self.choice, self._encoders)
        self._ready.clear()


recorders: list[Callable[[Walk, Used, Specialization], object]] = []
"""Who is told of each plan that is made: `cuplate.record`."""

_walks: weakref.WeakSet[Walk] = weakref.WeakSet()


def live_walks() -> list[Walk]:
    """Every specialized function of the process."""
    while True:
        try:
            return list(_walks)
        except RuntimeError:  # another thread has just decorated one
            continue


def find_walk(reference: str) -> Walk:
    """The walk of the specialized function that a reference leads to.

    Parameters
    ----------
    reference : str
        ``"module:qualified.name"``; that of the program being run is not imported a second time.

    Raises
    ------
    ManifestError
        There is no such function.
    """
    found = find_object(reference)
    walk = getattr(getattr(found, "reload", None), "__self__", None)
    if not isinstance(walk, Walk):
        raise ManifestError(f"{reference} is not a specialized function.", given=f"{found!r:.60}")
    return walk


def _settled(call: Call, chosen: Chosen, parameters: tuple[tuple[str, Any], ...]) -> Call:
    """The call as if it had given what was chosen for it: what a manifest says of it."""
    space = chosen.variants.binding.space
    if space is None or not chosen.candidates or [n for n, _ in parameters] != [n for n, _ in call.parameters]:
        return call  # a variant has parameters of its own, which no call can give
    return replace(call, parameters=parameters, given=call.given | frozenset(space.names))


def _drop_plans(entry: Entry[Any]) -> None:
    if not hasattr(entry.value, "evicted"):  # the tier is public: what others keep in it is no kernel
        return
    entry.value.evicted = True
    for walk in _users(entry.value):
        walk.forget(entry)
    events.emit("evict", entry.value.cubin.function, tier="memory")


def _users(loaded: Any) -> list[Walk]:
    while True:
        try:
            return list(loaded.users)
        except RuntimeError:  # another thread has just joined them; it looks at `evicted` afterwards
            continue


_loads: Flights[Entry[Any]] = Flights()
_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_watching = threading.RLock()


def _memory() -> cache.MemoryTier[Any]:
    """The tier of loaded kernels, which tells us of every kernel it lets go."""
    tier = cache.memory_tier()
    if tier not in _watched:
        with _watching:
            if tier not in _watched:
                tier.on_evict(_drop_plans)
                _watched.add(tier)
    return tier
