"""Rewrites what no macro can make ordinary C++, on the same line.

A tokenizer that knows comments, strings and raw strings, and no more of C++ than the scopes of braces. It

* turns ``extern __shared__`` arrays into pointers (in functions) or names for one thread-local array (outside);
* puts a macro before what the CPU backend refuses. Each expands to an error in our own words, so that a branch which is
  not compiled stays silent: `REFUSALS`;
* notes the launch bounds of kernels that are no templates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["SUPPORTED_HEADERS", "Rewritten", "analyse", "rewrite"]

_STANDARD = "array cassert cfloat climits cmath cstddef cstdint limits type_traits utility"
SUPPORTED_HEADERS: frozenset[str] = frozenset(
    {
        "cooperative_groups.h",
        "cooperative_groups/memcpy_async.h",
        "cooperative_groups/reduce.h",
        "cooperative_groups/scan.h",
        "cuda_bf16.h",
        "cuda_fp16.h",
        "cuda_pipeline_primitives.h",
        "cuda_runtime.h",
        "math_constants.h",
        "mma.h",
        *(f"cuda/std/{name}" for name in _STANDARD.split()),
    }
)

# Identifier (whole) -> macro of the shim that refuses it.
_REFUSED = (
    (re.compile(r"(asm|__asm__|__asm)\Z"), "CUPLATE_NO_PTX"),
    (re.compile(r"thread_local\Z"), "CUPLATE_NO_THREAD_LOCAL"),
    (re.compile(r"(tex|surf)(1D|2D|3D|Cubemap)\w*\Z"), "CUPLATE_NO_TEXTURES"),
    (re.compile(r"(cudaDeviceSynchronize|cudaLaunch\w+|cudaGetParameterBuffer\w*)\Z"), "CUPLATE_NO_LAUNCH"),
    (re.compile(r"__cluster_dims__\Z"), "CUPLATE_NO_CLUSTERS"),
)
_MAYBE_REFUSED = re.compile(r"asm|thread_local|tex\dD|texC|surf\dD|surfC|cudaDevice|cudaLaunch|cudaGetP|__cluster|<<<")

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\f\v]+|\\\r?\n)
    | (?P<newline>\n)
    | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
    | (?P<string>(?:u8|u|U|L)?R"(?P<delimiter>[^()\s\\]{0,16})\(.*?\)(?P=delimiter)"
        |(?:u8|u|U|L)?"(?:\\.|[^"\\\n])*"|(?:u8|u|U|L)?'(?:\\.|[^'\\\n])+')
    | (?P<word>[^\W\d]\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    | (?P<mark>\#\#|\#|<<<|::|->|.)
    """,
    re.DOTALL | re.VERBOSE,
)
_ALWAYS_READ = ("__shared__", "__launch_bounds__", "alignas")
_SPECIFIERS = frozenset(
    {"__shared__", "__device__", "__constant__", "__managed__", "static", "extern", "const", "volatile"}
)
_OF_TYPES = frozenset({"::", "<", ">", ",", "*"})
_ATTRIBUTES = frozenset({"__align__", "alignas", "__attribute__", "__builtin_align__"})


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A source that a host compiler takes.

    Attributes
    ----------
    text : str
        Has as many lines as the original, each at its number.
    bounds : dict
        Kernel to the expression of its ``__launch_bounds__``, for kernels that are no templates.
    dynamic_outside : bool
        Dynamic shared memory is declared outside of functions.
    """

    text: str
    bounds: dict[str, str] = field(default_factory=dict)
    dynamic_outside: bool = False


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int
    directive: bool


def rewrite(text: str) -> str:
    """The text of `analyse`."""
    return analyse(text).text


def analyse(text: str) -> Rewritten:
    """What a host compiler is given for a CUDA C++ source.

    Examples
    --------
    >>> analyse("__global__ void k() { extern __shared__ float part[]; }").text
    '__global__ void k() { CUPLATE_DYNAMIC_SHARED(part, float); }'
    """
    if not any(word in text for word in _ALWAYS_READ) and not _MAYBE_REFUSED.search(text):
        return Rewritten(text)
    return _Rewriter(text).run()


class _Rewriter:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.edits: list[tuple[int, int, str]] = []
        self.bounds: dict[str, str] = {}
        self.outside = False
        self.scopes: list[bool] = []  # of each open brace: a namespace's or a linkage specification's
        self.statement = 0  # where the current statement begins

    def run(self) -> Rewritten:
        at = 0
        while at < len(self.tokens):
            at = self._step(at)
        pieces, done = [], 0
        for start, end, new in sorted(self.edits):
            pieces += [self.text[done:start], new]
            done = end
        return Rewritten("".join([*pieces, self.text[done:]]), self.bounds, self.outside)

    def _step(self, at: int) -> int:
        token = self.tokens[at]
        if token.kind == "word":
            if token.text in ("extern", "__shared__") or self._aligns_extern(at):
                return self._shared(at)
            if token.text == "__launch_bounds__":
                self._launch_bounds(at)
            elif token.text == "alignas":
                self._alignas(at)
            for pattern, macro in _REFUSED:
                if pattern.match(token.text) and not self._follows(at, ".", "->", "#"):
                    self.edits.append((token.start, token.start, macro + " "))
        elif token.text == "<<<" and not self._follows(at, "operator"):
            self.edits.append((token.start, token.start, " CUPLATE_NO_LAUNCH "))
        elif not token.directive:
            self._scope(at)
        return at + 1

    def _scope(self, at: int) -> None:
        text = self.tokens[at].text
        if text == "{":
            words = [t.text for t in self.tokens[self.statement : at] if not t.directive]
            linkage = len(words) == 2 and words[0] == "extern" and words[1].startswith('"')
            self.scopes.append("namespace" in words[:2] or linkage)
        elif text == "}" and self.scopes:
            self.scopes.pop()
        if text in ("{", "}", ";"):
            self.statement = at + 1

    def _follows(self, at: int, *texts: str) -> bool:
        return at > 0 and self.tokens[at - 1].text in texts

    def _in_function(self, at: int) -> bool:
        return self.tokens[at].directive or not all(self.scopes)

    # -------------------------------------------------------------------------------------- __shared__

    def _shared(self, at: int) -> int:
        """Rewrites a declaration of dynamic shared memory; refuses an initializer. Returns where to go on."""
        end = at
        words = set()
        while end < len(self.tokens) and self.tokens[end].text not in (";", "{", "}", "="):
            if self.tokens[end].directive != self.tokens[at].directive:
                return at + 1
            words.add(self.tokens[end].text)
            if self.tokens[end].text == "(" and not ({self.tokens[end - 1].text} & _ATTRIBUTES):
                return at + 1  # a function, or an initializer in parentheses
            end = self._behind_group(end) if self.tokens[end].text == "(" else end + 1
        if "__shared__" not in words or end >= len(self.tokens):
            return at + 1
        if self.tokens[end].text == "=":
            self.edits.append((self.tokens[end].start, self.tokens[end].start, "CUPLATE_NO_INITIALIZER "))
            return at + 1
        if "extern" not in words or self.tokens[end].text != ";":
            return at + 1
        begin = self._type_before(at)
        declared, attributes = self._declarators(begin, end)
        if not declared:
            return at + 1
        inside = self._in_function(at)
        self.outside = self.outside or not inside
        macro = "CUPLATE_DYNAMIC_SHARED" if inside else "CUPLATE_DYNAMIC_OUTSIDE"
        if attributes and inside:
            macro, attributes = "CUPLATE_DYNAMIC_ALIGNED", f"{attributes}, "
        else:
            attributes = ""  # the array outside is aligned to a page
        new = " ".join(f"{macro}({attributes}{name}, {kind});" for name, kind in declared)
        start, stop = self.tokens[begin].start, self.tokens[end].end
        self.edits.append((start, stop, new + self._line_ends(start, stop)))
        self.statement = end + 1
        return end + 1

    def _type_before(self, at: int) -> int:
        """Where a declaration begins whose type stands in front of ``extern`` or ``__shared__``."""
        while at > self.statement:
            before = self.tokens[at - 1]
            if before.directive:
                break
            if before.kind in ("word", "number") or before.text in _OF_TYPES:
                at -= 1
                continue
            opens = (i for i in range(at - 1, self.statement, -1) if self.tokens[i].text == "(")
            opened = next((i for i in opens if self._behind_group(i) == at), 0)
            if not opened or self.tokens[opened - 1].text not in _ATTRIBUTES:
                break
            at = opened - 1
        return at

    def _aligns_extern(self, at: int) -> bool:
        """Whether an attribute stands in front of ``extern``."""
        while at < len(self.tokens) and self.tokens[at].text in _ATTRIBUTES:
            at = self._behind_group(at + 1)
            if at < len(self.tokens) and self.tokens[at].text == "extern":
                return True
        return False

    def _line_ends(self, start: int, stop: int) -> str:
        """As many line ends as the text has, continued where it is a macro's."""
        return "".join(re.findall(r"\\?\r?\n", self.text[start:stop]))

    def _declarators(self, at: int, end: int) -> tuple[list[tuple[str, str]], str]:
        """Name and type of each element of the arrays that a declaration declares, and what says their alignment."""
        kept: list[_Token] = []
        attributes: list[_Token] = []
        while at < end:
            token = self.tokens[at]
            if token.text in _ATTRIBUTES:
                behind = self._behind_group(at + 1)
                attributes += self.tokens[at:behind]
                at = behind
                continue
            if token.text not in ("extern", "__shared__"):
                kept.append(token)
            at += 1
        first = next((i for i, t in enumerate(kept) if t.text == "["), 0)
        if first < 2 or kept[first - 1].kind != "word":
            return [], ""
        base = _joined(kept[: first - 1])
        declared = []
        for part in _split(kept[first - 1 :]):
            sizes = _joined(part[1:]).replace(" ", "")
            if part[0].kind != "word" or not sizes.startswith("[]"):
                return [], ""
            declared.append((part[0].text, base + sizes[2:]))
        return declared, _joined(attributes)

    def _behind_group(self, at: int) -> int:
        """Index behind the parenthesis that closes the one at ``at``."""
        depth = 0
        while at < len(self.tokens):
            depth += {"(": 1, ")": -1}.get(self.tokens[at].text, 0)
            at += 1
            if depth <= 0:
                break
        return at

    # -------------------------------------------------------------------------------------- alignas

    def _alignas(self, at: int) -> None:
        """Moves it in front of what declares: CUDA's compilers take it behind, the host's do not."""
        first = at
        while first > 0 and self.tokens[first - 1].text in _SPECIFIERS:
            first -= 1
        if first == at or at + 1 >= len(self.tokens) or self.tokens[at + 1].text != "(":
            return
        start, stop = self.tokens[at].start, self.tokens[self._behind_group(at + 1) - 1].end
        place = self.tokens[first].start
        self.edits.append((place, place, f"{_joined(self.tokens[at : self._behind_group(at + 1)])} "))
        self.edits.append((start, stop, self._line_ends(start, stop)))

    # -------------------------------------------------------------------------------------- launch bounds

    def _launch_bounds(self, at: int) -> None:
        before = [t.text for t in self.tokens[self.statement : at]]
        if "template" in before or self._in_function(at) or (any(self.scopes) and "namespace" in before):
            return
        behind = self._behind_group(at + 1)
        inner = self.tokens[at + 2 : behind - 1]
        expression = _joined(_split(inner)[0]) if inner else ""
        while behind < len(self.tokens) and self.tokens[behind].text not in ("(", ";", "{"):
            behind += 1
        if expression and behind < len(self.tokens) and self.tokens[behind].text == "(":
            self.bounds[self.tokens[behind - 1].text] = expression


def _tokens(text: str) -> list[_Token]:
    """The tokens without spaces and comments; those of a preprocessor directive are marked."""
    found: list[_Token] = []
    fresh_line, directive = True, False
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        kind = "string" if kind == "delimiter" else kind
        if kind == "newline":
            fresh_line, directive = True, False
            continue
        if kind in ("space", "comment"):
            continue
        if fresh_line and match[0] == "#":
            directive = True
        fresh_line = False
        found.append(_Token(kind, match[0], match.start(), match.end(), directive))
    return found


def _split(tokens: Sequence[_Token]) -> list[list[_Token]]:
    """Parts between commas that no bracket holds."""
    parts: list[list[_Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _joined(tokens: Sequence[_Token]) -> str:
    """Source of tokens on one line: a space only where there was one."""
    pieces = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.end < token.start:
            pieces.append(" ")
        pieces.append(token.text)
    return "".join(pieces)
