"""Template + Specialization -> Source: pure text, with the origin of every line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any

import jinja2

from cuplate.errors import CuplateError, TemplateError
from cuplate.hints import nearest_name
from cuplate.origin import CoarseMarks, Marks, Origin, Traced, has_marks, line_breaks, unmark
from cuplate.specialization import Specialization
from cuplate.template import Template
from cuplate.views import ArrayView, Block, Member, ScalarView, Withheld, axis_view

__all__ = ["Origin", "Source", "render"]


@dataclass(frozen=True, slots=True)
class Source:
    """A rendered template.

    Attributes
    ----------
    text : str
        CUDA C++.
    entry : str
        The kernel's name in `text`, as a name expression: ``"saxpy"``, ``"sgemm<16>"``.
    function : str
        Name of the specialized function.
    template_name : str
        Name of the template.
    parameters : tuple of (str, object)
        Compile-time values, for messages.
    """

    text: str
    entry: str
    function: str
    template_name: str
    parameters: tuple[tuple[str, object], ...]
    _template: Template = field(repr=False, compare=False)
    _specialization: Specialization = field(repr=False, compare=False)
    _lazy: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __hash__(self) -> int:
        return hash((self.text, self.entry, self.function))

    @property
    def sources(self) -> Mapping[str, str]:
        """Text of each template file, by the names that origins use."""
        return self._template.sources

    @property
    def origins(self) -> tuple[Origin | None, ...]:
        """Origin of each line; found at the first use, by a second render."""
        return tuple(traced.origin for traced in self._traced())

    def _traced(self) -> tuple[Traced, ...]:
        if "traced" not in self._lazy:
            self._lazy["traced"] = _trace(self)
        return self._lazy["traced"]  # type: ignore[no-any-return]

    def origin(self, line: int, column: int = 0) -> Origin | None:
        """Return where a line of the text came from; None for a line that is not there, or where it is not known.

        Parameters
        ----------
        line : int
            Line of `text`, from 1, as a compiler counts.
        column : int
            Column, from 1, for a line that several lines of the template became; 0 for the line as a whole.
        """
        traced = self._traced()
        return traced[line - 1].at(column) if 1 <= line <= len(traced) else None

    def excerpt(self, origin: Origin, context: int = 2) -> str:
        """Return numbered lines of the template around an origin, the line itself marked with ``>``.

        Parameters
        ----------
        origin : Origin
            The place.
        context : int
            Lines before and after.
        """
        lines = self.sources[origin.template].split("\n")
        if lines and not lines[-1]:
            lines.pop()
        first, last = max(1, origin.line - context), min(len(lines), origin.line + context)
        width = len(str(last))
        return "\n".join(
            f"{'>' if number == origin.line else ' '} {number:>{width}} | {lines[number - 1]}".rstrip()
            for number in range(first, last + 1)
        )

    def text_with_lines(self, *, absolute: bool = False) -> str:
        """Return the text with ``#line`` directives that name the template's lines.

        No directive stands inside a comment, a raw string, a continued line or parentheses; the next free line
        corrects the count.

        Parameters
        ----------
        absolute : bool
            Name files by their whole path, so that a profiler finds them; else by their name, which is the same on
            every machine.
        """
        paths = self._template.paths if absolute else {}
        return "".join(_with_lines(self.text, self.origins, {key: str(path) for key, path in paths.items() if path}))


def render(template: Template, specialization: Specialization) -> Source:
    """Return the source of one specialization; the same text in every process.

    Parameters
    ----------
    template : Template
        From `cuplate.template.read`.
    specialization : Specialization
        All that the template can see.

    Raises
    ------
    TemplateError
        The template asks for what is not there, prints what has no C++ spelling, or fails otherwise; the message
        has the template's line and the parameters.
    """
    try:
        compiled = template.compiled()
        context, entry = _context(template, specialization)
        text = _run(compiled, context)
        _check_text(text)
    except Exception as error:
        if isinstance(error, TemplateError) and error.function is not None:
            raise
        raise _explained(error, template, specialization) from error
    return Source(
        text=text,
        entry=entry,
        function=specialization.function,
        template_name=template.name,
        parameters=specialization.parameters,
        _template=template,
        _specialization=specialization,
    )


def _check_text(text: str) -> None:
    """Refuse what no compiler reads to its end."""
    if "\0" in text:
        raise TemplateError("the rendered text holds a NUL character, where the compiler would stop reading")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TemplateError(f"the rendered text holds {text[error.start]!r}, which is no character") from None


def _run(compiled: jinja2.Template, context: dict[str, Any]) -> str:
    # Jinja's own render() compiles code to rewrite the traceback of an error; here the frames are read instead.
    return "".join(compiled.root_render_func(compiled.new_context(context)))


def _context(template: Template, specialization: Specialization) -> tuple[dict[str, Any], str]:
    context: dict[str, Any] = {name: _plain(name, value) for name, value in specialization.parameters}
    context.update((facts.name, ArrayView(facts)) for facts in specialization.arrays)
    context.update((name, ScalarView(name, dtype)) for name, dtype in specialization.scalars)
    context.update((facts.name, axis_view(facts)) for facts in specialization.axes)
    context["index_t"] = specialization.index_type
    context["block"] = Block(specialization.block)
    context["arch"] = _arch(specialization.arch)
    entry = specialization.entry
    if "{" in entry:
        entry = _run(template.expression(entry), context)
    # The definition's own name: without namespaces before it and template arguments behind it.
    context["kernel"] = re.split(r"[<(]", entry, maxsplit=1)[0].rpartition("::")[2].strip()
    context["args"] = _arguments(specialization)
    return context, entry


def _plain(name: str, value: object) -> object:
    """Return a parameter as the template sees it: tuples as lists, for Jinja has no other braces."""
    if type(value) in (int, bool, float, str):
        return value
    if isinstance(value, Enum):
        return value if isinstance(value, (int, float, str)) else Member(value)
    if isinstance(value, (tuple, list)):
        return [_plain(name, item) for item in value]
    if isinstance(value, (set, frozenset)):
        # The order of a set of strings differs from process to process, and with it the text.
        raise TemplateError(f"the parameter `{name}` is a set, which has no order", try_=f"{name}=tuple(sorted(...))")
    return value


def _arch(arch: str) -> int:
    digits = re.search(r"\d+", arch)
    if digits is None:
        raise TemplateError("an architecture has a number", given=repr(arch), allowed="sm_90, sm_90a, ...")
    return int(digits[0])


def _arguments(specialization: Specialization) -> str | Withheld:
    if specialization.slots is not None:
        return ", ".join(slot.declared for slot in specialization.slots)
    return Withheld(
        "args",
        "`args` is not known: the kernel's own parameter list is to be matched by name",
        "{{ kernel }}({{ args }}) in the template, so that the list is written for you",
    )


# Errors


def _explained(error: Exception, template: Template, specialization: Specialization) -> TemplateError:
    function = specialization.function
    where = _where(error.__traceback__) or template.name
    if isinstance(error, jinja2.TemplateSyntaxError):  # in the entry, or in a file that is named at render time
        where = f"{error.name or 'entry'}:{error.lineno}"
    called_as = _called(specialization)
    if isinstance(error, CuplateError):
        facts = {"template": where, "called_as": called_as, **error.facts}
        kind = type(error) if isinstance(error, TemplateError) else TemplateError
        return kind(error.summary, function=function, **facts)
    summary, hint = _reason(error, template, specialization)
    facts = {"template": where, "called_as": called_as, "try_": hint}
    if isinstance(error, jinja2.TemplateNotFound):
        key, _, line = where.rpartition(":")
        missing = template._library.missing(str(error), key or None, int(line) if key else None)
        facts |= {"looked_in": missing.facts["looked_in"], "try_": missing.facts["try_"]}
    return TemplateError(summary, function=function, **facts)


def _reason(error: Exception, template: Template, specialization: Specialization) -> tuple[str, str | None]:
    if isinstance(error, jinja2.TemplateNotFound):
        return f"no template {str(error)!r}", None
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"Jinja cannot read the template: {error.message}", None
    if isinstance(error, jinja2.UndefinedError):
        name = re.match(r"'(\w+)' is undefined", str(error))
        known = [*(name for name, _ in specialization.parameters), *(a.name for a in specialization.arrays)]
        return str(error), nearest_name(name[1], known) if name else None
    if isinstance(error, RecursionError):
        return "a macro or an include calls itself without end", None
    return f"{type(error).__name__}: {error}", None


def _where(trace: TracebackType | None) -> str | None:
    """Return file and line of the innermost frame that is a template's."""
    found = None
    while trace is not None:
        compiled = trace.tb_frame.f_globals.get("__jinja_template__")
        if compiled is not None:
            found = f"{compiled.name or 'entry'}:{compiled.get_corresponding_lineno(trace.tb_lineno)}"
        trace = trace.tb_next
    return found


def _called(specialization: Specialization) -> str:
    parameters = ", ".join(f"{name}={value!r}" for name, value in specialization.parameters)
    return f"{specialization.function}({parameters})"


# Origins


def _trace(source: Source) -> tuple[Traced, ...]:
    """Render once more with marks; without a map if the marks would change the text."""
    if has_marks(source.text):
        return ()
    template = source._template
    for marks in (Marks, CoarseMarks):
        try:
            with template._lock:  # a file that is named at render time adds its marks while it runs
                compiled = template.compiled(marks)
                text = _run(compiled, _context(template, source._specialization)[0])
            plain, traced = unmark(text, compiled.environment.origins)  # type: ignore[attr-defined]
        except Exception:  # a template may do anything with marked text; the plain render was fine
            continue
        if plain == source.text:
            return traced
    return ()


def _with_lines(text: str, origins: tuple[Origin | None, ...], paths: Mapping[str, str]) -> Iterator[str]:
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    expected: tuple[str, int] | None = None
    for line, origin, free in zip(lines, [*origins, *[None] * len(lines)], line_breaks(lines), strict=False):
        place = (origin.template, origin.line) if origin is not None else None
        if place is not None and place != expected and free:
            yield f'#line {place[1]} "{_quoted(paths.get(place[0], place[0]))}"\n'
            expected = place
        yield line
        if expected is not None:
            expected = (expected[0], expected[1] + 1)


def _quoted(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"')
