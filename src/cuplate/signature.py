"""A Python signature, split into arguments, parameters, axes and outputs: what one binding says, resolved once."""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from cuplate.autotune.tunable import UNSAID, Tunable
from cuplate.device_text import DeviceText
from cuplate.dtypes import DTYPES
from cuplate.errors import DeclarationError
from cuplate.expression import DEVICE_FACTS, Expression, parse
from cuplate.hints import nearest_name
from cuplate.structs import Struct, struct_of
from cuplate.template import RESERVED_GLOBALS

__all__ = ["ArrayArgument", "Axis", "Parameter", "ScalarArgument", "Signature", "read_signature"]

LAUNCH_NAMES = ("out", "stream")
CPP_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval
    constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast
    else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not
    not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return short signed
    sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
    typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    """.split()  # noqa: SIM905 - eighty words read better as a text than as a list
)
_BUILT_IN = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"))
_TEMPLATE_NAMES = frozenset(("args", "block", "kernel", "index_t", "arch"))
RESERVED = frozenset(LAUNCH_NAMES) | _TEMPLATE_NAMES | CPP_KEYWORDS | _BUILT_IN | RESERVED_GLOBALS | set(DEVICE_FACTS)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an annotation.

    Attributes
    ----------
    text : str
        As written, for messages: ``"N-K+1"``.
    name : str or None
        Set for a bare name, ``name=3`` and ``*name``.
    size : int or None
        Set for ``3`` and ``name=3``.
    expression : Expression or None
        Set when the size is computed.
    folded : bool
        True for a leading ``*name``: all leading axes as one size.
    """

    text: str
    name: str | None = None
    size: int | None = None
    expression: Expression | None = None
    folded: bool = False


@dataclass(frozen=True, slots=True)
class ArrayArgument:
    """An array that the kernel reads or writes.

    Attributes
    ----------
    name : str
        Python and C name.
    dtypes : tuple of str
        Names allowed, keys of ``DTYPES``; a family that stands in several annotations is one dtype a call.
    axes : tuple of Axis
        In order; ``axes[0].folded`` for a leading ``*name``.
    optional : bool
        ``X | None = None``.
    annotation : str
        For messages: ``'Float32 "M K"'``.
    dtype_parameter : str or None
        Parameter that gives the dtype (``dtypes=``).
    """

    name: str
    dtypes: tuple[str, ...]
    axes: tuple[Axis, ...]
    optional: bool = False
    annotation: str = ""
    dtype_parameter: str | None = None

    @property
    def family(self) -> tuple[str, ...] | None:
        """The dtype variable that this annotation shares with equal ones; None when the dtype is fixed."""
        return self.dtypes if len(self.dtypes) > 1 and self.dtype_parameter is None else None


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A run-time scalar.

    Attributes
    ----------
    name : str
    dtype : str
        Key of ``DTYPES``; of a struct its description, for messages.
    struct : Struct or None
        Of a struct passed by value.
    """

    name: str
    dtype: str
    struct: Struct | None = None

    @property
    def itemsize(self) -> int:
        """Bytes that the kernel is passed."""
        return DTYPES[self.dtype].itemsize if self.struct is None else self.struct.itemsize


@dataclass(frozen=True, slots=True)
class Parameter:
    """A compile-time value.

    Attributes
    ----------
    name : str
        Python and template name.
    kind : str
        ``"literal"``, ``"bool"``, ``"int"``, ``"float"``, ``"str"``, ``"enum"``, ``"dtype"``, ``"list"`` or ``"any"``.
    allowed : tuple
        Values of a ``Literal``, members of an ``Enum``, element types of a list where they are plain; empty otherwise.
    default : object
        ``inspect.Parameter.empty`` when there is none.
    annotation : str
        For messages.
    nullable : bool
        True for ``X | None``: None is an ordinary value, seen by the template as ``None``.
    tunable : Tunable or None
        Of a parameter whose default is ``tune()``; `default` is then what runs where nothing is measured.
    text : DeviceText or None
        Of a ``"str"`` that is an expression of device code: what it may say.
    """

    name: str
    kind: str
    allowed: tuple[Any, ...]
    default: Any
    annotation: str
    nullable: bool = False
    tunable: Tunable | None = None
    text: DeviceText | None = None

    @property
    def candidates(self) -> tuple[Any, ...]:
        """Values to choose from, where ``tune()`` or the annotation lists them."""
        if self.tunable is not None and self.tunable.values is not None:
            return self.tunable.values
        listed = (False, True) if self.kind == "bool" else self.allowed if self.kind in ("literal", "enum") else ()
        return (*listed, None) if listed and self.nullable and None not in listed else listed


@dataclass(frozen=True, slots=True)
class Signature:
    """One binding's Python side.

    Attributes
    ----------
    function : str
        Name for messages.
    arguments : tuple of ArrayArgument or ScalarArgument
        In call order.
    parameters : tuple of Parameter
        In order.
    outputs : tuple of ArrayArgument
        Empty for ``-> None``; one named ``out``, or the fields of a NamedTuple.
    result_type : type or None
        The NamedTuple class that a call returns; None for one output or none.
    axes : tuple of str
        Axis names that arrays bind, in order of first appearance.
    folded : frozenset of str
        Axis names written ``*name``.
    arrays, scalars : tuple
        The array arguments and the scalar ones, each in call order.
    """

    function: str
    arguments: tuple[ArrayArgument | ScalarArgument, ...]
    parameters: tuple[Parameter, ...]
    outputs: tuple[ArrayArgument, ...]
    result_type: Any
    axes: tuple[str, ...]
    folded: frozenset[str]

    arrays: tuple[ArrayArgument, ...] = field(init=False)
    scalars: tuple[ScalarArgument, ...] = field(init=False)

    def __post_init__(self) -> None:
        arrays = tuple(a for a in self.arguments if isinstance(a, ArrayArgument))
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "scalars", tuple(a for a in self.arguments if isinstance(a, ScalarArgument)))

    @property
    def has_structs(self) -> bool:
        """Whether an argument is a struct by value, which the plain launcher does not take."""
        return any(s.struct is not None for s in self.scalars)


def read_signature(
    function: Callable[..., Any], *, dtypes: Mapping[str, str], locals_: Mapping[str, Any] | None = None
) -> Signature:
    """Split the signature of `function`.

    Parameters
    ----------
    function : callable
        The decorated function.
    dtypes : mapping of str to str
        Array name to the name of the parameter that gives its dtype.
    locals_ : mapping, optional
        Names of the scope that decorates, for string annotations that name local classes.

    Returns
    -------
    Signature

    Raises
    ------
    DeclarationError
        An annotation is missing or unknown, a name is reserved or stands for two things, an axis cannot be bound.
    """
    return _Reader(function, dtypes, locals_ or {}).read()


class _Reader:
    def __init__(self, function: Callable[..., Any], dtypes: Mapping[str, str], locals_: Mapping[str, Any]) -> None:
        self.function = function
        self.name = function.__name__
        self.dtypes = dtypes
        self._check_function()
        self.locals = dict(locals_)
        self.hints = self._hints(function, function.__globals__)
        self.axes: dict[str, None] = {}
        self.folded: set[str] = set()

    def _fail(self, summary: str, **facts: Any) -> DeclarationError:
        code = getattr(self.function, "__code__", None)
        where = f"{code.co_filename}:{code.co_firstlineno}" if code else None
        return DeclarationError(summary, function=self.name, **facts, declared_at=where)

    def _check_function(self) -> None:
        if not isinstance(self.dtypes, Mapping):
            raise self._fail("dtypes= maps arrays to parameters.", given=repr(self.dtypes), try_='{"out": "out_dtype"}')
        if not self.name.isidentifier():
            raise self._fail(f"{self.name} has no name: a kernel needs one.", try_="def")
        if inspect.iscoroutinefunction(self.function) or inspect.isgeneratorfunction(self.function):
            raise self._fail("a coroutine or generator cannot be specialized: a call returns its arrays.", try_="def")
        if hasattr(self.function, "cache_info") and hasattr(self.function, "reference"):
            raise self._fail("the function is specialized already.", try_="one @specialize for each function")
        owner = self.function.__qualname__.rpartition(".")[0]
        first = next(iter(inspect.signature(self.function).parameters), None)
        if owner and not owner.endswith("<locals>") and first in ("self", "cls"):
            raise self._fail(
                f"{self.function.__qualname__} is a method, and {first!r} is nothing that a kernel can take.",
                try_="a function outside the class, or a @staticmethod over @specialize",
            )

    def _hints(self, function: Any, globals_: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return typing.get_type_hints(
                function, globalns=dict(globals_), localns=self.locals or None, include_extras=True
            )
        except NameError as error:
            raise self._fail(
                f"the annotation name {error.name!r} is not defined where the function is decorated.",
                try_="import it at run time too, not only under TYPE_CHECKING",
            ) from error
        except Exception as error:
            raise self._fail(f"an annotation cannot be evaluated: {error}.") from error

    def read(self) -> Signature:
        signature = inspect.signature(self.function)
        groups: dict[str, list[inspect.Parameter]] = {"arguments": [], "parameters": []}
        for p in signature.parameters.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise self._fail(
                    f"{p} is not allowed: a kernel has a fixed list of arguments and parameters.",
                    try_="a bare * between the arguments and the parameters",
                )
            if p.name in LAUNCH_NAMES:
                self._check_launch_name(p)
                continue
            groups["parameters" if p.kind is p.KEYWORD_ONLY else "arguments"].append(p)
            self._check_name(p.name, "parameter" if p.kind is p.KEYWORD_ONLY else "argument")
        pending = [(p, self._annotation(p)) for p in groups["arguments"]]
        names = [p.name for p in groups["parameters"]]
        self._collect_axes([hint for _, hint in pending] + [self.hints.get("return")])
        arguments = tuple(self._argument(p, hint, names) for p, hint in pending)
        outputs, result_type = self._outputs(names)
        parameters = tuple(self._parameter(p) for p in groups["parameters"])
        self._check_unique([a.name for a in arguments], names, [o.name for o in outputs])
        self._check_bound(arguments, outputs)
        self._check_folded(arguments, outputs)
        self._check_dtypes(arguments, outputs, names)
        return Signature(
            self.name, arguments, parameters, outputs, result_type, tuple(self.axes), frozenset(self.folded)
        )

    # names -----------------------------------------------------------------------------------------------------------

    def _check_launch_name(self, p: inspect.Parameter) -> None:
        if p.kind is not p.KEYWORD_ONLY or p.default is not None:
            raise self._fail(
                f"{p.name!r} is reserved: every specialized function accepts it as a keyword.",
                try_=f"list it after * as `{p.name}: ... | None = None`, or leave it out",
            )

    def _check_name(self, name: str, what: str) -> None:
        if name in RESERVED or name.startswith("_"):
            raise self._fail(f"{name!r} is a reserved name and cannot be {_an(what)}.", try_=f"{name}_")

    def _check_unique(self, arguments: list[str], parameters: list[str], outputs: list[str]) -> None:
        seen: dict[str, str] = {}
        for what, names in (
            ("argument", arguments),
            ("parameter", parameters),
            ("axis", list(self.axes)),
            ("output", outputs),
        ):
            for name in names:
                if name in seen:
                    raise self._fail(
                        f"{name!r} is {_an(seen[name])} and {_an(what)}: a name can be only one thing.",
                        try_=f'"({name})" where its value is the size, else another name for the axis'
                        if (seen[name], what) == ("parameter", "axis")
                        else f"rename the {what}",
                    )
                seen[name] = what

    def _annotation(self, p: inspect.Parameter) -> Any:
        if p.name not in self.hints:
            raise self._fail(
                f"argument {p.name!r} has no annotation.",
                allowed='an array such as Float32[Array, "M K"], or a scalar such as cuplate.f32',
            )
        return self.hints[p.name]

    # axes ------------------------------------------------------------------------------------------------------------

    def _collect_axes(self, hints: list[Any]) -> None:
        """Find every bare axis name first, so that expressions may use names that stand later."""
        for hint in hints:
            for part in _array_parts(hint):
                for text in part.dim_str.split():
                    bare = text.removeprefix("*").partition("=")[0]
                    if bare.isidentifier() and bare != "_":
                        self._check_name(bare, "axis")
                        self.axes.setdefault(bare)
                        if text.startswith("*"):
                            self.folded.add(bare)

    def _read_axes(self, dim_str: str, what: str, parameters: Collection[str]) -> tuple[Axis, ...]:
        texts = dim_str.split()
        return tuple(self._axis(text, i, what, parameters) for i, text in enumerate(texts))

    def _axis(self, text: str, position: int, what: str, parameters: Collection[str]) -> Axis:
        if text == "..." or text[0] in "#?" or text == "_":
            raise self._fail(
                f"the axis {text!r} of {what} is not supported: a kernel needs every size.",
                allowed="a name, a number, name=number, a leading *name, an expression such as N-K+1",
            )
        if text.startswith("*"):
            if position:
                raise self._fail(f"the axis {text!r} of {what} must stand first.")
            return Axis(text, name=text[1:], folded=True)
        if text.isdigit():
            return Axis(text, size=int(text))
        name, equals, number = text.partition("=")
        if equals and name.isidentifier() and number.isdigit():
            return Axis(text, name=name, size=int(number))
        if text.isidentifier():
            return Axis(text, name=text)
        known = [*self.axes, *parameters]
        expression = parse(text, names=known, function=self.name, where=f"axis of {what}")
        return Axis(text, expression=expression)

    def _check_bound(
        self, arguments: tuple[ArrayArgument | ScalarArgument, ...], outputs: tuple[ArrayArgument, ...]
    ) -> None:
        """Every axis name needs a required array, or ``name=3``, that gives its size."""
        bound = {
            axis.name
            for a in arguments
            if isinstance(a, ArrayArgument) and not a.optional
            for axis in a.axes
            if axis.name is not None
        }
        constant = [
            x for a in (*arguments, *outputs) if isinstance(a, ArrayArgument) for x in a.axes if x.size is not None
        ]
        bound |= {axis.name for axis in constant if axis.name is not None}
        for name in self.axes:
            if name in bound:
                continue
            optional = [
                a.name for a in arguments if isinstance(a, ArrayArgument) and any(x.name == name for x in a.axes)
            ]
            if optional:
                raise self._fail(f"axis {name!r} is only known from the optional array {optional[0]!r}.")
            if not any(isinstance(a, ArrayArgument) for a in arguments):
                continue  # no array argument: out= gives the sizes
            near = nearest_name(name, bound)
            raise self._fail(
                f"axis {name!r} of the output is not an axis of any argument.",
                try_=repr(near) if near else "an expression of the arguments' axes",
            )

    def _check_folded(
        self, arguments: tuple[ArrayArgument | ScalarArgument, ...], outputs: tuple[ArrayArgument, ...]
    ) -> None:
        for array in (*arguments, *outputs):
            for axis in array.axes if isinstance(array, ArrayArgument) else ():
                if axis.name in self.folded and not axis.folded:
                    raise self._fail(
                        f"axis {axis.name!r} is several axes elsewhere (*{axis.name}), and one in {array.name!r}.",
                        try_=f"*{axis.name} everywhere, or another name",
                    )

    # arrays and scalars ----------------------------------------------------------------------------------------------

    def _argument(self, p: inspect.Parameter, hint: Any, parameters: Collection[str]) -> ArrayArgument | ScalarArgument:
        parts = _array_parts(hint)
        if parts:
            optional = _nullable(hint)
            if optional and p.default is not None:
                raise self._fail(f"the optional array {p.name!r} needs the default None.")
            if not optional and p.default is not p.empty:
                raise self._fail(f"the array {p.name!r} cannot have a default.", try_="X | None = None")
            return self._array(p.name, parts, optional, parameters)
        if p.default is not p.empty:
            raise self._fail(
                f"the scalar argument {p.name!r} cannot have a default: it is a run-time value.",
                try_=f"move {p.name!r} after * to make it a compile-time parameter, or pass it in every call",
            )
        struct = self._struct(p.name, hint)
        if struct is not None:
            return ScalarArgument(p.name, str(struct), struct)
        dtype = _scalar_dtype(hint)
        if dtype is None:
            raise self._fail(
                f"argument {p.name!r} has an annotation that is neither an array nor a scalar.",
                given=_show(hint),
                allowed='Float32[Array, "M K"] and the like, cuplate.f32, f64, i32, i64, u32, ..., float, int, bool, '
                "Annotated[numpy.void, dtype] for a struct",
                try_=f"if {p.name!r} is a compile-time parameter, move it after *",
            )
        return ScalarArgument(p.name, dtype)

    def _struct(self, name: str, hint: Any) -> Struct | None:
        """Of ``Annotated[numpy.void, dtype]`` with a structured dtype."""
        notes = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
        dtype = next((note for note in notes if getattr(note, "names", None) and hasattr(note, "fields")), None)
        if dtype is None:
            return None
        try:
            return struct_of(f"{name}_t", dtype)
        except ValueError as error:
            raise self._fail(
                f"the struct {name!r} cannot be passed by value: {error}.",
                given=str(dtype),
                allowed=f"members of {', '.join(DTYPES)}, and arrays of one axis of them, laid out as in C",
                try_="numpy.dtype([...], align=True)",
            ) from None

    def _array(self, name: str, parts: tuple[Any, ...], optional: bool, parameters: Collection[str]) -> ArrayArgument:
        shapes = {part.dim_str for part in parts}
        if len(shapes) > 1:
            raise self._fail(f"the union for {name!r} has several shapes: {sorted(shapes)}.")
        allowed: dict[str, None] = {}
        for part in parts:
            allowed.update(dict.fromkeys(_known_dtypes(part)))
        if not allowed:
            raise self._fail(f"array {name!r} has no dtype that a kernel can name.", given=_show(parts[0]))
        annotation = f'{"|".join(dict.fromkeys(p.__name__.partition("[")[0] for p in parts))} "{parts[0].dim_str}"'
        axes = self._read_axes(parts[0].dim_str, name, parameters)
        dtypes = tuple(n for n in DTYPES if n in allowed)  # one order, so that equal unions are one family
        return ArrayArgument(name, dtypes, axes, optional, annotation, self.dtypes.get(name))

    def _outputs(self, parameters: Collection[str]) -> tuple[tuple[ArrayArgument, ...], Any]:
        if "return" not in self.hints:
            raise self._fail(
                "the return annotation is missing.",
                allowed='an array such as Float32[Array, "M N"], a NamedTuple class of arrays, or None with mutates=',
            )
        hint = self.hints["return"]
        if hint is None or hint is type(None):
            return (), None
        parts = _array_parts(hint)
        if parts:
            if _nullable(hint):
                raise self._fail("an output cannot be optional.")
            return (self._array("out", parts, False, parameters),), None
        hint = typing.get_origin(hint) or hint  # Two[Array], of a generic NamedTuple, means Two
        if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
            module = sys.modules.get(hint.__module__)
            fields = self._hints(hint, {**self.function.__globals__, **(vars(module) if module else {})})
            self._collect_axes(list(fields.values()))
            outputs = []
            for field in getattr(hint, "_fields"):  # noqa: B009 - a NamedTuple, which no checker can know
                parts = _array_parts(fields[field])
                if not parts:
                    raise self._fail(f"field {field!r} of {hint.__name__} is not an array.", given=_show(fields[field]))
                if field != "out":
                    self._check_name(field, "output")
                outputs.append(self._array(field, parts, False, parameters))
            return tuple(outputs), hint
        raise self._fail(
            "the return annotation is neither an array, a NamedTuple class of arrays, nor None.",
            given=_show(hint),
            try_='for several outputs, class Result(NamedTuple) with fields such as low: Float32[Array, " M"]'
            if hint is tuple or typing.get_origin(hint) is tuple
            else None,
        )

    def _check_dtypes(
        self,
        arguments: tuple[ArrayArgument | ScalarArgument, ...],
        outputs: tuple[ArrayArgument, ...],
        parameters: Collection[str],
    ) -> None:
        arrays = [a for a in (*arguments, *outputs) if isinstance(a, ArrayArgument)]
        for name, parameter in self.dtypes.items():
            if name not in {a.name for a in arrays}:
                raise self._fail(
                    f"dtypes= names {name!r}, which is no array.", allowed=", ".join(a.name for a in arrays)
                )
            if parameter not in parameters:
                raise self._fail(f"dtypes= names {parameter!r}, which is no parameter.", allowed=", ".join(parameters))
        known = {a.family for a in arguments if isinstance(a, ArrayArgument) and not a.optional}
        for output in outputs:
            if output.family and output.family not in known and any(isinstance(a, ArrayArgument) for a in arguments):
                raise self._fail(
                    f"the dtype of output {output.name!r} is open: no argument has the same dtype family.",
                    given=output.annotation,
                    try_=f'a fixed dtype, or dtypes={{"{output.name}": "<parameter>"}}',
                )

    # parameters ------------------------------------------------------------------------------------------------------

    def _parameter(self, p: inspect.Parameter) -> Parameter:
        hint = self.hints.get(p.name, Any)
        nullable = _nullable(hint)
        options = [o for o in _union(hint) if o is not type(None)]
        if len(options) != 1:
            raise self._fail(f"parameter {p.name!r} is a union, which cannot be enforced.", given=_show(hint))
        if _array_parts(options[0]):
            raise self._fail(
                f"parameter {p.name!r} is annotated as an array: what stands after * is a compile-time value.",
                try_=f"move {p.name!r} before *",
            )
        kind, allowed = self._parameter_kind(p.name, options[0])
        notes = typing.get_args(options[0])[1:] if typing.get_origin(options[0]) is Annotated else ()
        text = next((note for note in notes if isinstance(note, DeviceText)), None) if kind == "str" else None
        parameter = Parameter(p.name, kind, allowed, p.default, _show(hint), nullable, text=text)
        return self._tuned(parameter, p.default) if isinstance(p.default, Tunable) else parameter

    def _tuned(self, parameter: Parameter, tunable: Tunable) -> Parameter:
        """With a plain default, for all that knows nothing of tuning; `autotune.space` checks what is to be chosen."""
        name = parameter.name
        parameter = replace(parameter, tunable=tunable)
        defaults = [p.default for p in inspect.signature(self.function).parameters.values()]
        for said in (tunable, *(d for d in defaults if isinstance(d, Tunable))):
            if said.configs is not None and name in said.configs[0]:
                first: Any = said.configs[0] if said.default is UNSAID else said.default
                return replace(parameter, default=first[name] if isinstance(first, Mapping) and name in first else None)
        if tunable.default is not UNSAID:
            return replace(parameter, default=tunable.default)
        return replace(parameter, default=parameter.candidates[0] if parameter.candidates else None)

    def _parameter_kind(self, name: str, hint: Any) -> tuple[str, tuple[Any, ...]]:
        if typing.get_origin(hint) is Annotated:
            plain = typing.get_args(hint)[0]
            if (dtype := _scalar_dtype(hint)) not in (None, _scalar_dtype(plain)):
                raise self._fail(
                    f"parameter {name!r} is annotated as {dtype}: after * stand compile-time values of Python's.",
                    allowed="bool, int, float, str, Literal, an Enum, a dtype, a list of these",
                    try_=f"move {name!r} before * for a run-time scalar, or write {_show(plain)}",
                )
            hint = plain
        if typing.get_origin(hint) is Literal:
            return "literal", typing.get_args(hint)
        if hint is Any:
            return "any", ()
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return "enum", tuple(hint)
        if typing.get_origin(hint) in (list, tuple) or hint in (list, tuple):
            elements = tuple(e for e in typing.get_args(hint) if e is not Ellipsis)
            return "list", elements if all(e in (bool, int, float, str) for e in elements) else ()
        if hint in (bool, int, float, str):
            return hint.__name__, ()
        if getattr(hint, "__module__", "").partition(".")[0] == "numpy":
            return "dtype", ()
        raise self._fail(
            f"parameter {name!r} has an annotation that cannot be enforced.",
            given=_show(hint),
            allowed="Literal[...], bool, int, float, str, an Enum class, a list or tuple of these, numpy.dtype",
        )


def _an(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


def _union(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _nullable(hint: Any) -> bool:
    return type(None) in _union(hint)


def _array_parts(hint: Any) -> tuple[Any, ...]:
    """The jaxtyping classes of an annotation; empty when it is no array."""
    parts = tuple(o for o in _union(hint) if o is not type(None))
    return parts if parts and all(hasattr(o, "dim_str") and hasattr(o, "dtypes") for o in parts) else ()


def _known_dtypes(part: Any) -> tuple[str, ...]:
    if not isinstance(part.dtypes, (tuple, list)):  # Shaped: any dtype
        return tuple(DTYPES)
    return tuple(name for name in part.dtypes if name in DTYPES)


def _scalar_dtype(hint: Any) -> str | None:
    if typing.get_origin(hint) is Annotated:
        for note in typing.get_args(hint)[1:]:
            name = note if isinstance(note, str) else getattr(note, "__name__", getattr(note, "name", ""))
            name = {"bool_": "bool"}.get(name, name)
            if name in DTYPES:
                return name
        return None
    if hint is bool:
        return "bool"
    return {float: "float64", int: "int64"}.get(hint)


def _show(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
