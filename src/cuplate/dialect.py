"""The dialect of Jinja for templates: values print as C++ literals, names are strict, nothing is HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jinja2
from jinja2 import filters as jinja_filters
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.runtime import Context, Undefined
from jinja2.utils import pass_environment
from jinja2.visitor import NodeTransformer

from cuplate.errors import CuplateError, TemplateError
from cuplate.hints import nearest_name
from cuplate.literal import cpp, cstr

__all__ = ["GLOBALS", "RESERVED_GLOBALS", "Dialect", "check_syntax", "parse", "spell"]

# lipsum, cycler and joiner are for web pages; cycler and joiner keep state besides.
GLOBALS: Mapping[str, Any] = {"range": range, "dict": dict, "namespace": jinja2.utils.Namespace}

RESERVED_GLOBALS = frozenset(
    {*GLOBALS, "loop", "caller", "varargs", "kwargs", "self", "super", "true", "false", "none", "True", "False", "None"}
    | {"and", "or", "not", "in", "is", "if", "else"}
)
"""Names that mean something in every template, and so cannot be a parameter, an array or an axis."""

# Left out: what escapes for HTML (it would corrupt C++), what prints Python (pprint), what differs from run to run
# (random).
_FILTERS = (
    "abs attr batch capitalize center count d default dictsort first groupby items last length list lower "
    "map max min reject rejectattr reverse round select selectattr slice sort sum title unique upper "
    "wordwrap"
)

_TEXT_FILTERS = ("capitalize", "center", "lower", "title", "upper", "wordwrap")

# `origin` marks text with these characters; the filters that look at blank lines and edges see through them.
MARKS = "\U000f0000-\U0010ffff"
_VISIBLE = re.compile(f"[^{MARKS}]")
_EDGE = rf"[\s{MARKS}]*"

_TAGS = (
    "for endfor if elif else endif block endblock extends print macro endmacro include from import set endset "
    "with endwith call endcall filter endfilter raw endraw autoescape endautoescape"
)

_BRACES = (
    "braces of C++ or PTX need a space where Jinja reads a tag: `{ %0, %1 }`, `{ {1, 2}, {3, 4} }`, `{ #x }`; "
    "or {% raw %} ... {% endraw %} around the passage"
)


def spell(value: object) -> str:
    """Return what ``{{ value }}`` prints."""
    if type(value) is str:
        return value
    if isinstance(value, Undefined):
        str(value)  # a strict undefined raises here, with its own name
    return cpp(value)


class _Operand:
    """One argument of ``format``: ``%s`` sees the literal, ``%d`` and ``%g`` the number."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        return spell(self.value)

    __repr__ = __str__

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value.__index__())

    def __float__(self) -> float:
        return float(self.value)


def _format(text: str, *values: object, **named: object) -> str:
    if values and named:
        raise TemplateError("format takes positional or named values, not both")
    if named:
        return str(text) % {name: _Operand(value) for name, value in named.items()}
    return str(text) % tuple(_Operand(value) for value in values)


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        return _format(left, *(right if isinstance(right, (tuple, list)) else [right]))
    return left % right


@pass_environment
def _join(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(jinja_filters.make_attrgetter(environment, attribute), value)
    return spell(d).join(map(spell, value))


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    return spell(text).replace(spell(old), spell(new), -1 if count is None else count)


def _indent(text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    indention = width if isinstance(width, str) else " " * width
    lines = spell(text).split("\n")
    return "\n".join(
        indention + line if (number or first) and (blank or _VISIBLE.search(line)) else line
        for number, line in enumerate(lines)
    )


def _trim(text: object, chars: str | None = None) -> str:
    text = spell(text)
    if chars is not None:
        return text.strip(chars)
    # Jinja would strip up to the first mark; the marks stay, and the white space around them goes.
    before, inside, after = re.fullmatch(rf"({_EDGE})(.*?)({_EDGE})", text, re.DOTALL).groups()  # type: ignore[union-attr]
    return re.sub(r"\s+", "", before) + inside + re.sub(r"\s+", "", after)


def _number(kind: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a filter that converts, or fails: Jinja's own answers 0 for what is no number."""

    def convert(value: Any, *base: int) -> Any:
        try:
            return kind(value, *base)
        except CuplateError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise TemplateError(f"`| {name}` cannot convert {value!r}") from error

    return convert


def _of_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a text filter that sees the literal of its operand, not Python's words."""
    place = 1 if hasattr(function, "jinja_pass_arg") else 0

    def apply(*args: Any, **kwargs: Any) -> Any:
        value = args[place]
        return function(*args[:place], value if isinstance(value, str) else spell(value), *args[place + 1 :], **kwargs)

    if place:
        apply.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return apply


def _filters() -> dict[str, Callable[..., Any]]:
    chosen: dict[str, Callable[..., Any]] = {name: jinja_filters.FILTERS[name] for name in _FILTERS.split()}
    chosen |= {name: _of_text(chosen[name]) for name in _TEXT_FILTERS}
    return chosen | {
        "cstr": lambda value: cstr(value if isinstance(value, str) else spell(value)),
        "float": _number(float, "float"),
        "format": _format,
        "indent": _indent,
        "int": _number(int, "int"),
        "join": _join,
        "replace": _replace,
        "string": spell,
        "trim": _trim,
        "_modulo": _modulo,
    }


def _absent(value: object) -> bool:
    return getattr(type(value), "optional", False) and not value


class _Literals(NodeTransformer):
    """Sends what Jinja would turn to text by itself, in ``~`` and ``%``, through `spell`."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [self._filter("string", operand, []) for operand in node.nodes]
        return node

    def visit_Mod(self, node: nodes.Mod) -> nodes.Node:
        self.generic_visit(node)
        return self._filter("_modulo", node.left, [node.right])

    @staticmethod
    def _filter(name: str, node: nodes.Expr, args: list[nodes.Expr]) -> nodes.Filter:
        made = nodes.Filter(node, name, args, [], None, None, lineno=node.lineno)
        made.set_environment(node.environment)  # type: ignore[arg-type]
        return made


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:
        super().visit_Template(_Literals().visit(node), frame)


class _Template(jinja2.Template):
    """A Jinja template whose module is made afresh by every import.

    Jinja keeps the module of a template that is imported without context; state in it (a ``namespace``) would carry
    over to the next render, and equal specializations would render to different text.
    """

    def _get_default_module(self, ctx: Context | None = None) -> Any:
        return self.make_module()


class Dialect(jinja2.Environment):
    """Jinja's environment for CUDA C++.

    Parameters
    ----------
    loader : jinja2.BaseLoader
        Gives the text for a key.
    resolve : callable
        ``resolve(reference, parent) -> key``: what a template means by a name in ``include``, ``import``, ``extends``.
    extensions : sequence of type, optional
        Jinja extensions.
    """

    code_generator_class = _Generator
    template_class = _Template

    def __init__(
        self, loader: jinja2.BaseLoader, resolve: Callable[[str, str], str], extensions: Collection[Any] = ()
    ) -> None:
        super().__init__(
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
            finalize=spell,
            loader=loader,
            cache_size=-1,
            auto_reload=False,
            extensions=list(extensions),
        )
        self._resolve = resolve
        self.globals = dict(GLOBALS)
        self.filters = _filters()
        tests = dict(self.tests)
        tests["defined"] = lambda value: not isinstance(value, Undefined) and not _absent(value)
        tests["undefined"] = lambda value: isinstance(value, Undefined) or _absent(value)
        tests["none"] = lambda value: value is None or _absent(value)
        tests.pop("escaped", None)
        self.tests = tests

    def join_path(self, template: str, parent: str) -> str:
        """Return the key of a reference; Jinja's own interface."""
        return self._resolve(template, parent)


_trees: dict[tuple[str, str], nodes.Template] = {}  # many functions include the same pieces, and variants share a text
_MOST_TREES = 64


def parse(environment: jinja2.Environment, text: str, key: str, function: str) -> nodes.Template:
    """Return the syntax tree of one template, which is for reading: the same text gives the same tree.

    Raises
    ------
    TemplateError
        The syntax is wrong, or braces of C++ or PTX were read as Jinja's.
    """
    tree = _trees.get((key, text))
    if tree is None:
        check_syntax(environment, text, key, function)
        try:
            tree = environment.parse(text, key, key)
        except jinja2.TemplateSyntaxError as error:
            raise _explained(error, text, key, function) from error
        if len(_trees) >= _MOST_TREES:
            _trees.clear()
        _trees[key, text] = tree
    return tree


def check_syntax(environment: jinja2.Environment, text: str, key: str, function: str) -> None:
    """Refuse tags that C++ or PTX opened by accident; see `parse`."""
    opened: tuple[int, str] | None = None
    inside: list[str] = []
    try:
        for line, kind, value in environment.lex(text, key):
            if kind in ("variable_begin", "block_begin"):
                opened, inside = (line, kind), []
            elif kind in ("variable_end", "block_end"):
                if inside in (["integer"], ["float"]):
                    raise _bare_number(f"{key}:{line}", function)
                opened = None
            elif kind == "comment" and "{#" in value:
                raise _nested_comment(line, value, key, function)
            elif opened:
                first = not {*inside} - {"whitespace"} and kind != "whitespace"
                inside.append(kind)
                if first and opened[1] == "block_begin" and (kind != "name" or value not in _TAGS.split()):
                    raise _unknown_tag(value, f"{key}:{line}", function)
        if opened:
            raise jinja2.TemplateSyntaxError("a tag is not closed", opened[0], key, key)
    except jinja2.TemplateSyntaxError as error:
        where = opened[0] if opened else error.lineno
        raise _explained(error, text, key, function, line=where, inside=opened is not None) from error


def _bare_number(where: str, function: str) -> TemplateError:
    # int a[1][1] = {{0}}; would become int a[1][1] = 0; without a word.
    return TemplateError(
        "`{{0}}` would print the number without its braces", function=function, template=where, try_=_BRACES
    )


def _nested_comment(line: int, comment: str, key: str, function: str) -> TemplateError:
    again = line + comment[: comment.index("{#")].count("\n")
    return TemplateError(
        f"a Jinja comment opens at line {line} and `{{#` stands in it again at line {again}: was the first one meant?",
        function=function, template=f"{key}:{line}", try_=_BRACES,
    )  # fmt: skip


def _unknown_tag(tag: str, where: str, function: str) -> TemplateError:
    near = nearest_name(tag, _TAGS.split())
    summary = f"`{{% {tag}` is no Jinja tag" + (f"; the nearest is `{near}`" if near else "")
    return TemplateError(summary, function=function, template=where, try_=_BRACES)


def _explained(
    error: jinja2.TemplateSyntaxError, text: str, key: str, function: str, line: int | None = None, inside: bool = False
) -> TemplateError:
    line = line or error.lineno
    shown = [*text.split("\n"), ""][line - 1].strip()
    message = (error.message or "syntax error").rstrip(".")
    braces = inside or "comment" in message or re.search(r"\{\{[^{}]*[,{]|\{\{\d|\{[%#]\s*[%\d]|\{\{\s*%", shown)
    return TemplateError(
        f"Jinja cannot read the template: {message}",
        function=function, template=f"{key}:{line}", given=shown, try_=_BRACES if braces else None,
    )  # fmt: skip
