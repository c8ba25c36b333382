"""The generated functions of the hot path: one that looks a call up, one that runs a plan. Text in, functions out.

A specialized function is a plain Python function, so that calling it costs what calling a function costs. Its code is
generated from the signature: it makes one flat tuple of parameters, dtypes and shapes, looks it up in one dictionary
and hands the arrays to the plan's *runner*. Everything that does not fit this narrow way (another array library, a
view, a given stream, a wrong name) goes to ``cold``, which checks everything and can do all that the hot path can.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from cuplate.idiom import CUPY, TORCH, Idiom
from cuplate.plan import Recipe
from cuplate.signature import Signature

__all__ = [
    "MISSING",
    "Runner",
    "RunnerShape",
    "dispatcher",
    "key_function",
    "plan_values",
    "pointed",
    "repeatable",
    "runner",
    "same_call",
]


class _Missing:
    """Stands for a value that the caller did not give; has no attribute that the hot path reads."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<missing>"


MISSING = _Missing()
CONSTANT = ("int", "map")  # kinds of recipes of which a plan holds a value
AGAIN = object()  # what a runner returns when the call needs the cold path after all

Runner = Callable[..., Any]
_serial = itertools.count()
_EMPTY = inspect.Parameter.empty


def dispatcher(
    signature: Signature,
    namespace: dict[str, Any],
    aligned: Sequence[tuple[str, int]] = (),
    *,
    several_devices: bool = False,
    repeats: bool = False,
    asked: Collection[str] = (),
    ordered: Collection[str] = (),
    idioms: Sequence[Idiom] = (CUPY,),
) -> FunctionType:
    """The function that users call.

    Parameters
    ----------
    signature : Signature
    namespace : dict
        Becomes the function's globals. Read on the hot path: ``_plans`` (plan key to plan), ``_cold``, ``_missing``,
        ``_again``, ``_listeners``, ``_value_key``, and what the idioms name.
    aligned : sequence of (str, int)
        Array arguments, and a single output, whose alignment (bytes) the kernel asks for; the answers are in the key.
    several_devices : bool
        True puts the arrays' devices and the current one into the key; with one GPU they cannot differ.
    repeats : bool
        True looks for a call of the very same objects first, see `same_call`; the function must be `repeatable`, and
        only CuPy's arrays can be told so.
    asked : collection of str
        Parameters of which it matters whether the caller gave them: left out, they are `MISSING`, not their default.
    ordered : collection of str
        Array arguments that may lie by columns too.
    idioms : sequence of Idiom
        Of the libraries whose arrays are looked up. With several, the class of the first array says which.

    Returns
    -------
    function
        Positional arguments in order, parameters by keyword with their defaults, ``out=`` and ``stream=``; anything
        else is collected and refused by ``_cold`` with the nearest name.
    """
    arguments = [a.name for a in signature.arguments]
    parameters = [p.name for p in signature.parameters]
    known = [p for p in signature.parameters if p.default is not _EMPTY and p.name not in asked]
    defaults = {f"_default_{p.name}": p.default for p in known}
    namespace.update(
        defaults,
        _missing=MISSING,
        _again=AGAIN,
        _absent=(KeyError, AttributeError, TypeError, RecursionError),
        _id=id,
    )
    optional = {a.name for a in signature.arrays if a.optional}  # left out, they are None: such calls are hot too
    heads = [f"{n}={'None' if n in optional else '_missing'}" for n in arguments] + ["*_more"]
    for p in signature.parameters:
        heads.append(f"{p.name}={f'_default_{p.name}' if f'_default_{p.name}' in defaults else '_missing'}")
    heads += ["out=None", "stream=None", "**_unknown"]
    run = f"_plan[0]({', '.join(['_plan', 'out', *arguments, *(f'_p_{n}' for n in pointed(signature, aligned))])})"
    cold = f"return _cold(_more, _unknown, {', '.join([*arguments, *parameters, 'out', 'stream'])})"
    lines = [f"def {signature.function}({', '.join(heads)}):"]
    look_up = functools.partial(_look_up_lines, signature, aligned, ordered, several_devices)
    if TORCH in idioms:
        found = look_up(TORCH, run)
        if CUPY in idioms:
            lines.append(f"    if {signature.arrays[0].name}.__class__ in _tensors:")
            lines += [f"        {line}" for line in (*found, cold)]
        else:
            lines += [f"    {line}" for line in found]
    if CUPY in idioms:
        lines += [f"    {line}" for line in (_repeat_lines(signature, several_devices) if repeats else ())]
        note = _note_lines(signature) if repeats else []
        lines += [f"    {line}" for line in look_up(CUPY, run, note)]
    lines.append(f"    {cold}")
    return _make("\n".join(lines) + "\n", signature.function, namespace)


def _look_up_lines(
    signature: Signature,
    aligned: Sequence[tuple[str, int]],
    ordered: Collection[str],
    several_devices: bool,
    idiom: Idiom,
    run: str,
    note: Sequence[str] = (),
) -> list[str]:
    """Find the plan of a call and run it."""
    return [
        "try:",
        f"    _plan = _plans[{_plan_key(signature, aligned, ordered, several_devices, idiom)}]",
        f"except {idiom.unfit}:",
        "    _plan = None",  # and leave the handler, or an error of the cold path would drag the look-up's along
        "if _plan is not None and stream is None and not (_more or _unknown or _listeners):",
        f"    _result = {run}",
        "    if _result is not _again:",
        *(f"        {line}" for line in note),
        "        return _result",
    ]


def pointed(signature: Signature, aligned: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """The arrays whose address the plan key has to ask anyway: a runner is given it."""
    asked = {name for name, _ in aligned}
    return tuple(a.name for a in signature.arrays if a.name in asked and not a.optional)


def repeatable(signature: Signature) -> bool:
    """Whether calls of the very same objects can be told by identity, and all that is left of one is its launch.

    State that is updated in place and read again, buffers that are written again and again: such calls need no key.

    Parameters
    ----------
    signature : Signature
    """
    if signature.result_type is not None or signature.scalars or not signature.arrays:
        return False
    # A value of any other kind may change and stay the same object.
    return not any(p.kind in ("any", "list") for p in signature.parameters)


def same_call(signature: Signature, arrays: Sequence[Any], out: Any, parameters: Sequence[Any]) -> tuple[Any, ...]:
    """What the generated code compares to see that a call has come before: the first part of a record of a repeat.

    CuPy's arrays keep dtype, size and memory for life. Their shape can be assigned to, so it is compared; and nothing
    here keeps an array alive.
    """
    given = [*arrays, *([out] if signature.outputs else [])]
    weak = [None if a is None else weakref.ref(a) for a in given]
    return (*weak, *(_shape_values(a) for a in given), *parameters)


def _shape_values(array: Any) -> Any:
    """What `_repeat_lines` compares of an array's shape; rank and length say all of one or two axes of a known size."""
    return None if array is None else len(array) if 1 <= array.ndim <= 2 else array.shape


def _repeat_lines(signature: Signature, several_devices: bool) -> list[str]:
    """Look for a call of the very same objects, and launch it as it was launched before.

    A record stands under the identities of a few of its arrays; should one go and another get its identity, the weak
    reference tells.
    """
    names = [a.name for a in signature.arrays] + (["out"] if signature.outputs else [])
    optional = {a.name for a in signature.arrays if a.optional} | {"out"}
    ranks = {a.name: len(a.axes) for a in signature.arrays if not any(axis.folded for axis in a.axes)}
    if signature.outputs:
        ranks["out"] = len(signature.outputs[0].axes)
    values = [p.name for p in signature.parameters]
    fields = [f"_w_{n}" for n in names] + [f"_n_{n}" for n in names] + [f"_v_{n}" for n in values]
    told_by_key = [*names[:2], *names[2:][-1:]]
    tests = []
    for n in names:
        rank = ranks.get(n, 0)
        # Of an array that is gone the reference says None, as a call does that leaves it out.
        same = f"_w_{n}() is {n} and " if n in told_by_key else f"_w_{n}() is {n} is not None and "
        same += f"{n}.ndim == {rank} and len({n}) == _n_{n}" if 1 <= rank <= 2 else f"{n}.shape == _n_{n}"
        tests.append(f"({n} is None if _w_{n} is None else {same})" if n in optional else same)
    tests += [f"{n} is _v_{n}" for n in values]
    tests += ["stream is None", "not (_more or _unknown or _listeners)"]
    tests += ["_current_device() == _device"] if several_devices else []
    launch = "_stream, _config, _kernel, *_before"
    lines = [
        f"_key = {' ^ '.join(f'_id({n})' for n in told_by_key)}",
        "_same = _repeats.get(_key)",
        "if _same is not None:",
        f"    {', '.join(fields)}, _device, _entry, _config, _kernel, _before, _p_out, _after, _make_out = _same",
        f"    if ({' and '.join(tests)}):",
    ]
    inner = _stream_lines(CUPY, several_devices)
    if signature.outputs:
        inner += ["_out = out", "if out is None:", "    _out = _empty(*_make_out)", "    _p_out = _out.data.ptr"]
        launch += ", _p_out, *_after"
    inner += [
        "try:",
        f"    _launch({launch})",
        "except _refused:",
        "    _repeats.clear()",
        "else:",
        "    _entry.tick = _next_tick()",
        "    _hits.cell.hits += 1",
        f"    return {'_out' if signature.outputs else 'None'}",
    ]
    return [*lines, *(f"        {line}" for line in inner)]


def _note_lines(signature: Signature) -> list[str]:
    """Count calls by the same key; at the second one `_note` makes the record that the third finds.

    At no later one: arrays that are made anew for each call may get the identities of earlier ones by turns, and a
    record of each would cost more than it ever gave.
    """
    arrays = ", ".join(a.name for a in signature.arrays)
    values = "".join(f"{p.name}, " for p in signature.parameters)
    return [
        "_calls = _seen.get(_key, 0)",
        "if _calls < 2:",
        "    if len(_seen) >= _seen_limit:",  # identities of arrays that are long gone
        "        _forget_repeats()",
        "    _seen[_key] = _calls + 1",
        "    if _calls:",
        f"        _note(_key, _plan, ({arrays},), out, ({values}))",
    ]


def key_function(
    signature: Signature,
    namespace: dict[str, Any],
    aligned: Sequence[tuple[str, int]],
    *,
    several_devices: bool,
    ordered: Collection[str] = (),
    idiom: Idiom = CUPY,
) -> FunctionType:
    """A function of all arguments, parameters and ``out`` that gives the plan key which `dispatcher` looks up."""
    names = [*(a.name for a in signature.arguments), *(p.name for p in signature.parameters), "out=None"]
    key = _plan_key(signature, aligned, ordered, several_devices, idiom)
    text = f"def _key_of({', '.join(names)}):\n    return {key}\n"
    return _make(text, "_key_of", namespace)


def _plan_key(
    signature: Signature,
    aligned: Sequence[tuple[str, int]],
    ordered: Collection[str],
    several_devices: bool,
    idiom: Idiom,
) -> str:
    """Python text of the plan key: one flat tuple of what a plan depends on.

    Arrays enter by what their library's idiom says; the first by its class too, which keeps the libraries apart.
    Parameters enter by value and type, since ``True == 1 == 1.0``; floats by their bits. Those that are mostly left out
    cost one comparison then.
    """
    parts: list[str] = []
    known = pointed(signature, aligned)
    for i, argument in enumerate(signature.arrays):
        n = argument.name
        facts = idiom.facts(argument, several_devices=several_devices, first=i == 0, ordered=n in ordered)
        address = f"(_p_{n} := {idiom.pointer(n)})" if n in known else idiom.pointer(n)
        for size in (size for name, size in aligned if name == n):
            facts += f", {address} % {size} == 0"
            address = f"_p_{n}" if n in known else address
        if argument.optional:
            parts.append(f"None if {n} is None else ({facts})")
        else:
            parts.append(facts)
    for p in signature.parameters:
        by_bits = p.kind in ("float", "any", "list") or any(isinstance(value, float) for value in p.allowed)
        value = f"_value_key({p.name})" if by_bits else f"{p.name}.__class__, {p.name}"
        parts.append(f"None if {p.name} is None else ({value})" if p.nullable and p.default is None else value)
    if len(signature.outputs) == 1:  # of more, given ones are not for this path, and fresh ones are aligned
        sizes = [size for name, size in aligned if name == signature.outputs[0].name]
        most = [size for size in sizes if not any(other > size and other % size == 0 for other in sizes)]
        parts += [f"0 if out is None else {idiom.pointer('out')} % {size}" for size in most]
    if several_devices:
        parts.append(f"{idiom.current_device}()")
    return ", ".join(parts) + "," if parts else "()"  # neither arrays nor parameters: one plan


@dataclass(frozen=True, slots=True)
class RunnerShape:
    """What the text of a runner depends on; plans of one shape share one runner.

    Attributes
    ----------
    recipes : tuple of (str, str)
        (kind, name) of the kernel's arguments in its own order.
    outputs : tuple of str
        Arrays to allocate.
    output_ndim : int
        Axes of the first of them.
    zeroed : tuple of str
    scratch : tuple of str
    present : tuple of str
        Array arguments that are given.
    written : tuple of str
        Array arguments that the kernel writes.
    pairs : tuple of (str, int)
        Given arrays of complex numbers and their element size, bytes: a view of floats may start between two of them,
        where a GPU cannot load the pair.
    """

    recipes: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    output_ndim: int
    zeroed: tuple[str, ...]
    scratch: tuple[str, ...]
    present: tuple[str, ...]
    written: tuple[str, ...]
    pairs: tuple[tuple[str, int], ...] = ()


def runner(
    signature: Signature,
    shape: RunnerShape,
    namespace: dict[str, Any],
    *,
    known: Sequence[str] = (),
    several_devices: bool = False,
    idiom: Idiom = CUPY,
) -> Runner:
    """The function that runs a plan of `shape` on arrays of one library and device; `known`: as `pointed` says.

    A plan is the flat tuple that `plan_values` makes. The text allocates the outputs (or checks a given one), finds the
    current stream and launches; it makes no check that the plan key has made already.
    """
    name = f"_run_{signature.function}"
    given = [*(a.name for a in signature.arguments), *(f"_p_{n}" for n in known)]
    head = f"def {name}({', '.join(['_plan', 'out', *given])}):"
    lines = [head, *(f"    {line}" for line in _runner_lines(shape, known, several_devices, idiom))]
    return _make("\n".join(lines) + "\n", name, namespace)


def _runner_lines(shape: RunnerShape, known: Sequence[str], several_devices: bool, idiom: Idiom) -> list[str]:
    """The body of a runner."""
    constants = [f"_i{i}" for i, (kind, _) in enumerate(shape.recipes) if kind in CONSTANT]
    fields = ["_run", "_entry", "_config", "_kernel", "_owner_class", *constants]
    for name in (*shape.outputs, *shape.scratch):
        fields += idiom.sized(name)
    fields += [f"_bytes_{n}" for n in shape.present]
    lines = [f"{', '.join(fields)} = _plan"]
    add = lines.append
    pairs = [(name, size) for name, size in shape.pairs if name in shape.present]
    lines += idiom.addresses(shape.present, [name for name, _ in pairs], known)
    for name, size in pairs:
        lines += [f"if _p_{name} % {size}:", "    return _again"]
    for name in shape.written:
        for other in shape.present:
            if other != name:
                add(_overlap(name, other, f"-_bytes_{name}"))
                add("    return _again")
    told = idiom.wrote("out") if len(shape.outputs) == 1 else []
    if told:
        add("_given = out is not None")
    lines += _output_lines(shape, several_devices, idiom)
    lines += idiom.may_make() if shape.scratch else []
    for name in shape.scratch:
        lines += idiom.make(name, name)
    lines += _stream_lines(idiom, several_devices, shape.scratch)
    scalars = [name for kind, name in shape.recipes if kind == "scalar"]
    encoded = {name: f"_encode_{name}({name})" for name in scalars}
    if shape.zeroed:  # a scalar that is refused must be so before anything is zeroed
        for name in dict.fromkeys(scalars):
            add(f"_s_{name} = {encoded[name]}")
            encoded[name] = f"_s_{name}"
    for name in shape.zeroed:
        add(f"_zero(_p_{name}, _bytes_{name}, _stream)")
    add("_entry.tick = _next_tick()")
    add("_hits.cell.hits += 1")
    values = ["_stream", "_config", "_kernel"]
    for i, (kind, name) in enumerate(shape.recipes):
        spelled = {"array": f"_p_{name}", "scalar": encoded.get(name, ""), "int": f"_i{i}", "map": f"_i{i}[_p_{name}]"}
        values.append(spelled[kind])
    add("try:")
    add(f"    _launch({', '.join(values)})")
    add("except _refused:")  # the cold path tries again, and says what is wrong
    add("    return _again")
    lines += idiom.wrote(", ".join(shape.written)) if shape.written else []
    lines += ["if _given:", *(f"    {line}" for line in told)] if told else []
    add(f"return {_returned(shape)}")
    return lines


def _stream_lines(idiom: Idiom, several_devices: bool, scratch: Sequence[str] = ()) -> list[str]:
    """Find the current stream; a kernel that a graph captures is kept, and the scratch that its replays write."""
    current, captured = idiom.stream(several_devices=several_devices)
    return [
        f"_stream_pointer = {current}",
        "_stream = _streams.get(_stream_pointer) or _wrap_stream(_stream_pointer)",
        f"if _stream_pointer and {captured}:",
        f"    _keep({', '.join(['_entry', *scratch])})",
    ]


def _output_lines(shape: RunnerShape, several_devices: bool, idiom: Idiom) -> list[str]:
    """Allocate the outputs; a single one may be given, and then must be what the plan expects and overlap nothing."""
    if len(shape.outputs) != 1:
        lines = ["if out is not None:", "    return _again"]
        lines += idiom.may_make() if shape.outputs else []
        for name in shape.outputs:
            lines += idiom.make(name, name)
        return lines
    (name,) = shape.outputs
    sizes = [size for pair, size in shape.pairs if pair == name]
    lines = [
        "if out is None:",
        *(f"    {line}" for line in (*idiom.may_make(), *idiom.make(name, "out"))),
        *idiom.given_out(
            name,
            _other_shape(name, shape),
            several_devices=several_devices,
            like=next(iter(shape.present), "out"),
            pair=bool(sizes),
        ),
        f"    _low = -_bytes_{name}",
    ]
    for other in shape.present:
        lines += [f"    {_overlap(name, other, '_low')}", "        return _again"]
    for size in sizes:
        lines += [f"    if _p_{name} % {size}:", "        return _again"]
    return lines


def _other_shape(name: str, shape: RunnerShape) -> str:
    """Whether CuPy's ``out`` has another shape than the plan's, which is not empty; see `cuplate.idiom`."""
    if shape.output_ndim == 1:
        return f"out.ndim != 1 or out.size != _shape_{name}[0]"
    if shape.output_ndim == 2:
        return f"out.ndim != 2 or len(out) != _shape_{name}[0] or out.size != _shape_{name}[0] * _shape_{name}[1]"
    return f"out.shape != _shape_{name}"


def _overlap(a: str, b: str, low: str) -> str:
    """Whether two ranges of bytes share one, with one subtraction: pointers are long integers, and slow to add."""
    return f"if {low} < _p_{a} - _p_{b} < _bytes_{b}:"


def _returned(shape: RunnerShape) -> str:
    if not shape.outputs:
        return "None"
    if len(shape.outputs) == 1 and shape.outputs[0] == "out":
        return "out"
    return f"_result_type({', '.join('out' if len(shape.outputs) == 1 else n for n in shape.outputs)})"


def plan_values(
    shape: RunnerShape, head: Sequence[Any], recipes: Sequence[Recipe], sized: dict[str, Any]
) -> tuple[Any, ...]:
    """The flat tuple that a runner of `shape` unpacks.

    Parameters
    ----------
    head : sequence
        runner, memory entry, launch configuration, kernel, class of the owner's arrays.
    recipes : sequence of Recipe
    sized : dict of str to (shape, dtype, bytes, ...)
        Outputs, scratch (as `Idiom.sized` lists it), and (bytes only) given arrays.
    """
    values = [*head, *(r.value for r in recipes if r.kind in CONSTANT)]
    for name in (*shape.outputs, *shape.scratch):
        values += sized[name]
    values += [sized[n][2] for n in shape.present]
    return tuple(values)


def _make(text: str, name: str, namespace: dict[str, Any]) -> FunctionType:
    """Execute generated text; registered with ``linecache`` so that tracebacks and debuggers show it."""
    filename = f"<cuplate {name} {next(_serial)}>"
    namespace["_refused"] = Exception  # by a name that no argument can have
    local: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), namespace, local)
    function: FunctionType = local[name]
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    # With the code, not the function: it may live on in another one. Who drops a function leaves no text behind.
    weakref.finalize(function.__code__, linecache.cache.pop, filename, None).atexit = False
    return function
