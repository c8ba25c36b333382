"""The hot path of one function: the generated code, the plans it looks in, and which calls it may take."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from cuplate import events
from cuplate.arguments import packed_strides, product
from cuplate.binding import Binding
from cuplate.cache.counts import HitCounter
from cuplate.cache.memory import Entry, next_tick
from cuplate.call import Call
from cuplate.choice import Choice
from cuplate.dispatch import (
    MISSING,
    RunnerShape,
    dispatcher,
    key_function,
    plan_values,
    pointed,
    repeatable,
    runner,
    same_call,
)
from cuplate.dtypes import DTYPES
from cuplate.idiom import CUPY, IDIOMS, TORCH, Idiom
from cuplate.parameters import parameter_key
from cuplate.plan import FRESH_ALIGNMENT, Plan, Recipe

__all__ = ["HotPath"]

PLANS = 4096  # dropped whole at the limit: a plan costs microseconds to make again
REPEATS = 1024  # likewise


class HotPath:
    """The function that users call, and the plans that its generated code finds by one dictionary look-up.

    Parameters
    ----------
    binding : Binding
    counter : HitCounter
    cold : callable
        Takes every call that the hot path does not.
    module : str
        Name of the module that decorates.
    choice : Choice
        The variants among which a plan has chosen: the key holds the facts that any of them asks.
    """

    def __init__(self, choice: Choice, counter: HitCounter, cold: Any, encoders: dict[str, Any], module: str) -> None:
        binding = choice.own.binding
        self.binding = binding
        self._facts, self._asked = choice.facts, choice.asked
        self.signature = binding.signature
        self.plans: dict[Any, tuple[Any, ...]] = {}
        self.repeats: dict[int, tuple[Any, ...]] = {}
        self._seen: dict[int, int] = {}  # calls by the same key, counted to two
        self._lock = threading.Lock()
        self._several = False
        self._idioms: frozenset[Idiom] = frozenset()  # of the libraries whose arrays have been passed
        self._keys: dict[Idiom, Any] = {}  # functions that make a plan key
        self._runners: dict[tuple[Idiom, RunnerShape], Any] = {}
        self._shapes: dict[Any, RunnerShape] = {}  # by runner
        self._namespace: dict[str, Any] = {
            "__name__": module,
            "_plans": self.plans,
            "_repeats": self.repeats,
            "_seen": self._seen,
            "_seen_limit": REPEATS,
            "_forget_repeats": self._forget_repeats,
            "_note": self._note,
            "_cold": cold,
            "_listeners": events.listeners,
            "_value_key": parameter_key,
            "_hits": counter,
            "_next_tick": next_tick,
            "_result_type": self.signature.result_type,
            **{f"_encode_{name}": encode for name, encode in encoders.items()},
        }
        self.function: FunctionType = dispatcher(self.signature, self._namespace, asked=self._asked)

    def offer(
        self,
        gpu: Any,
        binding: Binding,
        call: Call,
        plan: Plan,
        recipes: tuple[Recipe, ...],
        entry: Entry[Any],
        config: Any,
    ) -> None:
        """Let the hot path take the next call like this one, if its key says all about it.

        Parameters
        ----------
        gpu : module
            ``cuplate.backend.cuda.device``.
        binding, call, plan, recipes, entry, config
            A call that has just been launched, and how.
        """
        idiom = self._idiom(call)
        if idiom is None:
            return
        with self._lock:
            if binding is not self.binding:
                return  # the template was read again while this call was under way
            if not self._equip(gpu, call.owner, idiom):
                return
            assert call.device is not None
            if self._several and self._namespace[idiom.current_device]() != call.device[1]:
                return
            self._remember(call, plan, recipes, entry, config, idiom)
        if entry.value.evicted:  # by another thread, before the plan was there to be forgotten
            self.forget(entry)

    def rebind(self, choice: Choice) -> None:
        """Follow a template that was read again: it may ask for other facts, so the key may be another."""
        with self._lock:
            self.binding, self._facts = choice.own.binding, choice.facts
            self._idioms = frozenset()
            self._runners.clear()
            self._shapes.clear()
            self.clear()

    def _remember(
        self, call: Call, plan: Plan, recipes: tuple[Recipe, ...], entry: Entry[Any], config: Any, idiom: Idiom
    ) -> None:
        shape = self._shape(call, plan, recipes)
        run = self._runners.get((idiom, shape))
        if run is None:
            known = pointed(self.signature, self._aligned())
            run = runner(
                self.signature, shape, self._namespace, known=known, several_devices=self._several, idiom=idiom
            )
            if idiom is TORCH:
                self._namespace["_untraced"](run.__code__)
            self._runners[idiom, shape] = run
            self._shapes[run] = shape
        names = (*(a.name for a in self.signature.arguments), *(p.name for p in self.signature.parameters))
        left_out = self._asked - call.given
        values = [MISSING if n in left_out else call.values[n] for n in names]
        key = self._keys[idiom](*values, call.values["out"])
        first = call.values[self.signature.arrays[0].name]  # of the arrays: a scalar may stand before it
        head = (run, entry, config, entry.value.kernel, type(first))
        if len(self.plans) >= PLANS:
            self.plans.clear()
        self.plans[key] = plan_values(shape, head, recipes, self._sized(call, plan, idiom))

    def forget(self, entry: Entry[Any]) -> None:
        """Drop every plan that leads to `entry`."""
        for key, plan in list(self.plans.items()):
            if plan[1] is entry:
                self.plans.pop(key, None)
        self._forget_repeats()

    def clear(self) -> None:
        """Drop every plan."""
        self.plans.clear()
        self._forget_repeats()

    def _forget_repeats(self) -> None:
        self._seen.clear()
        self.repeats.clear()

    def _note(
        self, key: int, plan: tuple[Any, ...], arrays: tuple[Any, ...], out: Any, parameters: tuple[Any, ...]
    ) -> None:
        """Record a call, if nothing but a launch would be done at the next of its kind."""
        with self._lock:
            shape = self._shapes.get(plan[0])  # None: the template has been read again since this call began
            mapped = shape is not None and any(kind == "map" for kind, _ in shape.recipes)
            if shape is not None and not (shape.zeroed or shape.scratch or mapped):
                self.repeats[key] = self._record(shape, plan, arrays, out, parameters)
        if plan[1].value.evicted:  # by another thread, before the record was there to be forgotten
            self._forget_repeats()

    def _record(
        self, shape: RunnerShape, plan: tuple[Any, ...], arrays: Sequence[Any], out: Any, parameters: Sequence[Any]
    ) -> tuple[Any, ...]:
        """What a repeat compares (`same_call`), then what it launches, and how to make its output."""
        _, entry, config, kernel, _, *rest = plan
        integers = iter(rest)
        pointers = {a.name: v.data.ptr for a, v in zip(self.signature.arrays, arrays, strict=True) if v is not None}
        values = [next(integers) if kind == "int" else pointers.get(name) for kind, name in shape.recipes]
        before, pointer, after, make_out = values, None, [], None
        if shape.outputs:
            place = next(i for i, (_, name) in enumerate(shape.recipes) if name == shape.outputs[0])
            before, after = values[:place], values[place + 1 :]
            pointer = None if out is None else out.data.ptr
            make_out = (next(integers), next(integers))  # shape and dtype follow the integers, see plan_values
        same = same_call(self.signature, arrays, out, parameters)
        device = self._namespace["_current_device"]() if self._several else None
        return (*same, device, entry, config, kernel, tuple(before), pointer, tuple(after), make_out)

    def _idiom(self, call: Call) -> Idiom | None:
        """Whose idiom says all about this call: packed arrays of one library."""
        arrays = self.signature.arrays
        if not arrays or arrays[0].optional or call.owner is None:
            return None
        if any(a is not None and a.size == 0 for a in call.arrays.values()):
            return None  # CuPy's key says nothing of an empty array's other axes
        outputs = {o.name for o in self.signature.outputs}
        if any(name in outputs and size > FRESH_ALIGNMENT for name, size in self._aligned()):
            return None
        layouts = {name: a.order for name, a in call.arrays.items() if a is not None}
        if any(order != "C" and not (order == "F" and name in self._ordered()) for name, order in layouts.items()):
            return None
        given = [call.values[a.name] for a in arrays if call.arrays[a.name] is not None] + list(call.outputs.values())
        owner: Any = call.owner
        idiom = IDIOMS.get(owner.name)
        return idiom if idiom is not None and all(map(owner.is_plain, given)) else None

    def _equip(self, gpu: Any, owner: Any, idiom: Idiom) -> bool:
        """Give the generated code the names that exist only with a library and a driver; once, under the lock.

        False where this version of the library lacks one of them.
        """
        if idiom in self._idioms:
            return True
        names = owner.generated()
        if names is None:
            return False
        self._several = gpu.device_count() > 1
        launch = gpu.launch_packed if self.signature.has_structs else gpu.launch
        self._namespace.update(
            names, _launch=launch, _streams=gpu.streams, _wrap_stream=gpu.stream_of, _keep=_keep, _zero=gpu.zero
        )
        aligned, several = self._aligned(), self._several
        ordered = self._ordered()
        self._keys[idiom] = key_function(
            self.signature, self._namespace, aligned, several_devices=several, ordered=ordered, idiom=idiom
        )
        known = self._idioms | {idiom}
        code = dispatcher(
            self.signature,
            self._namespace,
            aligned,
            several_devices=several,
            repeats=CUPY in known and repeatable(self.signature),
            asked=self._asked,
            ordered=ordered,
            idioms=tuple(known),
        ).__code__
        if TORCH in known:
            self._namespace["_untraced"](code)
        self.function.__code__ = code
        self._idioms = known
        return True

    def _aligned(self) -> tuple[tuple[str, int], ...]:
        """The alignments that are asked, of outputs too."""
        names = {a.name for a in (*self.signature.arrays, *self.signature.outputs)}
        return tuple(
            sorted((f.array, f.value) for f in self._facts if f.name == "aligned" and f.value and f.array in names)
        )

    def _ordered(self) -> frozenset[str]:
        """Array arguments whose order is asked, and which may lie by columns too."""
        return frozenset(f.array for f in self._facts if f.name == "order") & {a.name for a in self.signature.arrays}

    def _shape(self, call: Call, plan: Plan, recipes: tuple[Recipe, ...]) -> RunnerShape:
        return RunnerShape(
            recipes=tuple((r.kind, r.name) for r in recipes),
            outputs=tuple(o.name for o in self.signature.outputs),
            output_ndim=len(plan.outputs[0][1]) if plan.outputs else 0,
            zeroed=plan.zeroed,
            scratch=tuple(name for name, _, _ in plan.scratch),
            present=tuple(a.name for a in self.signature.arrays if call.arrays[a.name] is not None),
            written=tuple(n for n in self.binding.mutates if call.arrays[n] is not None),
            pairs=tuple((n, DTYPES[d].itemsize) for n, d in call.solved.dtypes.items() if d.startswith("complex")),
        )

    def _sized(self, call: Call, plan: Plan, idiom: Idiom) -> dict[str, tuple[Any, ...]]:
        owner: Any = call.owner
        sized: dict[str, tuple[Any, ...]] = {
            n: (a.shape, None, a.size * a.itemsize) for n, a in call.arrays.items() if a is not None
        }
        for name, shape, dtype in (*plan.outputs, *((n, (size,), d) for n, size, d in plan.scratch)):
            facts = (shape, owner.dtype(dtype), product(shape) * DTYPES[dtype].itemsize)
            sized[name] = (*facts, packed_strides(shape)) if idiom is TORCH else facts
        return sized


def _keep(entry: Entry[Any], *scratch: Any) -> None:
    entry.value.keep(*scratch)
