"""The small language of ``tiles=``, ``block=``, ``require=`` and their like: parsed at decoration, evaluated per plan.

Text is read by ``ast.parse`` and walked into closures; nothing that a user wrote is compiled or evaluated by Python.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn, SupportsIndex

from cuplate.errors import ExpressionError
from cuplate.hints import nearest_name
from cuplate.specialization import Fact

__all__ = ["ARRAY_FACTS", "DEVICE_FACTS", "FUNCTIONS", "Expression", "cdiv", "parse"]

DEVICE_FACTS = ("arch", "sm_count", "max_shared_bytes", "on_gpu")
"""Names every expression may use: compute capability (90 for sm_90a), multiprocessors, opt-in bytes per block, and
False for the CPU backend."""

ARRAY_FACTS = ("itemsize", "ndim", "dtype", "order", "aligned", "stride")

# Bounds that keep a typing mistake from hanging an import; no launch quantity comes near them.
_LONG, _SHOWN = 120, 60  # of a condition: what nobody reads, and how much of it is shown then
_MAX_BITS = 4096
_MAX_CHARACTERS = 4096
_MAX_DEPTH = 100

_Values = Mapping[str, object]
_Node = Callable[[_Values], object]


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up, exactly, for any signs: ``cdiv(1000, 256)`` is 4.

    Raises
    ------
    ZeroDivisionError
        ``b`` is 0.
    """
    return -(-a // b)


FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int | None]] = {  # function, fewest and most arguments
    "cdiv": (cdiv, 2, 2),
    "min": (min, 2, None),
    "max": (max, 2, None),
    "abs": (abs, 1, 1),
}


@dataclass(frozen=True, slots=True, repr=False)
class Expression:
    """One parsed expression; made by `parse`.

    Attributes
    ----------
    text : str
        As written, without surrounding white space.
    function, where : str
        Printed in messages: the specialized function, and the place in its decoration, such as ``tiles["N"]``.
    names : frozenset of str
        Bare names used: axes, parameters, device facts. Arrays are not among them.
    arrays : frozenset of str
        Arrays whose presence or facts are used.
    facts : frozenset of Fact
        Facts that must be part of the specialization: ``aligned(n)``, ``stride(i)``, ``order``.
    """

    text: str
    function: str
    where: str
    names: frozenset[str]
    arrays: frozenset[str]
    facts: frozenset[Fact]
    _tree: ast.expr = field(compare=False)
    _run: _Node = field(compare=False)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.text, sorted(self.names), sorted(self.arrays), self.function, self.where)

    @property
    def tree(self) -> ast.expr:
        """The syntax tree, for who computes with something else than integers."""
        return self._tree

    @property
    def is_name(self) -> bool:
        """Whether the expression is a single bare name, and not an array's."""
        return self.text in self.names

    def evaluate(self, values: _Values) -> object:
        """The value for one call.

        Parameters
        ----------
        values : mapping
            Bare names to Python values (an Enum member stands for its ``value``), array names to objects that have
            ``itemsize``, ``ndim``, ``dtype``, ``order``, ``aligned(n)``, ``stride(i)`` and are true when present.

        Returns
        -------
        int, bool, float, str or None

        Raises
        ------
        ExpressionError
            The arithmetic fails for these values (division by zero, a negative shift, a string in a sum, ...), or a
            name has none.
        """
        try:
            return self._run(values)
        except _Failure as failure:
            raise self._error(failure.summary, values, at=failure.node, try_=failure.try_) from None
        except KeyError as unknown:  # a size or a device fact, where `inspect` was given neither arrays nor shapes
            hint = (
                "arrays, or an ArraySpec with a shape" if unknown.args[0] not in DEVICE_FACTS else "arrays on a device"
            )
            raise self._error(f"{unknown.args[0]} has no value here", values, try_=hint) from None

    def broken(self, values: _Values) -> str:
        """That a condition does not hold, for a message; of a long comparison, which nobody reads, its two values."""
        if len(self.text) <= _LONG:
            return f"{self.text!r} does not hold"
        told = f"{self.text[:_SHOWN].rstrip() + ' ...'!r} does not hold"
        tree = self._tree
        if not isinstance(tree, ast.Compare) or len(tree.ops) > 1 or isinstance(tree.ops[0], ast.In | ast.NotIn):
            return told
        sides = (str(ast.get_source_segment(self.text, side)) for side in (tree.left, tree.comparators[0]))
        left, right = (_rebuild(side, [*self.names], [*self.arrays], self.function, self.where) for side in sides)
        return f"{told}: {left.evaluate(values)} {_COMPARE[type(tree.ops[0])][0]} {right.evaluate(values)}"

    def integer(self, values: _Values) -> int:
        """The value for one call, which must be an int: no bool, no float.

        Raises
        ------
        ExpressionError
            As `evaluate`; or the value is not an int.
        """
        value = self.evaluate(values)
        if type(value) is not int:
            raise self._error(f"{self.where} must be an integer, not {_shown(value)}", values)
        return value

    def c(self, names: Mapping[str, str], index_type: str) -> str:
        """C text of the same arithmetic, parenthesised, with Python's rounding: for sizes known only at run time.

        Parameters
        ----------
        names : mapping of str to str
            C text for each bare name.
        index_type : str
            C integer type in which all is computed, such as ``"long long"``.

        Raises
        ------
        ExpressionError
            The expression uses more than integer constants, names, ``+ - * // % & | ^ << >> ~`` and function calls,
            or its C text is absurdly long.
        """
        return f"({_C(self, names, index_type).text(self._tree)})"

    def _error(
        self, summary: str, values: _Values, *, at: ast.expr | None = None, try_: str | None = None
    ) -> ExpressionError:
        used = ", ".join(f"{name}={_shown(values[name])}" for name in sorted(self.names) if name in values)
        given = self.text if at is None else _pointed(self.text, at)
        where = "" if summary.startswith(self.where) else f" in {self.where}"
        return ExpressionError(
            f"{summary}{where}.",
            function=self.function,
            given=given,
            values=used or None,
            try_=try_,
            _where=self.where,
            _expression=self.text,
        )


def parse(
    text: object, *, names: Collection[str], arrays: Collection[str] = (), function: str, where: str
) -> Expression:
    """One expression of the language, checked against the names it may use.

    Parameters
    ----------
    text : str or int
        The expression; an int or a bool is a constant.
    names : collection of str
        Bare names allowed: axes, parameters and `DEVICE_FACTS`.
    arrays : collection of str
        Arrays whose facts may be read (``a.itemsize``, ``a.aligned(16)``); alone such a name means "is present".
    function, where : str
        For messages: the specialized function, and the place in its decoration, such as ``tiles["N"]``.

    Returns
    -------
    Expression

    Raises
    ------
    ExpressionError
        Not an expression of the language, or a name that is not allowed.

    Examples
    --------
    >>> parse("cdiv(N, tile)", names=("N", "tile"), function="f", where="grid[0]").evaluate({"N": 1000, "tile": 256})
    4
    """
    if not isinstance(text, str | int):
        kind = type(text).__name__
        raise ExpressionError(
            f"{where} must be a string or an integer, not {kind}.", function=function, given=repr(text), _where=where
        )
    line = _one_line(text, function, where)
    tree = _tree(line, function, where)
    builder = _Builder(line, tuple(names), tuple(arrays), function, where)
    run = builder.node(tree, 0)
    expression = Expression(
        line, function, where, frozenset(builder.used), frozenset(builder.present), frozenset(builder.facts), tree, run
    )
    if not expression.names and not expression.arrays:
        expression.evaluate({})  # a constant that cannot be computed is a mistake in the decoration
    return expression


def _rebuild(text: str, names: list[str], arrays: list[str], function: str, where: str) -> Expression:
    return parse(text, names=names, arrays=arrays, function=function, where=where)


def _one_line(text: str | int, function: str, where: str) -> str:
    """The text on one line, so that a column is a place in it, short enough to parse at once."""
    if isinstance(text, int):
        line = str(text) if text.bit_length() <= _MAX_BITS else ""
        problem = None if line else f"{where} is an integer of more than {_MAX_BITS} bits."
    else:
        line = "".join(" " if c in "\n\r\t\f\v" else c for c in text.strip())
        problem = None if line else f"{where} is empty; an expression is expected."
        if len(line) > _MAX_CHARACTERS:
            problem = f"{where} has {len(line)} characters, more than {_MAX_CHARACTERS}."
    if problem:
        raise ExpressionError(problem, function=function, _where=where)
    return line


# What people who come from C write, and what to write here.
_C_HABITS = (("&&", "and"), ("||", "or"), ("?", "x if condition else y"), ("!", "not"), ("=", "=="))


def _tree(line: str, function: str, where: str) -> ast.expr:
    try:
        return ast.parse(line, mode="eval").body
    except SyntaxError as error:
        column, reason = max((error.offset or 1) - 1, 0), error.msg
    except (RecursionError, MemoryError):
        column, reason = 0, "nested too deeply"
    except ValueError as error:  # null bytes
        column, reason = 0, str(error)
    rest = line.replace("!=", "").replace("==", "").replace("<=", "").replace(">=", "")
    habit = next(((c, python) for c, python in _C_HABITS if c in rest), None)
    raise ExpressionError(
        f"{where} is not an expression: {reason}.",
        function=function,
        given=f"{line}\n{' ' * column}^",
        try_=f"{habit[1]}, instead of {habit[0]}" if habit else None,
        _where=where,
        _expression=line,
    )


class _Failure(Exception):
    """Arithmetic that fails for some values; `Expression.evaluate` adds the expression and the values."""

    def __init__(self, node: ast.expr, summary: str, try_: str | None = None) -> None:
        super().__init__(summary)
        self.node, self.summary, self.try_ = node, summary, try_


_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
    ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
}

_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.In: ("in", lambda a, b: a in b),
    ast.NotIn: ("not in", lambda a, b: a not in b),
}

_REFUSED: dict[type[ast.AST], str] = {
    ast.Subscript: "a subscript",
    ast.Lambda: "a lambda",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.NamedExpr: "an assignment (:=)",
    ast.JoinedStr: "an f-string",
    ast.Tuple: "a tuple",
    ast.List: "a list",
    ast.Set: "a set",
    ast.Dict: "a dictionary",
    ast.Starred: "a starred item",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.MatMult: "the operator @",
}

_LANGUAGE = "integers, names, array facts, + - * // % ** << >> & | ^ ~, comparisons, and, or, not, x if c else y"


class _Builder:
    """One walk over a syntax tree: closures out, names and facts collected on the way."""

    def __init__(self, text: str, names: tuple[str, ...], arrays: tuple[str, ...], function: str, where: str) -> None:
        self.text, self.function, self.where = text, function, where
        self.names, self.arrays = names, arrays
        self.used: set[str] = set()
        self.present: set[str] = set()
        self.facts: set[Fact] = set()

    def fail(self, node: ast.AST, summary: str, *, allowed: str | None = None, try_: str | None = None) -> NoReturn:
        raise ExpressionError(
            f"{summary} in {self.where}.",
            function=self.function,
            given=_pointed(self.text, node),
            allowed=allowed,
            try_=try_,
            _where=self.where,
            _expression=self.text,
        )

    def node(self, node: ast.expr, depth: int) -> _Node:
        if depth >= _MAX_DEPTH:
            self.fail(node, f"more than {_MAX_DEPTH} levels of nesting")
        match node:
            case ast.Constant():
                return self.constant(node)
            case ast.Name():
                return self.name(node)
            case ast.Attribute():
                return self.fact(node, node, ())
            case ast.Call():
                return self.call(node, depth + 1)
            case ast.BinOp():
                return self.binary(node, depth + 1)
            case ast.UnaryOp():
                return self.unary(node, depth + 1)
            case ast.BoolOp():
                return self.boolean(node, depth + 1)
            case ast.Compare():
                return self.compare(node, depth + 1)
            case ast.IfExp():
                test, body, orelse = (self.node(n, depth + 1) for n in (node.test, node.body, node.orelse))
                return lambda values: body(values) if test(values) else orelse(values)
            case _:
                self.refuse(node)

    def refuse(self, node: ast.expr) -> NoReturn:
        construct = _REFUSED.get(type(node), type(node).__name__)
        try_ = "tuples only right of `in`, as in tile in (16, 32)" if isinstance(node, ast.Tuple | ast.List) else None
        self.fail(node, f"{construct} is not part of the expression language", allowed=_LANGUAGE, try_=try_)

    def constant(self, node: ast.Constant) -> _Node:
        value = node.value
        if value is not None and not isinstance(value, int | float | str):
            self.fail(node, f"{value!r} is not part of the expression language", allowed="int, bool, float, str, None")
        return lambda values: value

    def name(self, node: ast.Name) -> _Node:
        name = node.id
        if name in self.arrays:
            self.present.add(name)
            return lambda values: bool(values[name])
        if name not in self.names:
            self.unknown(node, name)
        self.used.add(name)
        return lambda values: _plain(node, name, values[name])

    def unknown(self, node: ast.Name, name: str) -> NoReturn:
        if name in FUNCTIONS:
            self.fail(node, f"{name} is a function and must be called", try_=f"{name}(a, b)")
        nearest = nearest_name(name, (*self.names, *self.arrays))
        habit = {"true": "True", "false": "False", "null": "None"}.get(name)
        allowed = ", ".join((*self.names, *self.arrays)) or "no names"
        self.fail(node, f"unknown name {name!r}", allowed=allowed, try_=nearest or habit)

    def array(self, node: ast.Attribute) -> str:
        """The array left of the dot."""
        if not isinstance(node.value, ast.Name):
            self.fail(node, f"the attribute .{node.attr} of something that is not an array", allowed=self._arrays())
        name = node.value.id
        if name not in self.arrays:
            if name not in self.names:
                self.unknown(node.value, name)
            self.fail(node, f"{name} is not an array, it has no .{node.attr}", allowed=self._arrays())
        return name

    def _arrays(self) -> str:
        return f"facts of the arrays {', '.join(self.arrays)}" if self.arrays else "no arrays here"

    def fact(self, node: ast.expr, attribute: ast.Attribute, arguments: tuple[ast.expr, ...]) -> _Node:
        array, name = self.array(attribute), attribute.attr
        if name not in ARRAY_FACTS:
            nearest = nearest_name(name, ARRAY_FACTS)
            allowed = "itemsize, ndim, dtype, order, aligned(bytes), stride(axis)"
            self.fail(node, f"unknown array fact .{name}", allowed=allowed, try_=nearest and f"{array}.{nearest}")
        self.present.add(array)
        if name not in ("aligned", "stride"):
            if node is not attribute:
                self.fail(node, f".{name} is not called", try_=f"{array}.{name}")
            if name == "order":
                self.facts.add(Fact(array, name))
            return lambda values: _plain(node, f"{array}.{name}", getattr(_given(node, array, values), name))
        number = self.fact_argument(node, array, name, arguments)
        self.facts.add(Fact(array, name, number))
        return lambda values: _plain(
            node, f"{array}.{name}({number})", getattr(_given(node, array, values), name)(number)
        )

    def fact_argument(self, node: ast.expr, array: str, name: str, arguments: tuple[ast.expr, ...]) -> int:
        """The constant of ``a.aligned(16)``: constant, because it becomes part of the specialization."""
        low, unit = (1, "bytes") if name == "aligned" else (0, "axis, from 0")
        value = arguments[0].value if len(arguments) == 1 and isinstance(arguments[0], ast.Constant) else None
        if type(value) is not int or value < low or (name == "aligned" and value & (value - 1)):
            power = "a power of two, " if name == "aligned" else ""
            example = f"{array}.{name}({16 if name == 'aligned' else 0})"
            self.fail(node, f".{name} takes one integer constant ({power}{unit})", try_=example)
        return value

    def call(self, node: ast.Call, depth: int) -> _Node:
        if node.keywords:
            self.fail(node, "keyword arguments are not part of the expression language", try_="positional arguments")
        if isinstance(node.func, ast.Attribute):
            return self.fact(node, node.func, tuple(node.args))
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            name = node.func.id if isinstance(node.func, ast.Name) else "call"
            allowed = ", ".join(FUNCTIONS)
            self.fail(node.func, f"unknown function {name!r}", allowed=allowed, try_=nearest_name(name, FUNCTIONS))
        name = node.func.id
        function, fewest, most = FUNCTIONS[name]
        if not fewest <= len(node.args) <= (most or len(node.args)):
            wanted = str(fewest) if fewest == most else f"at least {fewest}"
            self.fail(node, f"{name} takes {wanted} arguments, not {len(node.args)}")
        items = [self.operand(argument, name, depth) for argument in node.args]
        return lambda values: _compute(node, name, function, *(item(values) for item in items))

    def operand(self, node: ast.expr, symbol: str, depth: int) -> _Node:
        """A value that enters integer arithmetic; a constant of another kind is an error at once."""
        if isinstance(node, ast.Constant) and not isinstance(node.value, int):
            self.fail(node, f"{node.value!r} cannot enter {symbol}, arithmetic is on integers", try_=_exact(node.value))
        return self.node(node, depth)

    def binary(self, node: ast.BinOp, depth: int) -> _Node:
        if isinstance(node.op, ast.Div):
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            self.fail(
                node, "/ is not integer arithmetic", try_=f"{left} // {right} rounds down, cdiv({left}, {right}) up"
            )
        if type(node.op) not in _BINARY:
            self.fail(node, f"{_REFUSED[type(node.op)]} is not part of the expression language", allowed=_LANGUAGE)
        symbol, function = _BINARY[type(node.op)]
        a, b = self.operand(node.left, symbol, depth), self.operand(node.right, symbol, depth)
        return lambda values: _compute(node, symbol, function, a(values), b(values))

    def unary(self, node: ast.UnaryOp, depth: int) -> _Node:
        item = self.node(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda values: not item(values)
        if isinstance(node.op, ast.Invert):
            return lambda values: _compute(node, "~", lambda x: ~int(x), item(values))
        sign = operator.neg if isinstance(node.op, ast.USub) else operator.pos
        symbol = "-" if isinstance(node.op, ast.USub) else "+"

        def signed(values: _Values) -> object:
            value = item(values)
            return sign(value) if isinstance(value, float) else _compute(node, symbol, sign, value)

        return signed

    def boolean(self, node: ast.BoolOp, depth: int) -> _Node:
        *first, last = [self.node(item, depth) for item in node.values]
        stop = isinstance(node.op, ast.Or)

        def run(values: _Values) -> object:
            for item in first:
                value = item(values)
                if bool(value) is stop:
                    return value
            return last(values)

        return run

    def compare(self, node: ast.Compare, depth: int) -> _Node:
        operands = [node.left, *node.comparators]
        links: list[tuple[str, Callable[[Any, Any], bool], _Node]] = []
        for i, op in enumerate(node.ops):
            if isinstance(op, ast.Is | ast.IsNot):
                self.fail(node, "`is` is not part of the expression language", try_="==, !=, or the array's bare name")
            self.refuse_presence_against_none(node, operands[i], operands[i + 1])
            symbol, function = _COMPARE[type(op)]
            inside = "in" in symbol and not _text_in_name(operands[i], operands[i + 1])
            right = self.display(operands[i + 1], depth) if inside else self.node(operands[i + 1], depth)
            links.append((symbol, function, right))
        first = self.node(node.left, depth)

        def run(values: _Values) -> bool:
            left = first(values)
            for symbol, function, item in links:
                right = item(values)
                if not _compared(node, symbol, function, left, right):
                    return False
                left = right
            return True

        return run

    def refuse_presence_against_none(self, node: ast.Compare, *pair: ast.expr) -> None:
        """``bias == None`` would silently be False: an array's bare name is a bool."""
        for one, other in (pair, pair[::-1]):
            none = isinstance(other, ast.Constant) and other.value is None
            if none and isinstance(one, ast.Name) and one.id in self.arrays:
                self.fail(node, f"{one.id} means whether the array is present", try_=f"{one.id}, or not {one.id}")

    def display(self, node: ast.expr, depth: int) -> _Node:
        if not isinstance(node, ast.Tuple | ast.List):
            self.fail(node, "the right side of `in` must be a tuple or a list", try_="tile in (16, 32)")
        items = [self.node(item, depth) for item in node.elts]
        return lambda values: tuple(item(values) for item in items)


def _text_in_name(left: ast.expr, right: ast.expr) -> bool:
    """Whether a comparison looks for a constant text in a parameter: ``'residual' in expression``."""
    return isinstance(left, ast.Constant) and isinstance(left.value, str) and isinstance(right, ast.Name)


def _plain(node: ast.expr, name: str, value: object) -> object:
    """The value as the language sees it: an Enum member is its value, a NumPy integer an int."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    raise _Failure(node, f"{name} is a value of type {type(value).__name__}, which no expression can use")


def _given(node: ast.expr, array: str, values: _Values) -> Any:
    if not values[array]:
        raise _Failure(node, f"the array {array} was not given, it has no facts", f"... if {array} else ...")
    return values[array]


def _compute(node: ast.expr, symbol: str, function: Callable[..., Any], *operands: object) -> int:
    """One step of integer arithmetic, refused where Python would raise, leave the integers or grow without bound."""
    for operand in operands:
        if not isinstance(operand, int):
            raise _Failure(node, f"{symbol} of {_shown(operand)}: arithmetic is on integers", _exact(operand))
    numbers = [int(operand) for operand in operands if isinstance(operand, int)]
    try:
        _bound(node, symbol, numbers)
        result = function(*(operands if symbol in "&|^" else numbers))
    except ZeroDivisionError:
        raise _Failure(node, f"{symbol} by zero") from None
    except (ValueError, OverflowError) as error:  # negative or absurd shift count
        raise _Failure(node, f"{_shown(numbers[0])} {symbol} {_shown(numbers[-1])}: {error}") from None
    if result.bit_length() > _MAX_BITS + 1:
        raise _Failure(node, f"the result of {symbol} has more than {_MAX_BITS} bits")
    return int(result) if not isinstance(result, bool) else result


def _bound(node: ast.expr, symbol: str, numbers: list[int]) -> None:
    """Refuse before it is computed what could take long."""
    if symbol == "**":
        base, exponent = numbers
        if exponent < 0:
            raise _Failure(node, f"{_shown(base)} ** {_shown(exponent)} is not an integer")
        if abs(base) > 1 and (abs(base).bit_length() - 1) * exponent > _MAX_BITS:
            raise _Failure(node, f"the result of {symbol} has more than {_MAX_BITS} bits")
    if symbol == "<<" and numbers[1] > _MAX_BITS and numbers[0]:
        raise _Failure(node, f"the result of {symbol} has more than {_MAX_BITS} bits")


def _compared(node: ast.expr, symbol: str, function: Callable[[Any, Any], bool], left: object, right: object) -> bool:
    try:
        return bool(function(left, right))
    except TypeError:
        why = f"{_shown(right)} is no text" if "in" in symbol else "these kinds have no order"
        raise _Failure(node, f"{_shown(left)} {symbol} {_shown(right)}: {why}") from None


def _exact(value: object) -> str | None:
    """What to write for a float in arithmetic; None where there is nothing to say."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return f"{int(value)}"
    return "// for a fraction, as in N // 2" if isinstance(value, float) else None


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _pointed(text: str, node: ast.AST) -> str:
    """The expression, and below it a caret under the node's first column and its length."""
    raw = text.encode()  # columns in a syntax tree count UTF-8 bytes
    start = len(raw[: getattr(node, "col_offset", 0)].decode(errors="replace"))
    end = len(raw[: getattr(node, "end_col_offset", None) or 0].decode(errors="replace"))
    return f"{text}\n{' ' * start}^{'~' * max(end - start - 1, 0)}"


class _C:
    """C text of integer arithmetic; C has no names for parts, so operands are repeated, and the length is bounded."""

    def __init__(self, expression: Expression, names: Mapping[str, str], index_type: str) -> None:
        self.expression, self.names, self.index_type = expression, names, index_type

    def text(self, node: ast.expr) -> str:
        text = self.node(node)
        if text is None or len(text) > _MAX_CHARACTERS:
            kind = "short" if text else "integer"
            raise ExpressionError(
                f"{self.expression.where} is needed in C, and this part has no {kind} C form.",
                function=self.expression.function,
                given=_pointed(self.expression.text, node),
                _where=self.expression.where,
                _expression=self.expression.text,
            )
        return text

    def node(self, node: ast.expr) -> str | None:
        match node:
            case ast.Constant(value=int() as value) if value < 2**63:
                return f"({self.index_type})({int(value)})"
            case ast.Name(id=name) if name in self.names:
                return f"({self.index_type})({self.names[name]})"
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert() as op):
                symbol = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}[type(op)]
                return f"({symbol}{self.text(node.operand)})"
            case ast.BinOp(op=op) if type(op) in _BINARY and not isinstance(op, ast.Pow):
                return self.binary(_BINARY[type(op)][0], self.text(node.left), self.text(node.right))
            case ast.Call(func=ast.Name(id=name)):
                return self.call(name, [self.text(argument) for argument in node.args])
        return None

    def binary(self, symbol: str, a: str, b: str) -> str:
        # C rounds towards zero, Python down: they differ where a remainder and the divisor differ in sign.
        uneven = f"({a} % {b} != 0 && ({a} % {b} < 0) != ({b} < 0))"
        if symbol == "//":
            return f"({a} / {b} - {uneven})"
        if symbol == "%":
            return f"({a} % {b} + {uneven} * {b})"
        return f"({a} {symbol} {b})"

    def call(self, name: str, items: list[str]) -> str:
        if name == "cdiv":
            a, b = items
            return f"({a} / {b} + ({a} % {b} != 0 && ({a} % {b} < 0) == ({b} < 0)))"
        if name == "abs":
            return f"({items[0]} < 0 ? -{items[0]} : {items[0]})"
        first, *rest = items
        for item in rest:
            first = f"({first} {'<' if name == 'min' else '>'} {item} ? {first} : {item})"
        return first
