"""One specialization asked for without a call: a function by reference, its parameters, and what decides the rest.

What a call is reduced to says as little as possible. Whatever can be left out (a shape, an alignment, the number of
multiprocessors) is left out if the same is rendered without it on every known architecture; and a size that matters
gives way to a small one that renders alike. So calls that run one specialization are, with few exceptions, one value.
"""

from __future__ import annotations

import enum
import importlib
import itertools
import json
import math
import operator
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from typing import Any

from cuplate.arguments import ArraySpec, Described, packed_strides
from cuplate.call import Call, check_call
from cuplate.choice import Choice
from cuplate.cubin import HOST_ARCH
from cuplate.dtypes import DTYPES
from cuplate.errors import CuplateError, FrozenCacheError, ManifestError
from cuplate.expression import DEVICE_FACTS
from cuplate.grid import Limits, limits_for
from cuplate.parameters import parameter_key
from cuplate.plan import FRESH_ALIGNMENT, make_plan
from cuplate.specialization import Specialization

__all__ = ["Used", "Wanted", "find_object", "importable", "missing", "reduced", "rendering", "told_by_one", "used"]

_ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")  # one of each kind
_KINDS: tuple[tuple[str, Limits], ...] = (
    *((arch, limits_for(arch)) for arch in _ARCHS),
    ("sm_80", replace(limits_for("sm_80"), on_gpu=False, cluster_blocks=1)),  # the CPU backend
)
_SMALL = 64
_PAGE = 4096  # bytes: what an address is told to, so that no address gets out
_FIELDS = frozenset({"function", "parameters", "arrays", "sm_count", "variants"})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Wanted:
    """One specialization of one function, for any architecture. Equal to another that says the same.

    Attributes
    ----------
    function : str
        ``"module:qualified.name"``.
    parameters : tuple of (str, object)
        Compile-time values, checked; what a variant lacks is left out unless the caller gave it.
    arrays : tuple of (str, ArraySpec or None)
        Arguments, and outputs whose layout matters; None for an optional array that is absent.
    sm_count : int or None
        Multiprocessors, where what is rendered depends on them.
    variants : tuple of (str, str)
        Architecture and the variant that ran there. For readers; decides nothing.
    """

    function: str
    parameters: tuple[tuple[str, Any], ...] = ()
    arrays: tuple[tuple[str, ArraySpec | None], ...] = ()
    sm_count: int | None = None
    variants: tuple[tuple[str, str], ...] = field(default=())

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Wanted) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __str__(self) -> str:
        told = [f"{name}={value!r}" for name, value in self.parameters]
        told += [f"{name}={_array_text(spec) if spec else None}" for name, spec in self.arrays]
        return f"{self.function}({', '.join(told)})"

    def _identity(self) -> str:
        return replace(self, variants=()).line()

    def line(self) -> str:
        """One line of JSON: the entry of a manifest."""
        return json.dumps(self.fields(), allow_nan=False)

    def fields(self) -> dict[str, Any]:
        """As JSON has it; what says nothing is left out.

        Raises
        ------
        ManifestError
            A parameter's value cannot be written down.
        """
        told: dict[str, Any] = {"function": self.function}
        if self.parameters:
            told["parameters"] = {name: _written(value, name) for name, value in self.parameters}
        if self.arrays:
            told["arrays"] = {name: _array_json(spec) for name, spec in self.arrays}
        if self.sm_count is not None:
            told["sm_count"] = self.sm_count
        if self.variants:
            told["variants"] = dict(self.variants)
        return told

    @classmethod
    def parse(cls, told: object, *, imports: bool = True) -> Wanted:
        """The specialization of a manifest's entry, or of its line of JSON.

        Imports the modules of values that are no plain ones (members of an Enum), and not that of the function.

        Parameters
        ----------
        told : object
        imports : bool
            False leaves such values as they are written: enough to compare entries, and to write them again.

        Raises
        ------
        ManifestError
            It is no such entry.
        """
        try:
            if isinstance(told, str):
                told = json.loads(told)
            if not isinstance(told, dict) or not told.keys() <= _FIELDS or type(told.get("function")) is not str:
                raise ValueError(f"an entry has {', '.join(sorted(_FIELDS))}")
            if not re.fullmatch(r"[\w.]+:[\w.]+", told["function"]):
                raise ValueError("a function is module:name")
            read = _read if imports else _left
            sm_count = told.get("sm_count")
            if sm_count is not None and (type(sm_count) is not int or sm_count < 1):
                raise ValueError("sm_count is a count")
            return cls(
                function=told["function"],
                parameters=tuple((name, read(value)) for name, value in _pairs(told, "parameters")),
                arrays=tuple((name, _read_array(value)) for name, value in _pairs(told, "arrays")),
                sm_count=sm_count,
                variants=tuple(sorted((arch, str(name)) for arch, name in _pairs(told, "variants"))),
            )
        except Exception as error:  # a class of the manifest's may raise anything
            raise ManifestError(
                "an entry of a manifest is not one.",
                given=f"{told!r:.200}",
                reason=str(error) or type(error).__name__,
                try_="record it again",
            ) from None

    def with_variants(self, other: Wanted) -> Wanted:
        """This, with the variants that another one knows of."""
        return replace(self, variants=tuple(sorted({**dict(self.variants), **dict(other.variants)}.items())))

    def arguments(self, outputs: tuple[str, ...]) -> dict[str, Any]:
        """As `Specialized.compile` takes them.

        Parameters
        ----------
        outputs : tuple of str
            Of the function, in order.
        """
        given = dict(self.parameters)
        arrays = dict(self.arrays)
        out = [arrays.pop(name) for name in outputs if name in arrays]
        if out:
            given["out"] = tuple(out) if len(outputs) > 1 else out[0]
        return {**given, **arrays}


def _pairs(told: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    found = told.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} is an object")
    return list(found.items())


# values of parameters -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unread:
    """A value as it stands in a manifest, whose modules nobody has imported."""

    told: Any


def _left(told: Any) -> Any:
    return _Unread(told) if isinstance(told, dict | list) else told


def _written(value: Any, name: str) -> Any:
    """A compile-time value as JSON: by type and value, floats by their bits."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        # Python writes the shortest text that reads back to the same bits; JSON has no word for the others.
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if type(value) in (tuple, list):
        return [_written(v, name) for v in value]
    if isinstance(value, _Unread):
        return value.told
    told = _named(value, name)
    try:  # one value that cannot be read again would spoil the whole file
        same = told is not None and parameter_key(_read(told)) == parameter_key(value)
    except Exception:
        same = False
    if same:
        return told
    raise ManifestError(
        f"the value of parameter {name!r} cannot be written down.",
        given=f"{value!r:.60} ({type(value).__name__})",
        allowed="None, bool, int, float, str, a NumPy number, a tuple of such; and of modules that can be imported: a "
        "class, a member of an Enum, a dataclass",
    )


def _named(value: Any, name: str) -> Any:
    """A value that is no plain one, as JSON; None for one that has no such text."""
    if isinstance(value, enum.Enum):
        return {"enum": f"{_reference(type(value))}.{value.name}"}
    if isinstance(value, type):
        return {"type": _reference(value)}
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return {"numpy": value.dtype.name, "bytes": value.tobytes().hex()}
    if hasattr(value, "__dataclass_fields__"):
        held = {f.name: _written(getattr(value, f.name), name) for f in fields(value) if f.init}
        return {"dataclass": _reference(type(value)), "fields": held}
    return None


def _read(value: Any) -> Any:
    """The compile-time value of what `_written` wrote."""
    if isinstance(value, list):
        return tuple(map(_read, value))
    if not isinstance(value, dict):
        return value
    match value:
        case {"float": str(bits), **rest} if not rest:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case {"enum": str(reference), **rest} if not rest:
            owner, _, names = reference.rpartition(".")
            members = [find_object(f"{owner}.{name}") for name in names.split("|")]  # several, of a Flag
            if all(isinstance(member, enum.Enum) for member in members):
                return reduce(operator.or_, members)
        case {"type": str(reference), **rest} if not rest:
            found = find_object(reference)
            if isinstance(found, type):
                return found
        case {"numpy": str(name), "bytes": str(data), **rest} if not rest:
            import numpy as np

            if np.dtype(name).kind in "biufc":  # nothing that would be unpickled
                return np.frombuffer(bytes.fromhex(data), name)[0]
        case {"dataclass": str(reference), "fields": dict(held), **rest} if not rest:
            found = find_object(reference)
            if isinstance(found, type) and hasattr(found, "__dataclass_fields__"):
                return found(**{name: _read(v) for name, v in held.items()})
    raise ValueError(f"{value!r:.80} is no value of a parameter")


def _reference(thing: type) -> str:
    reference = f"{thing.__module__}:{thing.__qualname__}"
    return importable(reference) or reference


def find_object(reference: str) -> Any:
    """What ``"module:qualified.name"`` leads to.

    Raises
    ------
    ManifestError
        The module cannot be imported, or has no such name.
    """
    module, _, name = reference.partition(":")
    try:
        found: Any = sys.modules["__main__"] if module == _main() else importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a module runs whatever it holds: a script without a guard ends
        inside = "<locals>" in name or "<lambda>" in name
        raise ManifestError(
            f"{reference} cannot be imported.",
            reason=f"{type(error).__name__}: {error}",
            try_="a function at the top of a module, not one made inside another"
            if inside
            else "the package that has it, installed or on PYTHONPATH",
        ) from error
    return found


def importable(reference: str) -> str | None:
    """A reference as another process may use it: the program being run by the name of its module; None for none."""
    module, _, name = reference.partition(":")
    if module in ("__main__", "__mp_main__"):  # the second in a worker that multiprocessing has spawned
        module = _main() or ""
    return f"{module}:{name}" if module and re.fullmatch(r"[\w.]+:[\w.]+", f"{module}:{name}") else None


def _main() -> str | None:
    """The name by which others import the program that this process runs."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return os.path.splitext(os.path.basename(file))[0] if file else None


# arrays ---------------------------------------------------------------------------------------------------------------

_ARRAY = re.compile(r"(?P<dtype>\w+)(?:\[(?P<shape>[\d, ]*)\])?")


def _array_text(spec: ArraySpec) -> str:
    """``float32``, or ``float32[64, 64]``."""
    return spec.dtype if spec.shape is None else f"{spec.dtype}{list(spec.shape)}"


def _array_json(spec: ArraySpec | None) -> Any:
    """Text, where dtype and sizes say all; None for an absent array."""
    if spec is None:
        return None
    if spec.strides is None and spec.alignment == FRESH_ALIGNMENT:
        return _array_text(spec)
    told: dict[str, Any] = {"array": _array_text(spec)}
    if spec.strides is not None:
        told["strides"] = list(spec.strides)
    if spec.alignment != FRESH_ALIGNMENT:
        told["alignment"] = spec.alignment
    return told


def _read_array(told: Any) -> ArraySpec | None:
    if told is None:
        return None
    more = {} if isinstance(told, str) else dict(told)
    match = _ARRAY.fullmatch(more.pop("array") if more else told)
    if match is None or match["dtype"] not in DTYPES or not more.keys() <= {"strides", "alignment"}:
        raise ValueError(f"{told!r:.80} is no array")
    shape = match["shape"]
    strides = more.get("strides")
    return ArraySpec(
        None if shape is None else tuple(int(n) for n in shape.split(",") if n.strip()),
        match["dtype"],
        None if strides is None else tuple(int(n) for n in strides),
        int(more.get("alignment", FRESH_ALIGNMENT)),
    )


# from a call ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Used:
    """What of a call decides what it renders, without its data: small enough to keep with every plan.

    Attributes
    ----------
    parameters : tuple of (str, object)
    arrays : tuple of (str, ArraySpec or None)
        Arguments and given outputs; an alignment is the address itself.
    asked : frozenset of str
        Parameters that were given, of those that some variant lacks.
    sm_count : int or None
    arch : str
        Where it ran: ``"sm_90"``, ``"host"``.
    variant : str or None
        What ran, where there are several.
    kind : tuple of (str, Limits), or None
        What expressions saw of the device, less a GPU's multiprocessors; None for no device.
    """

    parameters: tuple[tuple[str, Any], ...]
    arrays: tuple[tuple[str, ArraySpec | None], ...]
    asked: frozenset[str]
    sm_count: int | None
    arch: str
    variant: str | None
    kind: tuple[str, Limits] | None


def used(choice: Choice, call: Call, chosen: str, device: tuple[str, Limits] | None) -> Used:
    """What is kept of a call; no array of it.

    Parameters
    ----------
    choice : Choice
    call : Call
    chosen : str
        The function that runs it.
    device : tuple of (str, Limits), or None
        Architecture and limits of what it ran on, the CPU backend included.
    """
    arrays = tuple((name, None if a is None else _spec(a)) for name, a in call.arrays.items())
    variant = chosen if choice.others else None
    if device is None:
        return Used(call.parameters, arrays, choice.asked & call.given, None, "", None, None)
    arch, limits = device
    if limits.on_gpu:
        sm_count, limits, where = limits.sm_count, replace(limits, sm_count=None), arch
    else:  # a core is no multiprocessor: a GPU's text must not follow from their number
        sm_count, where = None, HOST_ARCH
    return Used(call.parameters, arrays, choice.asked & call.given, sm_count, where, variant, (arch, limits))


def _spec(array: Described) -> ArraySpec:
    shape, strides = array.shape, array.strides
    packed = shape is None or strides == packed_strides(shape)
    return ArraySpec(shape, array.dtype, None if packed else strides, array.pointer)


def reduced(choice: Choice, what: Used, reference: str) -> Wanted:
    """The least that renders what a call rendered, on every known architecture.

    Parameters
    ----------
    choice : Choice
        Of the function.
    what : Used
    reference : str
        ``"module:qualified.name"`` of the function.
    """
    left_out = choice.asked - what.asked
    asked = math.lcm(_PAGE, *(f.value for f in choice.facts if f.name == "aligned" and f.value))
    found = Wanted(
        function=reference,
        parameters=tuple((name, value) for name, value in what.parameters if name not in left_out),
        arrays=tuple((name, s and replace(s, alignment=math.gcd(s.alignment, asked))) for name, s in what.arrays),
        sm_count=what.sm_count,
        variants=((what.arch, what.variant),) if what.variant is not None else (),
    )
    kinds = _KINDS if what.kind is None or what.kind in _KINDS else (what.kind, *_KINDS)
    outcome = tuple(_outcome(choice, found, kinds))
    if len(outcome) != len(kinds):  # it cannot even be described: as little as that is not left out
        return found

    def alike(candidate: Wanted) -> bool:
        pairs = itertools.zip_longest(_outcome(choice, candidate, kinds), outcome)
        return all(mine == its for mine, its in pairs)

    plain = _plain(choice, found)
    if alike(plain):  # most often
        return plain
    for change in _changes(choice, found):
        candidate = change(found)
        if candidate != found and alike(candidate):
            found = candidate
    return found


def told_by_one(choice: Choice) -> bool:
    """Whether calls that render alike where they ran do so everywhere: then one of them stands for all."""
    binding = choice.own.binding
    expressions = (
        *binding.block,
        *binding.require,
        *(s.size for s in binding.scratch),
        *itertools.chain(*binding.tiles),
    )
    return not choice.others and not any(e.names & set(DEVICE_FACTS) for e in expressions)


def missing(error: FrozenCacheError, choice: Choice, what: Used, reference: str) -> FrozenCacheError:
    """The error of a frozen cache, with the line that a manifest lacks and the command that builds what it says."""
    arch = str(error.facts.get("arch"))
    device = re.sub(r"(?<=\d)[af]\Z", "", arch)
    try:
        entry = reduced(choice, what, importable(reference) or reference).line()
    except ManifestError:  # a value that cannot be written down
        return error
    facts = {
        **error.facts,
        "entry": entry,
        "try_": f"this entry in the manifest, then: cuplate build MANIFEST {_flag(device)} -o BUNDLE\n"
        f"or {error.facts.get('try_')}",
    }
    return FrozenCacheError(error.summary, function=error.function, **facts)


def _flag(device: str) -> str:
    return "--host" if device == HOST_ARCH else f"--arch {device}"


def _changes(choice: Choice, wanted: Wanted) -> Iterator[Callable[[Wanted], Wanted]]:
    """What may be left out, or made smaller, in this order."""
    signature = choice.own.binding.signature
    outputs = {o.name for o in signature.outputs}
    yield lambda now: replace(now, sm_count=None)
    yield lambda now: _map_arrays(now, lambda spec: replace(spec, alignment=FRESH_ALIGNMENT))
    for name, _ in wanted.arrays:
        yield partial(_with_plain_alignment, name)
    if signature.arrays:
        yield lambda now: replace(now, arrays=tuple((n, spec) for n, spec in now.arrays if n not in outputs))
    yield lambda now: _map_arrays(now, lambda spec: replace(spec, shape=None, strides=None))
    sizes = {n for _, spec in wanted.arrays if spec is not None for n in spec.shape or () if n > 0}
    for size in sorted(sizes):  # 64, or a power of two beside it; or one of them with the remainder that it had
        power, rest = 1 << size.bit_length() - 1, size % _SMALL
        for other in dict.fromkeys((_SMALL, _SMALL + rest, power, power + rest, 2 * power)):  # once taken, it is gone
            if other == size:  # one of them already
                break
            yield partial(_with_other_size, size, other)


def _plain(choice: Choice, wanted: Wanted) -> Wanted:
    """Dtypes and absence alone."""
    signature = choice.own.binding.signature
    outputs = {o.name for o in signature.outputs} if signature.arrays else ()
    arrays = tuple((name, spec and ArraySpec(None, spec.dtype)) for name, spec in wanted.arrays if name not in outputs)
    return replace(wanted, arrays=arrays, sm_count=None)


def _with_plain_alignment(plain: str, wanted: Wanted) -> Wanted:
    arrays = (
        (name, spec and (replace(spec, alignment=FRESH_ALIGNMENT) if name == plain else spec))
        for name, spec in wanted.arrays
    )
    return replace(wanted, arrays=tuple(arrays))


def _with_other_size(old: int, new: int, wanted: Wanted) -> Wanted:
    return _map_arrays(wanted, lambda spec: _resized(spec, old, new))


def _resized(spec: ArraySpec, old: int, new: int) -> ArraySpec:
    """With another size; of an array with gaps nothing changes, so that the sizes disagree and it is not taken."""
    if spec.shape is None:
        return spec
    shape = tuple(new if n == old else n for n in spec.shape)
    if spec.strides is None:
        return replace(spec, shape=shape)
    by_columns = packed_strides(spec.shape[::-1])[::-1] == spec.strides
    return replace(spec, shape=shape, strides=packed_strides(shape[::-1])[::-1]) if by_columns else spec


def _map_arrays(wanted: Wanted, change: Any) -> Wanted:
    return replace(wanted, arrays=tuple((name, spec and change(spec)) for name, spec in wanted.arrays))


def _outcome(choice: Choice, wanted: Wanted, kinds: Iterable[tuple[str, Limits]]) -> Iterator[Any]:
    """What is rendered on each kind of device; an error by its kind."""
    binding = choice.own.binding
    names = tuple(o.name for o in binding.signature.outputs)
    try:
        call = check_call(binding, wanted.arguments(names), (), {}, partial=True, layouts=not choice.others)
    except CuplateError as error:
        yield type(error)
        return
    for arch, limits in kinds:
        yield _rendered(choice, call, arch, limits, wanted.sm_count)


def _rendered(choice: Choice, call: Call, arch: str, limits: Limits, sm_count: int | None) -> Any:
    if sm_count is not None:
        limits = replace(limits, sm_count=sm_count)
    try:
        chosen = choice.choose(call, arch=arch, limits=limits)
        binding = chosen.variants.binding
        plan = make_plan(
            binding, chosen.solved, chosen.parameters, arch=binding.options.target(arch), limits=limits, called_as=""
        )
    except CuplateError as error:
        return type(error)
    return chosen.name, rendering(plan.specialization)


def rendering(specialization: Specialization) -> Any:
    """What renders alike: equality of the values alone would take ``True`` for ``1``."""
    return specialization, tuple(parameter_key(value) for _, value in specialization.parameters)
