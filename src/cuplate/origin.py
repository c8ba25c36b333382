"""Where each line of a rendered text came from: a second render that carries invisible marks.

Every piece of text, and every ``{{ }}``, gets one private-use character in front of it, which stands for its file and
line. Values pass through macros, includes and loops with their marks, and where the marks come out is where the text
came out. If the marked render differs from the plain one in anything but the marks (a template that measures or
compares the text of a macro), the marks inside captured text are left out; if it differs still, there is no map.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from jinja2 import Environment
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from cuplate.dialect import MARKS

__all__ = ["CoarseMarks", "Marks", "Origin", "has_marks", "line_breaks", "unmark"]

# Planes 15 and 16 of Unicode: private use, in no font, in no kernel.
_FIRST, _LAST = map(ord, MARKS.split("-"))
_PUSH, _POP = chr(_LAST), chr(_LAST - 1)
_MARK = re.compile(f"([{MARKS}])")

_CAPTURING = {"macro", "call", "filter", "set"}
_PRINTING = {"print", "call", "filter"}  # what they print comes out where they stand


@dataclass(frozen=True, slots=True)
class Origin:
    """The place in a template that a rendered line came from.

    Attributes
    ----------
    template : str
        Key in ``Template.sources``.
    line : int
        From 1.
    kind : {"text", "value"}
        Text of the template, or the value of an expression.
    expression : str
        What stands between the braces; ``""`` for text.
    """

    template: str
    line: int
    kind: Literal["text", "value"]
    expression: str = ""

    def __str__(self) -> str:
        return f"{self.template}:{self.line}"


class Marks(Extension):
    """A Jinja extension that puts a mark before all text and all values.

    It works on the tokens, after whitespace control, so that marks cannot change what is trimmed.
    """

    coarse = False

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.table: list[Origin] = []
        environment.extend(origins=self.table)

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Yield the tokens with the marks among them."""
        name = stream.name or ""
        assert self.environment.loader is not None
        source = self.environment.loader.get_source(self.environment, name)[0]
        expressions = _expressions(self.environment, source)
        tokens = list(stream)
        depth = 0
        for index, token in enumerate(tokens):
            tag = _tag(tokens, index) if token.type == "block_begin" else ""
            silent = self.coarse and depth > 0
            if tag in _CAPTURING and not (tag == "set" and _assigns(tokens, index)):
                depth += 1
            elif tag.startswith("end") and tag[3:] in _CAPTURING:
                depth -= 1
                if not self.coarse:
                    yield Token(token.lineno, "data", _POP)
            if token.type == "data" and not silent:
                yield Token(token.lineno, "data", self._text(name, token))
                continue
            if token.type == "variable_begin":
                expression = next(expressions)
                if not silent:
                    yield Token(token.lineno, "data", self._mark(Origin(name, token.lineno, "value", expression)))
            elif tag in (_PRINTING if self.coarse else {"print"}) and not silent:
                yield Token(token.lineno, "data", self._mark(Origin(name, token.lineno, "value", tag)))
            yield token
            if not self.coarse and token.type == "block_end" and _opens_capture(tokens, index):
                yield Token(token.lineno, "data", _PUSH)

    def _text(self, name: str, token: Token) -> str:
        lines = str(token.value).split("\n")
        return "\n".join(
            self._mark(Origin(name, token.lineno + number, "text")) + line if line or not number else line
            for number, line in enumerate(lines)
        )

    def _mark(self, origin: Origin) -> str:
        if _FIRST + len(self.table) >= _LAST - 1:
            raise OverflowError("more marks than private-use characters")
        self.table.append(origin)
        return chr(_FIRST + len(self.table) - 1)


class CoarseMarks(Marks):
    """Marks that leave captured text alone: macros, ``call``, ``filter`` and ``set`` blocks."""

    coarse = True


def _tag(tokens: list[Token], index: int) -> str:
    following = tokens[index + 1] if index + 1 < len(tokens) else None
    return str(following.value) if following is not None and following.type == "name" else ""


def _assigns(tokens: list[Token], index: int) -> bool:
    """Return whether the tag at `index` is ``{% set x = ... %}``, not a block."""
    for token in tokens[index:]:
        if token.type == "block_end":
            return False
        if token.type == "assign":
            return True
    return False


def _opens_capture(tokens: list[Token], end: int) -> bool:
    begin = end
    while tokens[begin].type != "block_begin":
        begin -= 1
    tag = _tag(tokens, begin)
    return tag in _CAPTURING and not (tag == "set" and _assigns(tokens, begin))


def _expressions(environment: Environment, source: str) -> Iterator[str]:
    """Yield what stands in each ``{{ }}``, in order."""
    inside: list[str] | None = None
    for _, kind, value in environment.lex(source):
        if kind == "variable_begin":
            inside = []
        elif kind == "variable_end":
            yield " ".join("".join(inside or ()).split())
            inside = None
        elif inside is not None:
            inside.append(value)


def has_marks(text: str) -> bool:
    """Return whether a plain text holds characters that serve as marks."""
    return _MARK.search(text) is not None


def unmark(text: str, table: list[Origin]) -> tuple[str, tuple[Traced, ...]]:
    """Take the marks out.

    Parameters
    ----------
    text : str
        A marked render.
    table : list of Origin
        What each mark stands for.

    Returns
    -------
    str
        The plain text.
    tuple of Traced
        One for each line.
    """
    plain: list[str] = []
    lines = _Lines()
    held: list[Origin | None] = []
    for piece in _MARK.split(text):
        if piece == _PUSH:
            held.append(lines.current)
        elif piece == _POP:
            if held:
                lines.current = held.pop()
        elif len(piece) == 1 and ord(piece) >= _FIRST:
            lines.current = table[ord(piece) - _FIRST]
        else:
            plain.append(piece)
            lines.add(piece)
    return "".join(plain), lines.finish()


@dataclass(frozen=True, slots=True)
class Traced:
    """Where one rendered line came from.

    Attributes
    ----------
    origin : Origin or None
        Of its first visible character; text wins over a value of the same template line.
    pieces : tuple of (int, Origin)
        First column (from 1) and origin of each piece: a block tag that ends a line joins it with the next.
    """

    origin: Origin | None
    pieces: tuple[tuple[int, Origin], ...]

    def at(self, column: int) -> Origin | None:
        """Origin of a column, from 1; 0 stands for the whole line."""
        before = [origin for start, origin in self.pieces if start <= column]
        return before[-1] if before else self.origin


class _Lines:
    """Gathers the origin of each line while the text goes by."""

    def __init__(self) -> None:
        self.current: Origin | None = None
        self.done: list[Traced] = []
        self._pieces: list[tuple[int, Origin]] = []
        self._column = 1
        self._visible: Origin | None = None
        self._blank: Origin | None = None
        self._empty = True

    def add(self, piece: str) -> None:
        for number, part in enumerate(piece.split("\n")):
            if number:
                self._end()
            if part:
                self._see(part)

    def _see(self, part: str) -> None:
        current = self.current
        self._empty = False
        if current is not None and part.strip():
            self._pieces.append((self._column, current))
        self._column += len(part)
        if self._blank is None:
            self._blank = current
        if not part.strip() or current is None:
            return
        first = self._visible
        if first is None or (
            current.kind == "text" and (first.template, first.line) == (current.template, current.line)
        ):
            self._visible = current

    def _end(self) -> None:
        self.done.append(Traced(self._visible or self._blank or self.current, tuple(self._pieces)))
        self._visible = self._blank = None
        self._empty, self._pieces, self._column = True, [], 1
        if self.current is not None and self.current.kind == "text":
            # Only text of the same piece can follow without a mark, and it stands one line further down.
            self.current = Origin(self.current.template, self.current.line + 1, "text")

    def finish(self) -> tuple[Traced, ...]:
        if not self._empty:
            self._end()
        return tuple(self.done)


def line_breaks(lines: Iterable[str]) -> Iterator[bool]:
    """Yield for each line of C++ whether a directive may stand before it.

    Not inside a comment, a raw string, a continued line or parentheses (they may be a macro's).
    """
    state = _Cpp()
    for line in lines:
        yield state.free
        state.feed(line)


class _Cpp:
    """Just enough of C++'s lexer to know where a line may begin with ``#``."""

    _TOKEN = re.compile(r'//.*|/\*|R"([^()\\\s]*)\(|"(?:[^"\\]|\\.)*"|(?<![0-9A-Za-z])\'(?:[^\'\\]|\\.)*\'|[()]')

    def __init__(self) -> None:
        self.until = ""
        self.depth = 0
        self.continued = False

    @property
    def free(self) -> bool:
        return not self.until and self.depth == 0 and not self.continued

    def feed(self, line: str) -> None:
        place = 0
        self.continued = line.rstrip("\n").endswith("\\")
        while place < len(line):
            if self.until:
                end = line.find(self.until, place)
                if end < 0:
                    return
                place, self.until = end + len(self.until), ""
                continue
            token = self._TOKEN.search(line, place)
            if token is None:
                return
            place = token.end()
            self._take(token)

    def _take(self, token: re.Match[str]) -> None:
        text = token[0]
        if text == "/*":
            self.until = "*/"
        elif text.startswith('R"'):
            self.until = f'){token[1]}"'
        elif text == "(":
            self.depth += 1
        elif text == ")":
            self.depth = max(0, self.depth - 1)
