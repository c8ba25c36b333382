"""A specialized function as an operator of torch: schema and fake outputs follow from the signature."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from cuplate.arguments import Described
from cuplate.errors import DeclarationError, ShapeError
from cuplate.expression import Expression
from cuplate.signature import ArrayArgument, Axis, Parameter, ScalarArgument, Signature
from cuplate.solve import solve

__all__ = ["register", "schema"]

_PLAIN = {"bool": "bool", "int": "SymInt", "float": "float", "str": "str"}


def register(name: str, function: Callable[..., Any], signature: Signature, mutates: Sequence[str]) -> Any:
    """Register `function` as the operator `name`, ``"library::name"``.

    Parameters
    ----------
    name : str
    function : callable
        The specialized function.
    signature : Signature
    mutates : sequence of str
        Array arguments that it writes.

    Returns
    -------
    torch.library.CustomOpDef
        To be called in the place of `function`; several outputs come as a plain tuple.

    Raises
    ------
    DeclarationError
        The signature has what no schema can say.
    """
    text = schema(signature, mutates)
    import torch

    positions = [a.name for a in signature.arguments]
    parameters = {p.name: p for p in signature.parameters}
    defaults = {p.name: p.default for p in signature.parameters}
    tuned = {p.name for p in signature.parameters if p.tunable is not None}

    def given(values: Mapping[str, Any]) -> dict[str, Any]:
        return {n: _given(parameters[n], v) if n in parameters else v for n, v in values.items()}

    def run(*args: Any, **values: Any) -> Any:
        said = {n: v for n, v in values.items() if v is not None or n not in tuned}  # None: left to tuning
        result = function(*args, **given(said))
        return tuple(result) if signature.result_type is not None else result

    def fake(*args: Any, **values: Any) -> Any:
        known = {**dict.fromkeys(positions), **dict(zip(positions, args, strict=False)), **given(defaults | values)}
        made = _Fake(torch, signature, known).outputs()
        return made if signature.result_type is not None else (made[0] if made else None)

    run.__name__ = fake.__name__ = signature.function
    op = torch.library.custom_op(name, run, mutates_args=tuple(mutates), schema=text)
    op.register_fake(fake)
    return op


def schema(signature: Signature, mutates: Sequence[str]) -> str:
    """The operator's schema: ``(Tensor x, float alpha, *, int tile=16) -> Tensor``.

    Raises
    ------
    DeclarationError
        Without an array argument there is no tensor to tell the device; a struct, or a parameter of any kind, has no
        type in a schema.
    """
    if not signature.arrays:
        raise _no_schema(signature, "it has no array argument, and its output cannot be made without out=")
    parts = [_argument(signature, a, mutates) for a in signature.arguments]
    parts += ["*"] if signature.parameters else []
    parts += [_parameter(signature, p) for p in signature.parameters]
    outputs = ", ".join("Tensor" for _ in signature.outputs)
    return f"({', '.join(parts)}) -> {outputs if len(signature.outputs) == 1 else f'({outputs})'}"


def _no_schema(signature: Signature, reason: str) -> DeclarationError:
    return DeclarationError(f"it cannot be an operator of torch: {reason}.", function=signature.function)


def _argument(signature: Signature, argument: ArrayArgument | ScalarArgument, mutates: Sequence[str]) -> str:
    name = argument.name
    if isinstance(argument, ArrayArgument):
        written = f"(a{mutates.index(name)}!)" if name in mutates else ""
        return f"Tensor{written}{'? ' if argument.optional else ' '}{name}" + ("=None" if argument.optional else "")
    if argument.struct is not None:
        raise _no_schema(signature, f"the struct {name!r} has no type in a schema")
    kind = "float" if argument.dtype.startswith("float") else "bool" if argument.dtype == "bool" else "SymInt"
    return f"{kind} {name}"


def _parameter(signature: Signature, parameter: Parameter) -> str:
    kind = _parameter_type(parameter)
    if kind is None:
        raise _no_schema(signature, f"the parameter {parameter.name!r}: {parameter.annotation} has no type in a schema")
    nullable = "?" if (parameter.nullable or parameter.tunable) and not kind.endswith("?") else ""
    if parameter.tunable is not None:
        return f"{kind}{nullable} {parameter.name}=None"
    text = f"{kind}{nullable} {parameter.name}"
    if parameter.default is inspect.Parameter.empty:
        return text
    default = parameter.default
    if isinstance(default, Enum):
        default = default.name
    if isinstance(default, (tuple, list)) or kind.startswith("ScalarType"):
        raise _no_schema(signature, f"the default of {parameter.name!r} has no text in a schema")
    return f'{text}="{default}"' if isinstance(default, str) else f"{text}={default}"


def _parameter_type(parameter: Parameter) -> str | None:
    if parameter.kind == "enum":
        return "str"  # a member by its name
    if parameter.kind == "dtype":
        return "ScalarType"
    if parameter.kind == "literal":
        kinds = {type(v).__name__ for v in parameter.allowed if v is not None}
        kind = _PLAIN.get(next(iter(kinds))) if len(kinds) == 1 else None
        return kind if kind is None or None not in parameter.allowed else f"{kind}?"
    if parameter.kind == "list":
        kinds = {t.__name__ for t in parameter.allowed}
        return f"{_PLAIN[next(iter(kinds))]}[]" if len(kinds) == 1 else None
    return _PLAIN.get(parameter.kind)


def _given(parameter: Parameter, value: Any) -> Any:
    """A value of the schema as the parameter's own."""
    if parameter.kind == "enum" and isinstance(value, str):
        return next((m for m in parameter.allowed if m.name == value), value)
    if parameter.kind == "dtype" and value is not None:
        return str(value).removeprefix("torch.")
    return value


class _Fake:
    """Outputs of the right shape and dtype for tensors without memory, whose sizes may be symbols."""

    def __init__(self, torch: Any, signature: Signature, values: Mapping[str, Any]) -> None:
        self.torch = torch
        self.signature = signature
        self.arrays = {a.name: values[a.name] for a in signature.arrays}
        self.parameters = {p.name: values[p.name] for p in signature.parameters}
        self.sizes: dict[str, Any] = {}
        self.folded: dict[str, tuple[Any, ...]] = {}

    def outputs(self) -> tuple[Any, ...]:
        """One tensor for each output, on the device of the first array."""
        given = [(a, self.arrays[a.name]) for a in self.signature.arrays if self.arrays[a.name] is not None]
        for argument, tensor in given:
            self._bind(argument, tuple(tensor.shape))
        for argument, tensor in given:
            self._compare(argument, tuple(tensor.shape))
        dtypes = self._dtypes({a.name: t for a, t in given})
        return tuple(
            given[0][1].new_empty(self._shape(o), dtype=getattr(self.torch, dtypes[o.name]))
            for o in self.signature.outputs
        )

    def _dtypes(self, given: Mapping[str, Any]) -> dict[str, str]:
        """As a call finds them: sizes left aside."""
        described: dict[str, Described | None] = {
            a.name: Described(a.name, 0, str(given[a.name].dtype).removeprefix("torch."), None, (), None)
            if a.name in given
            else None
            for a in self.signature.arrays
        }
        return solve(self.signature, described, self.parameters, ()).dtypes

    def _axes(self, argument: ArrayArgument, shape: tuple[Any, ...]) -> list[tuple[Axis, Any]]:
        axes = argument.axes
        lead = len(shape) - len(axes) + 1 if axes and axes[0].folded else 0
        rest = axes[1:] if axes and axes[0].folded else axes
        if lead < 0 or len(rest) + lead != len(shape):
            raise ShapeError(
                f"array {argument.name!r} has {len(shape)} axes.",
                function=self.signature.function,
                allowed=argument.annotation,
            )
        if lead or (axes and axes[0].folded):
            self.folded.setdefault(axes[0].name or "", shape[:lead])
        return list(zip(rest, shape[lead:], strict=True))

    def _bind(self, argument: ArrayArgument, shape: tuple[Any, ...]) -> None:
        for axis, size in self._axes(argument, shape):
            if axis.name is not None:
                self.sizes.setdefault(axis.name, size)
        for name, leading in self.folded.items():
            total: Any = 1
            for n in leading:
                total = total * n
            self.sizes.setdefault(name, total)

    def _compare(self, argument: ArrayArgument, shape: tuple[Any, ...]) -> None:
        lead = len(shape) - len(self._axes(argument, shape))
        if argument.axes and argument.axes[0].folded:
            known = self.folded[argument.axes[0].name or ""]
            self._check(argument, argument.axes[0], len(known) == lead)
            for a, b in zip(known, shape[:lead], strict=True):
                self._check(argument, argument.axes[0], a == b)
        for axis, size in self._axes(argument, shape):
            self._check(argument, axis, size == self._size(axis))

    def _check(self, argument: ArrayArgument, axis: Axis, holds: Any) -> None:
        message = f"{self.signature.function}: axis {axis.text} of {argument.name!r} has another size elsewhere"
        self.torch._check(holds, lambda: message)

    def _shape(self, output: ArrayArgument) -> list[Any]:
        shape: list[Any] = []
        for axis in output.axes:
            shape.extend(self.folded[axis.name or ""] if axis.folded else [self._size(axis)])
        return shape

    def _size(self, axis: Axis) -> Any:
        if axis.size is not None:
            return axis.size
        if axis.expression is not None:
            return self._expression(axis.expression)
        return self.sizes[axis.name or ""]

    def _expression(self, expression: Expression) -> Any:
        values = {**self.parameters, **self.sizes}
        try:
            return _Symbols(self.torch, values).value(expression.tree)
        except NotImplementedError:  # a condition, a power: with numbers, to which torch then binds the graph
            return expression.integer({n: int(v) if hasattr(v, "node") else v for n, v in values.items()})


class _Symbols:
    """The arithmetic of sizes, on torch's symbols as well as on integers."""

    def __init__(self, torch: Any, values: Mapping[str, Any]) -> None:
        self.values = values
        self.functions: dict[str, Callable[..., Any]] = {
            "cdiv": lambda a, b: (a + b - 1) // b if isinstance(b, int) and b > 0 else -(-a // b),
            "min": torch.sym_min,
            "max": torch.sym_max,
        }

    def value(self, node: ast.expr) -> Any:
        """The value of a part; NotImplementedError for what symbols cannot say."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and type(self.values.get(node.id)) is not bool:
            return self.values[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](self.value(node.left), self.value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.functions:
            first, *others = [self.value(a) for a in node.args]
            for other in others:
                first = self.functions[node.func.id](first, other)
            return first
        raise NotImplementedError


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
