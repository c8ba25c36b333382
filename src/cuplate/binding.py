"""One decoration, parsed and checked once: what `specialize` says beside the signature."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuplate.dtypes import DTYPES
from cuplate.errors import DeclarationError
from cuplate.expression import DEVICE_FACTS, Expression, parse
from cuplate.hints import nearest_name
from cuplate.options import Options
from cuplate.signature import CPP_KEYWORDS, RESERVED, Signature
from cuplate.specialization import Fact
from cuplate.template import Inline, Template, check_names, names_in, read
from cuplate.tensor_map import ALIGNMENT, MOST_AXES, BoundMap, TensorMap

if TYPE_CHECKING:
    from cuplate.autotune.space import Space

__all__ = ["Binding", "Scratch", "read_binding"]

DEFAULT_BLOCK = (256,)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that a call allocates for the kernel alone: `size` elements of `dtype`."""

    name: str
    dtype: str
    size: Expression


@dataclass(frozen=True, slots=True)
class Binding:
    """A signature, a template and how they meet.

    Attributes
    ----------
    signature : Signature
    template : Template
    entry : str
        Jinja source of the kernel's name.
    options : Options
        What reaches the compiler.
    tiles : tuple of (Expression, Expression)
        (size, tile) for grid x, y, z.
    block : tuple of Expression
        Threads in x, y, z.
    grid : tuple of Expression, callable or None
        Blocks in x, y, z, when not covered by tiles.
    cluster : tuple of Expression or None
        Blocks of a cluster.
    shared_bytes : Expression or None
        Dynamic shared memory.
    cooperative : bool
        Whether all blocks must be resident.
    static : frozenset of str
        Axes that are constants in the text.
    mutates : tuple of str
        Array arguments that the kernel writes.
    zeroed : tuple of str
        Written arrays that are zeroed first.
    scratch : tuple of Scratch
    maps : tuple of BoundMap
        Arrays that the kernel takes as tensor maps, and scratch that it takes so too.
    require : tuple of Expression
        Conditions on a call.
    when : tuple of Expression
        Conditions under which a function that has this one among its variants runs it.
    arguments : tuple of (str, Expression or None) or None
        The kernel's own order: our names, or expressions passed as integers; None for the standard order, or to match
        by name.
    facts : frozenset of Fact
        Layout facts that the template, `arguments` or an expression reads.
    space : Space or None
        Candidates of the tuned parameters.
    written : frozenset of str
        Arrays that the kernel may write.
    """

    signature: Signature
    template: Template
    entry: str
    options: Options
    tiles: tuple[tuple[Expression, Expression], ...]
    block: tuple[Expression, ...]
    grid: tuple[Expression, ...] | Callable[[Any], Any] | None
    cluster: tuple[Expression, ...] | None
    shared_bytes: Expression | None
    cooperative: bool
    static: frozenset[str]
    mutates: tuple[str, ...]
    zeroed: tuple[str, ...]
    scratch: tuple[Scratch, ...]
    maps: tuple[BoundMap, ...]
    require: tuple[Expression, ...]
    when: tuple[Expression, ...]
    arguments: tuple[tuple[str, Expression | None], ...] | None
    facts: frozenset[Fact]
    space: Space | None = None
    written: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        outputs = (o.name for o in self.signature.outputs)
        object.__setattr__(self, "written", frozenset((*self.mutates, *outputs, *(s.name for s in self.scratch))))

    @property
    def kernel_facts(self) -> frozenset[Fact]:
        """Facts that reach the kernel, in its text or its parameter list, and so make it follow a layout.

        A condition of ``require=`` that reads a stride does not.
        """
        listed = {fact for _, e in self.arguments or () if e is not None for fact in e.facts}
        return frozenset(self.facts & (self.template.facts | listed))

    def expressions(self) -> list[Expression]:
        """Every expression of the decoration."""
        grid = self.grid if isinstance(self.grid, tuple) else ()
        single = [self.shared_bytes] if self.shared_bytes else []
        pairs = [e for pair in self.tiles for e in pair]
        scratch = [s.size for s in self.scratch]
        boxes = [e for m in self.maps for e in (*m.box, *m.shape)]
        launch = [*pairs, *self.block, *grid, *(self.cluster or ()), *single]
        return [*launch, *scratch, *boxes, *self.require, *self.when]


def read_binding(
    signature: Signature, template: str | Path | Inline, *, anchor: Path | None, keywords: Mapping[str, Any]
) -> Binding:
    """Check the keywords of `specialize` against `signature`, and the template against both.

    Parameters
    ----------
    signature : Signature
    template : str, Path or Inline
    anchor : Path or None
        Folder of the file that decorates; relative templates are looked up there first.
    keywords : mapping
        As given to `specialize`.

    Raises
    ------
    DeclarationError, ExpressionError, TemplateError
        At decoration, before anything is called.
    """
    return _Reader(signature, keywords).read(read(template, anchor=anchor, function=signature.function))


class _Reader:
    def __init__(self, signature: Signature, keywords: Mapping[str, Any]) -> None:
        self.signature = signature
        self.keywords = keywords
        self.function = signature.function
        self.arrays = [a.name for a in signature.arrays] + [o.name for o in signature.outputs]
        self.parameters = [p.name for p in signature.parameters]
        self.names = [*signature.axes, *self.parameters]

    def _fail(self, summary: str, **facts: Any) -> DeclarationError:
        return DeclarationError(summary, function=self.function, **facts)

    def read(self, template: Template) -> Binding:
        k = self.keywords
        mutates = self._names("mutates", k["mutates"], [a.name for a in self.signature.arrays])
        if not self.signature.outputs and not mutates:
            raise self._fail(
                "the kernel has no output: the return annotation is None and mutates= names no array.",
                try_='mutates="x", or a return annotation',
            )
        scratch = self._scratch(k["scratch"])
        maps = self._maps(k["tensor_maps"], [s.name for s in scratch])
        written = [*(o.name for o in self.signature.outputs), *mutates, *(s.name for s in scratch)]
        binding = Binding(
            signature=self.signature,
            template=template,
            entry=self._entry(k["entry"]),
            options=Options.from_value(k["options"]),
            tiles=self._tiles(k["tiles"], k["grid"], mutates),
            block=self._dimensions("block", DEFAULT_BLOCK if k["block"] is None else k["block"]),
            grid=k["grid"] if callable(k["grid"]) or k["grid"] is None else self._dimensions("grid", k["grid"]),
            cluster=None if k["cluster"] is None else self._dimensions("cluster", k["cluster"]),
            shared_bytes=None if k["shared_bytes"] is None else self._parse(k["shared_bytes"], "shared_bytes"),
            cooperative=self._switch("cooperative", k["cooperative"]),
            static=frozenset(self._names("static", k["static"], list(self.signature.axes))),
            mutates=mutates,
            zeroed=self._names("zeroed", k["zeroed"], written),
            scratch=scratch,
            maps=maps,
            require=self._conditions("require", k["require"]),
            when=self._conditions("when", k["when"]),
            arguments=self._arguments(k["args"], [*(s.name for s in scratch), *(m.name for m in maps if m.shape)]),
            facts=frozenset(),
            space=self._space(),
        )
        self._check_template(binding)
        return self._with_facts(binding)

    def _space(self) -> Space | None:
        if all(parameter.tunable is None for parameter in self.signature.parameters):
            return None
        from cuplate.autotune.space import read_space

        return read_space(self.signature, self.arrays)

    def _with_facts(self, binding: Binding) -> Binding:
        facts = set(binding.template.facts)
        for expression in binding.expressions():
            facts |= expression.facts
        facts |= {fact for _, e in binding.arguments or () if e is not None for fact in e.facts}
        # Without it there is no descriptor; scratch is fresh memory.
        facts |= {Fact(m.name, "aligned", ALIGNMENT) for m in binding.maps if not m.shape}
        self._check_axes_of(facts)
        unknown = {f for f in facts if f.array not in (*self.arrays, *(s.name for s in binding.scratch))}
        return replace(binding, facts=frozenset(facts - unknown))

    def _check_axes_of(self, facts: set[Fact]) -> None:
        axes = {a.name: len(a.axes) for a in (*self.signature.arrays, *self.signature.outputs)}
        for fact in facts:
            if fact.name == "stride" and fact.array in axes and not 0 <= (fact.value or 0) < axes[fact.array]:
                raise self._fail(
                    f"{fact.array}.stride({fact.value}) is read, and {fact.array!r} has {axes[fact.array]} axes.",
                    allowed=f"0 to {axes[fact.array] - 1}",
                )

    # keywords ---------------------------------------------------------------------------------------------------------

    def _parse(self, text: Any, where: str) -> Expression:
        return parse(text, names=[*self.names, *DEVICE_FACTS], arrays=self.arrays, function=self.function, where=where)

    def _conditions(self, keyword: str, value: Any) -> tuple[Expression, ...]:
        return tuple(self._parse(text, f"{keyword}[{i}]") for i, text in enumerate(self._sequence(keyword, value)))

    def _switch(self, keyword: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self._fail(f"{keyword}= is True or False.", given=repr(value))
        return value

    def _entry(self, entry: str | None) -> str:
        if entry is None:
            if self.function in CPP_KEYWORDS:
                raise self._fail(f"{self.function!r} is a C++ keyword and cannot be a kernel's name.", try_="entry=")
            return self.function
        if not isinstance(entry, str) or not entry.strip():
            raise self._fail("entry= is the kernel's name in the source.", given=repr(entry), try_='entry="sgemm"')
        return entry.strip()

    def _names(self, keyword: str, value: Any, allowed: Sequence[str]) -> tuple[str, ...]:
        names = tuple(self._sequence(keyword, value))
        for name in names:
            if name not in allowed:
                near = nearest_name(name, allowed)
                raise self._fail(
                    f"{keyword}= names {name!r}, which it cannot.",
                    allowed=", ".join(allowed) or "nothing here",
                    try_=repr(near) if near else None,
                )
        return names

    def _sequence(self, keyword: str, value: Any) -> Iterable[Any]:
        """A lone string stands for one item."""
        if value is None:
            return ()
        if isinstance(value, (str, bool, int)):
            return (value,)
        if not isinstance(value, Iterable):
            raise self._fail(f"{keyword}= is a string, or several.", given=f"{value!r:.60}")
        return tuple(value)

    def _dimensions(self, keyword: str, value: Any) -> tuple[Expression, ...]:
        items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not 1 <= len(items) <= 3:
            raise self._fail(f"{keyword}= has {len(items)} dimensions.", allowed="1 to 3")
        return tuple(self._parse(item, f"{keyword}[{i}]") for i, item in enumerate(items))

    def _tiles(
        self, tiles: Mapping[str, Any] | None, grid: Any, mutates: tuple[str, ...]
    ) -> tuple[tuple[Expression, Expression], ...]:
        if tiles is not None and grid is not None:
            raise self._fail("tiles= and grid= both give the grid.", try_="one of them")
        if tiles is None:
            if grid is None:
                self._check_default_grid(mutates)
            return ()
        if not isinstance(tiles, Mapping) or not 1 <= len(tiles) <= 3:
            raise self._fail(
                "tiles= maps one to three axes to tile sizes, for grid x, y, z in that order.",
                given=repr(tiles),
                try_='tiles={"N": "tile"}',
            )
        return tuple(
            (self._parse(size, f"tiles key {size!r}"), self._parse(tile, f"tiles[{size!r}]"))
            for size, tile in tiles.items()
        )

    def _check_default_grid(self, mutates: tuple[str, ...]) -> None:
        """One thread per element of the first output is a guess; refuse it where it is likely wrong."""
        outputs = self.signature.outputs or [a for a in self.signature.arrays if a.name in mutates]
        covered = {axis.name for o in outputs for axis in o.axes} | {
            n for o in outputs for axis in o.axes if axis.expression for n in axis.expression.names
        }
        for array in self.signature.arrays:
            for axis in array.axes:
                if axis.name and axis.name not in covered:
                    raise self._fail(
                        f"axis {axis.name!r} of {array.name!r} is in no output, so one thread per output element is no "
                        "safe guess for the grid.",
                        try_='tiles={"N": "tile"} or grid=("cdiv(N, 256)",)',
                    )

    def _scratch(self, scratch: Mapping[str, Any] | None) -> tuple[Scratch, ...]:
        result = []
        if not isinstance(scratch or {}, Mapping):
            raise self._fail(
                "scratch= maps names to (dtype, size).",
                given=f"{scratch!r:.60}",
                try_='scratch={"state": ("uint64", "cdiv(N, 256)")}',
            )
        for name, value in (scratch or {}).items():
            if not (isinstance(value, tuple) and len(value) == 2 and value[0] in tuple(DTYPES)):
                raise self._fail(
                    f"scratch={{{name!r}: {value!r}}} is not (dtype, size).",
                    allowed=", ".join(DTYPES),
                    try_=f'scratch={{"{name}": ("uint64", "cdiv(N, tile)")}}',
                )
            self._check_own_name("scratch", name)
            result.append(Scratch(name, value[0], self._parse(value[1], f"scratch[{name!r}]")))
        return tuple(result)

    def _maps(self, maps: Any, scratch: list[str]) -> tuple[BoundMap, ...]:
        if not isinstance(maps or {}, Mapping):
            raise self._fail(
                "tensor_maps= maps arrays to TensorMap.",
                given=f"{maps!r:.60}",
                try_='tensor_maps={"a": TensorMap(box=("tile_m", 64), swizzle="128B")}',
            )
        named = [name for name, m in (maps or {}).items() if not isinstance(m, TensorMap) or m.of is None]
        names = self._names("tensor_maps", named, self.arrays)
        if maps and self.signature.has_structs:
            raise self._fail(
                "a function with tensor_maps= cannot take a struct by value.",
                try_="its members as scalars, or an array",
            )
        axes = {a.name: len(a.axes) for a in (*self.signature.arrays, *self.signature.outputs)}
        result = []
        for name, declared in (maps or {}).items():
            if name not in names:
                result.append(self._scratch_map(name, declared, scratch))
                continue
            if not isinstance(declared, TensorMap):
                raise self._fail(
                    f"tensor_maps[{name!r}] is no TensorMap.",
                    given=f"{declared!r:.60}",
                    try_='TensorMap(box=("tile_m", 64), swizzle="128B")',
                )
            if len(declared.box) != axes[name] or not 1 <= axes[name] <= MOST_AXES:
                raise self._fail(
                    f"the box of {name!r} has {len(declared.box)} sizes, and the array has {axes[name]} axes.",
                    allowed=f"a size for each axis, of 1 to {MOST_AXES} axes",
                )
            if declared.shape:
                raise self._fail(f"tensor_maps[{name!r}] has a shape, and the array has its own.", try_="no shape=")
            result.append(BoundMap.of(name, declared, self._sizes(declared.box, f"box of {name}")))
        return tuple(result)

    def _scratch_map(self, name: Any, declared: TensorMap, scratch: list[str]) -> BoundMap:
        """An entry with ``of=``: a name of its own, and the shape that the scratch has not."""
        if declared.of not in scratch:
            near = nearest_name(declared.of, scratch)
            raise self._fail(
                f"tensor_maps[{name!r}] describes {declared.of!r}, which is no scratch.",
                allowed=", ".join(scratch) or "nothing here: there is no scratch=",
                try_=f"of={near!r}" if near else "an array under its own name, without of=",
            )
        self._check_own_name("tensor map", name, scratch)
        if len(declared.box) != len(declared.shape) or not 1 <= len(declared.shape) <= MOST_AXES:
            raise self._fail(
                f"the box of {name!r} has {len(declared.box)} sizes, and its shape has {len(declared.shape)}.",
                allowed=f"as many of both, 1 to {MOST_AXES}",
                try_=f'shape=(2, "M", "K"), how {declared.of} is laid out',
            )
        box = self._sizes(declared.box, f"box of {name}")
        return BoundMap.of(name, declared, box, self._sizes(declared.shape, f"shape of {name}"))

    def _sizes(self, items: Sequence[Any], where: str) -> tuple[Expression, ...]:
        return tuple(self._parse(item, f"{where}[{i}]") for i, item in enumerate(items))

    def _check_own_name(self, what: str, name: Any, others: Iterable[str] = ()) -> None:
        """Refuse what cannot be the name of a kernel's parameter that is no argument of the function."""
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
            raise self._fail(f"the {what} name {name!r} is no name in C and Python.", try_="a plain word")
        scalars = [s.name for s in self.signature.scalars]
        if name in (*self.names, *self.arrays, *scalars, *RESERVED, *others):
            raise self._fail(f"the {what} name {name!r} is taken.", try_=f"{name}_")

    def _arguments(self, args: Any, scratch: list[str]) -> tuple[tuple[str, Expression | None], ...] | None:
        if args is None:
            return None
        if not isinstance(args, str) and not (
            isinstance(args, (list, tuple)) and all(isinstance(a, str) for a in args)
        ):
            raise self._fail("args= lists names.", given=repr(args), try_='args="out a b M N K"')
        tokens = tuple(args.replace(",", " ").split()) if isinstance(args, str) else tuple(args)
        plain = {*self.arrays, *(s.name for s in self.signature.scalars), *self.signature.axes, *scratch}
        for token in tokens:
            if token in self.parameters:
                raise self._fail(
                    f"args= names the parameter {token!r}: a compile-time value is in the text, not in the list."
                )
        scalars = [s.name for s in self.signature.scalars]
        missing = [a for a in (*self.arrays, *scratch, *scalars) if a not in tokens and not self._is_optional(a)]
        if missing:
            what = "scalar" if missing[0] in scalars else "array"
            raise self._fail(f"args= leaves out the {what} {missing[0]!r}.", given=" ".join(tokens))
        return tuple((t, None if t in plain else self._parse(t, "args")) for t in tokens)

    def _is_optional(self, name: str) -> bool:
        return any(a.name == name and a.optional for a in self.signature.arrays)

    # template ---------------------------------------------------------------------------------------------------------

    def _check_template(self, binding: Binding) -> None:
        kinds = dict.fromkeys(self.parameters, "parameter") | dict.fromkeys(self.signature.axes, "axis")
        kinds |= {s.name: "scalar" for s in self.signature.scalars}
        described = [*(s.name for s in binding.scratch), *(m.name for m in binding.maps)]
        kinds |= dict.fromkeys([*self.arrays, *described], "array")
        used = {n for e in binding.expressions() for n in e.names}
        used |= {a.dtype_parameter for a in (*self.signature.arrays, *self.signature.outputs) if a.dtype_parameter}
        used |= {n for a in (*self.signature.arrays, *self.signature.outputs) for x in a.axes if x.expression
                 for n in x.expression.names}  # fmt: skip
        used |= names_in(binding.entry, function=self.function)
        if callable(binding.grid):
            used |= set(self.parameters)  # a callable may read any of them
        check_names(
            binding.template,
            known=kinds,
            parameters=self.parameters,
            used_elsewhere=used,
            function=self.function,
            arguments=[a.name for a in self.signature.arguments],
        )
        if binding.arguments is not None and binding.template.writes_args:
            raise self._fail(
                "args= is for a kernel that writes its own parameter list, but the template uses {{ args }}.",
                try_="leave out one of them",
            )
