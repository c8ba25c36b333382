"""Expressions of device code as compile-time values: read by a small grammar, so that nothing else gets through.

The text goes into the kernel as it is written, but for numbers, which become float literals. What is read here is C++,
with three rules more that keep it from meaning something else than it says: integers are not divided, a remainder is by
a constant that is not zero, and a comparison is no number. So NumPy gives the same value, see `DeviceText.evaluate`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from cuplate.errors import ParameterError
from cuplate.hints import nearest_name

__all__ = ["FUNCTIONS", "DeviceText"]

_MAX_CHARACTERS = 1000
_MAX_DEPTH = 50
_MOST, _LEAST = 3.4028235e38, 1.4e-45
_BEYOND = "an integer beyond 2**31 - 1"
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?[fF]?|(?:0|[1-9]\d*)[fF]?(?![\w.]))"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>[<>=!]=|&&|\|\||[-+*/%<>!?:(),]))",
    re.ASCII,
)


def _numpy(name: str) -> Callable[..., Any]:
    def apply(*values: Any) -> Any:
        import numpy as np

        if name in ("erf", "erfc"):
            return np.vectorize(getattr(math, name), otypes=[np.float64])(*values)
        return getattr(np, name)(*values)

    return apply


def _of_floats(name: str) -> Callable[..., Any]:
    """A function of floats: an integer becomes one, as in C++."""
    compute = _numpy(name)

    def apply(*values: Any) -> Any:
        return compute(*(1.0 * value for value in values))

    return apply


# C's name to NumPy's. Of the intrinsics those that give up accuracy for speed, in which the name says so.
_ONE = {
    "fabs": "absolute", "sqrt": "sqrt", "cbrt": "cbrt", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log",
    "log2": "log2", "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin",
    "acos": "arccos", "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "erf": "erf", "erfc": "erfc",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint",
}  # fmt: skip
_TWO = {"fmax": "fmax", "fmin": "fmin", "pow": "power", "fmod": "fmod", "hypot": "hypot", "copysign": "copysign"}
_QUICK = {"__expf": "exp", "__logf": "log", "__sinf": "sin", "__cosf": "cos"}

FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    **{f"{name}f": (1, _of_floats(numpy)) for name, numpy in _ONE.items()},
    **{f"{name}f": (2, _of_floats(numpy)) for name, numpy in _TWO.items()},
    **{name: (1, _of_floats(numpy)) for name, numpy in _QUICK.items()},
    "__fdividef": (2, _of_floats("true_divide")),
    "rsqrtf": (1, lambda x: _of_floats("true_divide")(1, _of_floats("sqrt")(x))),
    "fmaf": (3, lambda x, y, z: x * y + z),
}
"""Device functions that an expression may call: how many arguments they take, and their value by NumPy."""

_TWICE = {"+": "+ +", "-": "- -", "*": "x * x, or powf(x, 2.0f)"}  # in C++ a change; in Python a power

_Run = Callable[[Mapping[str, Any]], Any]


class _Node(NamedTuple):
    kind: str  # "float", "int" or "bool"
    run: _Run
    constant: int | None = None  # of integers without names


@dataclass(frozen=True, init=False, repr=False)
class DeviceText:
    """A compile-time parameter whose value is an expression of device code: ``Annotated[str, DeviceText("x")]``.

    Parameters
    ----------
    *floats : str
        Names that stand for a float where the template writes the expression.
    integers : tuple of str
        Names that stand for an integer there.

    Examples
    --------
    >>> DeviceText("x").check("x / (1 + fabsf(x))", "f", "kernel")
    'x / (1 + fabsf(x))'
    >>> DeviceText("x").check("0.5 * x", "f", "kernel")
    '0.5f * x'
    """

    floats: tuple[str, ...]
    integers: tuple[str, ...]

    def __init__(self, *floats: str, integers: tuple[str, ...] = ()) -> None:
        object.__setattr__(self, "floats", floats)
        object.__setattr__(self, "integers", integers)

    def __repr__(self) -> str:
        said = [*map(repr, self.floats), *([f"integers={self.integers!r}"] if self.integers else [])]
        return f"DeviceText({', '.join(said)})"

    def check(self, text: str, parameter: str, function: str) -> str:
        """The expression on one line, its numbers as float literals where they have a point or an exponent.

        Raises
        ------
        ParameterError
            It is no expression of the grammar, or has a name that is not known.
        """
        return _Reader(self, text, parameter, function).text

    def evaluate(self, text: str, values: Mapping[str, Any]) -> Any:
        """The value by NumPy, for arrays of the names."""
        import numpy as np

        with np.errstate(all="ignore"):
            return _Reader(self, text, "text", "").node.run(values)


_BINARY: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {  # how closely it binds, as in C
    "||": (1, lambda a, b: _numpy("logical_or")(a, b)),
    "&&": (2, lambda a, b: _numpy("logical_and")(a, b)),
    "==": (3, operator.eq),
    "!=": (3, operator.ne),
    "<": (4, operator.lt),
    ">": (4, operator.gt),
    "<=": (4, operator.le),
    ">=": (4, operator.ge),
    "+": (5, operator.add),
    "-": (5, operator.sub),
    "*": (6, operator.mul),
    "/": (6, _of_floats("true_divide")),  # Python's own raises where a float is infinite
    "%": (6, _numpy("fmod")),  # whose sign is the left one's, as in C++
}


class _Reader:
    """One pass over a text: what it is in C++, and a closure that computes it."""

    def __init__(self, language: DeviceText, text: str, parameter: str, function: str) -> None:
        self.language, self.parameter, self.function = language, parameter, function
        self.source = " ".join(text.split())
        self.tokens: list[tuple[str, str, int]] = []
        self.at = self.depth = 0
        if len(self.source) > _MAX_CHARACTERS:
            self.source = f"{self.source[:40]} ..."
            self.fail(f"more than {_MAX_CHARACTERS} characters", 0)
        self.text = self._tokens()
        self.node = self.choice()
        kind, sign, place = self.peek()
        if kind != "end":
            self.fail(f"{sign!r} where the expression should end", place)
        self.number(self.node, 0)

    def fail(self, what: str, place: int, *, allowed: str | None = None, try_: str | None = None) -> NoReturn:
        raise ParameterError(
            f"{self.parameter} is not an expression of device code: {what}.",
            function=self.function,
            given=f"{self.source}\n{' ' * place}^",
            allowed=allowed,
            try_=try_,
        )

    def _tokens(self) -> str:
        at, parts = 0, []
        while at < len(self.source):
            match = _TOKEN.match(self.source, at)
            if match is None:
                at += len(self.source[at:]) - len(self.source[at:].lstrip())
                found = self.source[at]
                allowed = "numbers, names, calls, + - * / % < <= > >= == != && || ! ?: ( )"
                self.fail(f"{found!r} is not part of one", at, allowed=allowed)
            kind = str(match.lastgroup)
            spelled, place = match[kind], match.start(kind)
            if kind == "number":
                spelled = _literal(spelled)
                if spelled.isdigit() and int(spelled) >= 2**31:
                    self.fail(_BEYOND, place, try_=f"{spelled}.0f")
                if not spelled.isdigit() and float(spelled[:-1]) > _MOST:
                    self.fail("a number beyond what a float holds", place, allowed=f"up to {_MOST}")
                if not spelled.isdigit() and 0 < float(spelled[:-1]) < _LEAST:
                    self.fail("a number too small for a float", place, allowed=f"0, or {_LEAST} and more")
            if self.tokens and spelled in _TWICE and self.tokens[-1] == ("sign", spelled, place - 1):
                self.fail(f"{spelled * 2!r} is not part of one", place - 1, try_=_TWICE[spelled])
            self.tokens.append((kind, spelled, place))
            parts.append(self.source[at:place] + spelled)
            at = match.end()
        self.tokens.append(("end", "the end", at))
        return "".join(parts)

    # the grammar, one method for each form --------------------------------------------------------------------------

    def peek(self) -> tuple[str, str, int]:
        return self.tokens[self.at]

    def take(self, sign: str | None = None) -> tuple[str, str, int]:
        token = self.peek()
        if sign is not None and token[1] != sign:
            self.fail(f"{token[1]!r} where {sign!r} should stand" if token[0] != "end" else f"no {sign!r}", token[2])
        self.at += 1
        return token

    def choice(self) -> _Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"more than {_MAX_DEPTH} levels of nesting", self.peek()[2])
        place = self.peek()[2]
        node = self.binary(1)
        if self.peek()[1] == "?":
            self.take()
            self.condition(node, place)
            first = self.number(self.choice(), self.peek()[2])
            self.take(":")
            second = self.number(self.choice(), self.peek()[2])
            run = node.run
            kind = "int" if first.kind == second.kind == "int" else "float"
            node = _Node(kind, lambda v: _numpy("where")(run(v), first.run(v), second.run(v)))
        self.depth -= 1
        return node

    def binary(self, least: int) -> _Node:
        start = self.peek()[2]
        left = self.unary()
        while self.peek()[0] == "sign" and _BINARY.get(self.peek()[1], (0, None))[0] >= least:
            _, sign, place = self.take()
            binds, compute = _BINARY[sign]
            right_at = self.peek()[2]
            right = self.binary(binds + 1)
            check = self.condition if binds <= 2 else self.number
            check(left, start), check(right, right_at)
            kind = self.result(sign, binds, left, right, place)
            if sign == "%":
                self.divisor(right, right_at)
            constant = None
            if kind == "int" and left.constant is not None and right.constant is not None:
                constant = self.within_int(int(compute(left.constant, right.constant)), place)
            left = _Node(kind, _both(compute, left.run, right.run), constant)
        return left

    def result(self, sign: str, binds: int, left: _Node, right: _Node, place: int) -> str:
        integers = left.kind == right.kind == "int"
        if sign == "/" and integers:
            self.fail("a quotient of integers, which C++ rounds", place, try_="2.0f, a float, on one side")
        if sign == "%" and not integers:
            self.fail("% is for integers", place, try_="fmodf(a, b)")
        return "bool" if binds <= 4 else "int" if integers else "float"

    def divisor(self, node: _Node, place: int) -> None:
        if node.constant:
            return
        what = "by zero" if node.constant == 0 else "by what may be zero"
        allowed = "a constant that is not zero"
        self.fail(f"a remainder {what}, which C++ leaves open", place, allowed=allowed, try_="fmodf(a, b): NaN by zero")

    def within_int(self, value: int, place: int) -> int:
        if not -(2**31) <= value < 2**31:
            self.fail(_BEYOND, place, try_="1.0f, a float, on one side")
        return value

    def unary(self) -> _Node:
        kind, sign, place = self.peek()
        if kind == "sign" and sign in "+-!":
            self.take()
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                self.fail(f"more than {_MAX_DEPTH} levels of nesting", place)
            node = self.unary()
            self.depth -= 1
            if sign == "!":
                run = self.condition(node, place).run
                return _Node("bool", lambda v: _numpy("logical_not")(run(v)))
            run = self.number(node, place).run
            if sign == "+":
                return node
            constant = None if node.constant is None else self.within_int(-node.constant, place)
            return _Node(node.kind, lambda v: -run(v), constant)
        return self.primary()

    def primary(self) -> _Node:
        kind, spelled, place = self.take()
        if kind == "number":
            if spelled.isdigit():
                integer = int(spelled)
                return _Node("int", lambda v: integer, integer)
            value = float(spelled[:-1])
            return _Node("float", lambda v: value)
        if kind == "name":
            return self.call(spelled, place) if self.peek()[1] == "(" else self.name(spelled, place)
        if spelled == "(":
            node = self.choice()
            self.take(")")
            return node
        self.fail(f"{spelled!r} where a value should stand" if kind != "end" else "it is not finished", place)

    def name(self, name: str, place: int) -> _Node:
        language = self.language
        if name not in (*language.floats, *language.integers):
            if name in FUNCTIONS:
                self.fail(f"{name} is a function and must be called", place, try_=f"{name}(x)")
            self.unknown(name, place)
        return _Node("float" if name in language.floats else "int", lambda v: v[name])

    def call(self, name: str, place: int) -> _Node:
        if name in (*self.language.floats, *self.language.integers):
            self.fail(f"{name} is a value and cannot be called", place)
        if name not in FUNCTIONS:
            self.unknown(name, place)
        count, compute = FUNCTIONS[name]
        self.take("(")
        arguments = [self.number(self.choice(), place)]
        while self.peek()[1] == ",":
            self.take()
            arguments.append(self.number(self.choice(), place))
        self.take(")")
        if len(arguments) != count:
            self.fail(f"{name} takes {count} value{'s' * (count > 1)}, not {len(arguments)}", place)
        return _Node("float", lambda v: compute(*(a.run(v) for a in arguments)))

    def unknown(self, name: str, place: int) -> NoReturn:
        values = (*self.language.floats, *self.language.integers)
        near = nearest_name(name, (*values, *FUNCTIONS))
        allowed = f"{', '.join(values)}; the functions {', '.join(FUNCTIONS)}"
        self.fail(f"unknown name {name!r}", place, allowed=allowed, try_=near)

    # what a part may be ---------------------------------------------------------------------------------------------

    def number(self, node: _Node, place: int) -> _Node:
        if node.kind == "bool":
            self.fail("a comparison where a number should stand", place, try_="condition ? 1.0f : 0.0f")
        return node

    def condition(self, node: _Node, place: int) -> _Node:
        if node.kind != "bool":
            self.fail("a number where a comparison should stand", place, try_="x != 0.0f")
        return node


def _both(compute: Callable[[Any, Any], Any], left: _Run, right: _Run) -> _Run:
    return lambda v: compute(left(v), right(v))


def _literal(number: str) -> str:
    """A number as C++ has it in float: ``0.5`` alone would make a product of doubles."""
    digits = number.rstrip("fF")
    if digits.isdigit():
        return digits if digits == number else f"{digits}.0f"
    return f"{digits}f"
