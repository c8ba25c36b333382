"""Which names and facts a template uses, and where: a walk over its syntax tree and all that it includes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeVisitor

from cuplate.dialect import GLOBALS
from cuplate.errors import TemplateError
from cuplate.hints import nearest_name
from cuplate.specialization import Fact

__all__ = ["Usage", "references", "usage"]

_ASKED = ("aligned", "stride")

# Jinja passes these to a macro by itself.
_MACRO = ("caller", "varargs", "kwargs")


@dataclass(slots=True)
class Usage:
    """What a template and everything it statically includes uses; every ``str`` is ``"file:line"`` of the first use.

    Attributes
    ----------
    names : dict of str to str
        Names that nothing in the template defines.
    maybe : dict of str to str
        Names that only some paths define, so that they may come from outside.
    isolated : dict of str to str
        Undefined names in a file that was imported without context, where nothing from outside can be seen.
    attributes : dict of str to dict of str to str
        ``{"a": {"ctype": "file:line"}}`` for names from outside.
    facts : set of Fact
        ``a.aligned(16)``, ``a.stride(0)``, ``a.order``, spelled in place.
    whole : set of str
        Names that are passed on (to a macro, a ``set``, a comparison), or asked with a computed axis: any fact of
        theirs may be read.
    """

    names: dict[str, str] = field(default_factory=dict)
    maybe: dict[str, str] = field(default_factory=dict)
    isolated: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    facts: set[Fact] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)


def references(node: nodes.Include | nodes.Import | nodes.FromImport | nodes.Extends) -> list[str] | None:
    """Return the names that a node may load, or None if they are computed.

    A conditional expression of constants, ``"a" if x else "b"``, is static as well.
    """
    return _constants(node.template)


def _constants(node: nodes.Node) -> list[str] | None:
    parts: list[nodes.Node]
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, (nodes.List, nodes.Tuple)):
        parts = list(node.items)
    elif isinstance(node, nodes.CondExpr) and node.expr2 is not None:
        parts = [node.expr1, node.expr2]
    else:
        return None
    found = [_constants(part) for part in parts]
    return None if any(part is None for part in found) else [name for part in found for name in part or ()]


def usage(
    key: str,
    tree: Callable[[str], nodes.Template],
    resolve: Callable[[str, str], str],
    environment: jinja2.Environment,
    function: str,
) -> Usage:
    """Return what the template uses.

    Parameters
    ----------
    key : str
        The template.
    tree : callable
        Syntax tree of a key.
    resolve : callable
        ``resolve(reference, parent) -> key``; raises ``jinja2.TemplateNotFound``.
    environment : jinja2.Environment
        Knows the filters and tests.
    function : str
        For messages.

    Raises
    ------
    TemplateError
        An unknown filter or test, a printed tuple, ``autoescape``, ``"{}".format()``.
    """
    walk = _Walk(tree, resolve, environment, function)
    walk.template(key, _Scope(None, set(GLOBALS)))
    return walk.usage


@dataclass(slots=True)
class _Scope:
    """Names bound here for certain, and on some paths only."""

    parent: _Scope | None
    bound: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)

    def find(self, name: str) -> str:
        """Return ``"bound"``, ``"maybe"`` or ``"free"``."""
        scope: _Scope | None = self
        answer = "free"
        while scope is not None:
            if name in scope.bound:
                return "bound"
            if name in scope.maybe:
                answer = "maybe"
            scope = scope.parent
        return answer


def _targets(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Name):
        yield node.name
    elif isinstance(node, (nodes.Tuple, nodes.List)):
        for item in node.items:
            yield from _targets(item)


def _exports(body: Iterable[nodes.Node]) -> Iterator[str]:
    """Yield what the top level of a template assigns: macros and blocks see it, even when it stands below them."""
    for node in body:
        if isinstance(node, (nodes.Assign, nodes.AssignBlock)):
            yield from _targets(node.target)
        elif isinstance(node, nodes.Macro):
            yield node.name
        elif isinstance(node, nodes.Import):
            yield node.target
        elif isinstance(node, nodes.FromImport):
            yield from (name if isinstance(name, str) else name[1] for name in node.names)
        elif isinstance(node, nodes.If):
            yield from _exports([*node.body, *node.elif_, *node.else_])


class _Walk(NodeVisitor):
    def __init__(
        self,
        tree: Callable[[str], nodes.Template],
        resolve: Callable[[str, str], str],
        environment: jinja2.Environment,
        function: str,
    ) -> None:
        self.usage = Usage()
        self.tree, self.resolve, self.environment, self.function = tree, resolve, environment, function
        self.open: list[str] = []
        self.exports: set[str] = set()
        self.isolated = False

    # Files

    def template(self, key: str, scope: _Scope, late: Iterable[str] = ()) -> None:
        """Walk one file; `late` are names that an extending child sets, which this one sees."""
        if key in self.open:
            return
        tree = self.tree(key)
        before, self.exports = self.exports, {*_exports(tree.body), *late}
        self.open.append(key)
        self._all(tree.body, _Scope(scope, {"self"}, set(late)))
        self.open.pop()
        self.exports = before

    @contextmanager
    def _alone(self, alone: bool) -> Iterator[None]:
        before, self.isolated = self.isolated, self.isolated or alone
        yield
        self.isolated = before

    def _load(self, node: nodes.Include | nodes.Import | nodes.FromImport | nodes.Extends, scope: _Scope) -> None:
        self.visit(node.template, scope)
        alone = not getattr(node, "with_context", True)
        late = self.exports if isinstance(node, nodes.Extends) else ()
        for reference in references(node) or ():
            try:
                key = self.resolve(reference, self.open[-1])
            except jinja2.TemplateNotFound:
                continue  # `ignore missing`, or one of several: read() has refused the others
            with self._alone(alone):
                self.template(key, _Scope(None, set(GLOBALS)) if alone else scope, late)

    visit_Include = visit_Extends = _load

    def visit_Import(self, node: nodes.Import, scope: _Scope) -> None:
        self._load(node, scope)
        scope.bound.add(node.target)

    def visit_FromImport(self, node: nodes.FromImport, scope: _Scope) -> None:
        self._load(node, scope)
        scope.bound.update(name if isinstance(name, str) else name[1] for name in node.names)

    # Uses

    def _where(self, node: nodes.Node) -> str:
        return f"{self.open[-1]}:{node.lineno}"

    def _use(self, node: nodes.Name, scope: _Scope) -> bool:
        """Record one use; return whether the name comes from outside."""
        found = scope.find(node.name)
        if found == "bound":
            return False
        usage = self.usage
        sink = usage.isolated if self.isolated else usage.names if found == "free" else usage.maybe
        sink.setdefault(node.name, self._where(node))
        return not self.isolated

    def visit_Name(self, node: nodes.Name, scope: _Scope) -> None:
        if node.ctx == "load" and self._use(node, scope):
            self.usage.whole.add(node.name)

    def _plain(self, node: nodes.Node | None, scope: _Scope) -> None:
        """Visit what is printed or tested: nothing that is read there is passed on."""
        if isinstance(node, nodes.Name):
            self._use(node, scope)
        elif isinstance(node, (nodes.Not, nodes.And, nodes.Or, nodes.Concat)):
            for child in node.iter_child_nodes():
                self._plain(child, scope)
        elif isinstance(node, nodes.CondExpr):
            for part in (node.test, node.expr1, node.expr2):
                self._plain(part, scope)
        elif node is not None:
            self.visit(node, scope)

    def _all(self, body: Iterable[nodes.Node], scope: _Scope) -> None:
        for node in body:
            self.visit(node, scope)

    def visit_Output(self, node: nodes.Output, scope: _Scope) -> None:
        for child in node.nodes:
            if isinstance(child, nodes.Tuple):
                raise self._error(
                    child, "a tuple is printed: Jinja reads {{1, 2}} as an expression",
                    "braces of C++ with spaces between, `{ {1, 2} }`, or {{ [1, 2] }} for the list {1, 2}",
                )  # fmt: skip
            self._plain(child, scope)

    def visit_Concat(self, node: nodes.Concat, scope: _Scope) -> None:
        self._plain(node, scope)

    def visit_CondExpr(self, node: nodes.CondExpr, scope: _Scope) -> None:
        self._plain(node.test, scope)
        for part in (node.expr1, node.expr2):
            if part is not None:
                self.visit(part, scope)

    def visit_Not(self, node: nodes.Not, scope: _Scope) -> None:
        self._plain(node, scope)

    def _attribute(self, node: nodes.Expr, base: nodes.Name, name: str, scope: _Scope) -> bool:
        if not self._use(base, scope):
            return False
        self.usage.attributes.setdefault(base.name, {}).setdefault(name, self._where(node))
        return True

    def visit_Getattr(self, node: nodes.Getattr, scope: _Scope) -> None:
        self._read(node, node.attr, scope)

    def visit_Getitem(self, node: nodes.Getitem, scope: _Scope) -> None:
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            self._read(node, node.arg.value, scope)
        else:
            self.visit(node.node, scope)
            self.visit(node.arg, scope)

    def _read(self, node: nodes.Getattr | nodes.Getitem, name: str, scope: _Scope) -> None:
        if not isinstance(node.node, nodes.Name):
            self.visit(node.node, scope)
        elif self._attribute(node, node.node, name, scope):
            if name == "order":
                self.usage.facts.add(Fact(node.node.name, "order"))
            elif name in _ASKED:
                self.usage.whole.add(node.node.name)

    def visit_Call(self, node: nodes.Call, scope: _Scope) -> None:
        callee = node.node
        if isinstance(callee, nodes.Getattr) and callee.attr == "format":
            raise self._error(node, "str.format would print Python's words", "the filter: '%s_%d' | format(name, n)")
        asked = isinstance(callee, nodes.Getattr) and isinstance(callee.node, nodes.Name) and callee.attr in _ASKED
        constant = len(node.args) == 1 and not node.kwargs and node.dyn_args is None and node.dyn_kwargs is None
        value = getattr(node.args[0], "value", None) if constant else None
        if asked and type(value) is int:
            assert isinstance(callee, nodes.Getattr) and isinstance(callee.node, nodes.Name)
            if self._attribute(callee, callee.node, callee.attr, scope):
                self.usage.facts.add(Fact(callee.node.name, callee.attr, value))
        else:
            self.generic_visit(node, scope)

    def visit_Test(self, node: nodes.Test, scope: _Scope) -> None:
        self._known(node, "test", self.environment.tests)
        self._plain(node.node, scope)
        self._all(node.args, scope)

    def visit_Filter(self, node: nodes.Filter, scope: _Scope) -> None:
        self._known(node, "filter", self.environment.filters)
        self.generic_visit(node, scope)

    def _known(self, node: nodes.Filter | nodes.Test, kind: str, names: Iterable[str]) -> None:
        if node.name not in names:
            near = nearest_name(node.name, [name for name in names if not name.startswith("_")])
            raise self._error(node, f"no {kind} is named `{node.name}`", f"`{near}`" if near else None)

    def _error(self, node: nodes.Node, summary: str, hint: str | None) -> TemplateError:
        return TemplateError(summary, function=self.function, template=self._where(node), try_=hint)

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier, scope: _Scope) -> None:
        raise self._error(node, "autoescape is for HTML, and would corrupt C++", None)

    # Scopes

    def visit_Assign(self, node: nodes.Assign, scope: _Scope) -> None:
        self.visit(node.node, scope)
        self._bind(node.target, scope)

    def visit_AssignBlock(self, node: nodes.AssignBlock, scope: _Scope) -> None:
        if node.filter is not None:
            self.visit(node.filter, scope)
        self._all(node.body, _Scope(scope))
        self._bind(node.target, scope)

    def _bind(self, target: nodes.Node, scope: _Scope) -> None:
        if isinstance(target, nodes.NSRef):
            self._use(nodes.Name(target.name, "load", lineno=target.lineno), scope)
        scope.bound.update(_targets(target))

    def visit_If(self, node: nodes.If, scope: _Scope) -> None:
        self._plain(node.test, scope)
        branches = [node.body]
        for other in node.elif_:
            self._plain(other.test, scope)
            branches.append(other.body)
        before = set(scope.bound)
        ends = []
        for body in [*branches, node.else_]:
            scope.bound = set(before)
            self._all(body, scope)
            ends.append(scope.bound)
        scope.bound = set.intersection(*ends)
        scope.maybe |= set.union(*ends)

    def visit_For(self, node: nodes.For, scope: _Scope) -> None:
        self.visit(node.iter, scope)
        inner = _Scope(scope, {"loop", *_targets(node.target)})
        if node.test is not None:
            self._plain(node.test, inner)
        self._all(node.body, inner)
        self._all(node.else_, _Scope(scope))

    def visit_With(self, node: nodes.With, scope: _Scope) -> None:
        self._all(node.values, scope)
        self._all(node.body, _Scope(scope, {name for target in node.targets for name in _targets(target)}))

    def visit_Macro(self, node: nodes.Macro, scope: _Scope) -> None:
        scope.bound.add(node.name)
        self._macro(node, scope)

    def visit_CallBlock(self, node: nodes.CallBlock, scope: _Scope) -> None:
        self.visit(node.call, scope)
        self._macro(node, scope)

    def _macro(self, node: nodes.Macro | nodes.CallBlock, scope: _Scope) -> None:
        inner = _Scope(scope, {*_MACRO, *(argument.name for argument in node.args)}, set(self.exports))
        self._all(node.defaults, inner)
        self._all(node.body, inner)

    def visit_Block(self, node: nodes.Block, scope: _Scope) -> None:
        self._all(node.body, _Scope(scope, {"super"}, set(self.exports)))

    def visit_FilterBlock(self, node: nodes.FilterBlock, scope: _Scope) -> None:
        self.visit(node.filter, scope)
        self._all(node.body, _Scope(scope))
