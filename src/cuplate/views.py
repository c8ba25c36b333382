"""Arrays, scalars and axes as a template sees them: they print their C name, and answer only what is known."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, NoReturn

from cuplate.dtypes import DTYPES
from cuplate.errors import TemplateError
from cuplate.hints import nearest_name
from cuplate.literal import cpp
from cuplate.specialization import ArrayFacts, AxisFacts, Fact
from cuplate.structs import Struct
from cuplate.template import ATTRIBUTES

__all__ = ["ArrayView", "AxisView", "Block", "Member", "ScalarView", "StaticAxis", "Withheld", "axis_view"]

_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs lt le gt ge eq "
    "ne int float index len iter contains getitem call lshift rshift and or xor round"
)


class _View:
    """Refuses everything that has no meaning before the launch; subclasses say what has."""

    __slots__ = ()

    attributes: ClassVar[frozenset[str]] = frozenset()

    def _refuse(self, *_: object) -> NoReturn:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        # Jinja probes its values for names of its own.
        if name.startswith(("_", "jinja_")):
            raise AttributeError(name)
        raise TemplateError(
            f"`{self}.{name}` does not exist",
            allowed=", ".join(sorted(self.attributes)) or "no attributes", try_=nearest_name(name, self.attributes),
        )  # fmt: skip


for _operator in f"{_OPERATORS} hash".split():
    setattr(_View, f"__{_operator}__", lambda self, *_: self._refuse())


class ArrayView(_View):
    """An array: prints its C name, is true when it is present.

    Attributes
    ----------
    name, ctype, dtype : str
        ``"a"``, ``"float"``, ``"float32"``.
    itemsize, ndim : int
        Bytes of one element, number of axes.
    """

    __slots__ = ("_facts",)

    attributes = ATTRIBUTES["array"]
    optional = True

    def __init__(self, facts: ArrayFacts) -> None:
        self._facts = facts

    def __cpp__(self) -> str:
        return self._present().name

    def __str__(self) -> str:
        return self._facts.name

    def __bool__(self) -> bool:
        return self._facts.present

    def _present(self) -> ArrayFacts:
        if not self._facts.present:
            raise TemplateError(
                f"the optional array `{self}` was not given, so nothing of it can be read", try_=f"{{% if {self} %}}"
            )
        return self._facts

    def _refuse(self, *_: object) -> NoReturn:
        raise TemplateError(
            f"`{self}` is an array: its elements are known only in the kernel",
            allowed=f"{{{{ {self} }}}}, {{% if {self} %}}, "
            + ", ".join(f"{self}.{name}" for name in sorted(self.attributes)),
        )

    @property
    def name(self) -> str:
        """The C name, as the signature has it."""
        return self._present().name

    @property
    def ctype(self) -> str:
        """The C type of one element."""
        return DTYPES[self._present().dtype].ctype

    @property
    def dtype(self) -> str:
        """NumPy's or ml_dtypes' name of the dtype."""
        return self._present().dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self._present().dtype].itemsize

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._present().ndim

    @property
    def order(self) -> str:
        """``"C"``, ``"F"`` or ``"strided"``."""
        order = self._present().order
        return self._unknown(Fact(str(self), "order")) if order is None else order

    def aligned(self, size_bytes: int) -> bool:
        """Return whether the first element lies at a multiple of so many bytes."""
        return bool(self._look(self._present().aligned, "aligned", size_bytes))

    def stride(self, axis: int) -> int:
        """Return the distance of neighbours along an axis, in elements."""
        return int(self._look(self._present().strides, "stride", axis))

    def _look(self, known: tuple[tuple[int, Any], ...], name: str, value: int) -> Any:
        for asked, answer in known:
            if asked == value:
                return answer
        return self._unknown(Fact(str(self), name, value))

    def _unknown(self, fact: Fact) -> NoReturn:
        spelled = f"{fact.array}.{fact.name}" + ("" if fact.value is None else f"({fact.value})")
        raise TemplateError(
            f"the fact `{spelled}` is not part of this specialization",
            allowed="facts that stand in the template under the array's own name, with a constant: a.stride(0)",
            try_=f"{{{{ {spelled} }}}}, spelled out, rather than through a macro's argument or a loop variable",
        )


class ScalarView(_View):
    """A run-time scalar: prints its C name, and has a type; a struct has its definition too."""

    __slots__ = ("_struct", "ctype", "dtype", "name")

    attributes = ATTRIBUTES["scalar"]

    def __init__(self, name: str, dtype: str | Struct) -> None:
        self.name = name
        self._struct = dtype if isinstance(dtype, Struct) else None
        self.dtype = "struct" if isinstance(dtype, Struct) else dtype
        self.ctype = dtype.name if isinstance(dtype, Struct) else DTYPES[dtype].ctype

    @property
    def definition(self) -> str:
        """C++ that defines the struct."""
        if self._struct is None:
            raise TemplateError(
                f"`{self}.definition` does not exist: `{self}` is {self.dtype}, and no struct",
                try_=f"{{{{ {self}.ctype }}}}",
            )
        return self._struct.definition

    def __cpp__(self) -> str:
        return self.name

    __str__ = __cpp__

    def __bool__(self) -> bool:
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise TemplateError(
            f"`{self}` is a run-time scalar: its value is known only at the launch",
            try_=f"a keyword-only parameter for it, `*, {self}`, or C++: if ({self} > 0)",
        )


class AxisView(_View):
    """A run-time size: prints its C name."""

    __slots__ = ("_tile_index", "name")

    attributes = ATTRIBUTES["axis"]

    def __init__(self, facts: AxisFacts) -> None:
        self.name = facts.name
        self._tile_index = facts.tile_index

    def __cpp__(self) -> str:
        return self.name

    __str__ = __cpp__

    def __bool__(self) -> bool:
        self._refuse()

    @property
    def tile_index(self) -> str:
        """C expression of this block's tile on the axis."""
        return _tile_index(self.name, self._tile_index)

    def _refuse(self, *_: object) -> NoReturn:
        raise TemplateError(
            f"`{self}` is a run-time size: it has no value while the template renders",
            try_=f'static=("{self}",) makes it a constant; in C++ write {{{{ {self} }}}}',
        )


class StaticAxis(int):
    """A size that ``static=`` made a constant: an int that knows its tile."""

    def __new__(cls, facts: AxisFacts) -> StaticAxis:
        """Make the constant from its facts."""
        self = super().__new__(cls, facts.size or 0)
        self.name = facts.name
        self._tile_index = facts.tile_index
        return self

    name: str
    _tile_index: str | None

    @property
    def tile_index(self) -> str:
        """C expression of this block's tile on the axis."""
        return _tile_index(self.name, self._tile_index)


def axis_view(facts: AxisFacts) -> AxisView | StaticAxis:
    """Return a constant for a ``static=`` axis, a name for a run-time size."""
    return AxisView(facts) if facts.size is None else StaticAxis(facts)


def _tile_index(name: str, expression: str | None) -> str:
    if expression is None:
        raise TemplateError(
            f"`{name}.tile_index` needs tiles= to cover the axis `{name}` by its name", try_=f'tiles={{"{name}": ...}}'
        )
    return expression


class Member:
    """A member of a plain Enum, equal to its value too, as in expressions: ``mode == "fast"`` is no silent False.

    Members of an IntEnum or StrEnum need none of this.
    """

    __slots__ = ("_member",)

    def __init__(self, member: Enum) -> None:
        self._member = member

    def __cpp__(self) -> str:
        return cpp(self._member)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def __eq__(self, other: object) -> bool:
        other = other._member if isinstance(other, Member) else other
        return bool(other is self._member or (not isinstance(other, Enum) and other == self._member.value))

    def __hash__(self) -> int:
        return hash(self._member.value)

    def __bool__(self) -> bool:
        return bool(self._member)

    def __str__(self) -> str:
        return str(self._member)


class Withheld(_View):
    """A name whose value has no text; any use but an attribute fails with its reason."""

    __slots__ = ("_hint", "_name", "_reason")

    def __init__(self, name: str, reason: str, hint: str) -> None:
        self._name, self._reason, self._hint = name, reason, hint

    def __str__(self) -> str:
        return self._name

    def __cpp__(self) -> str:
        self._refuse()

    def __bool__(self) -> bool:
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise TemplateError(self._reason, try_=self._hint)


class Block(Withheld):
    """Threads of a block: ``block.x``, ``block.y``, ``block.z`` and their product ``block.size``."""

    __slots__ = ("size", "x", "y", "z")

    attributes = ATTRIBUTES["block"]

    def __init__(self, threads: tuple[int, int, int]) -> None:
        super().__init__("block", "`block` has three sizes, and no text of its own", "{{ block.x }}, {{ block.size }}")
        self.x, self.y, self.z = threads
        self.size = self.x * self.y * self.z
