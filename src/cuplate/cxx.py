"""C++ text read as far as cuplate needs it: comments and strings blanked, kernels and their parameter lists found.

No parser: tokens and balanced brackets. Whatever it cannot make out it says so (None), and the compiler decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cuplate.specialization import Slot
from cuplate.structs import Struct

__all__ = ["blank", "defined_kernels", "find_parameters", "parameter_checks", "splice"]

CHECKS_FILE = "cuplate_checks"
MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of CUtensorMap

# Numbers come first, so that the separator in 1'000 opens no character literal; a header name may hold "//".
_LEXEME = re.compile(
    r"""
      (?P<keep> include(?:_next)?[ \t]*<[^>\n]*> | (?<![\w'])\d(?:[\w.]|'(?=\w)|(?<=[eEpP])[+-])* )
    | (?P<comment> //[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<raw> (?<!\w)(?:u8|[uUL])?R"(?P<mark>[^()\\\s"]{0,16})\(.*?\)(?P=mark)" )
    | (?P<literal> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    """,
    re.VERBOSE | re.DOTALL,
)
_SPLICE = re.compile(r"\\\r?\n")  # NVRTC's (probed): a backslash with blanks behind it continues nothing
_DIRECTIVE = re.compile(r"(?m)^[ \t]*(?:\#|%:)[^\n]*$")
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|\.\.\.|\S")
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


def splice(text: str) -> str:
    """The text with continued lines joined, as the preprocessor's second phase does."""
    return _SPLICE.sub("", text)


def blank(text: str, *, literals: bool = False, keep_lines: bool = True) -> str:
    """The text with comments as blanks and raw strings empty.

    Parameters
    ----------
    text : str
        C++ source, continued lines joined.
    literals : bool
        Empty ordinary strings and characters too.
    keep_lines : bool
        Keep the line breaks of comments and raw strings, so that lines can be counted. To the preprocessor a comment is
        one blank, and a directive goes on behind it.
    """

    def replace(match: re.Match[str]) -> str:
        kind = match.lastgroup if match["raw"] is None else "raw"
        newlines = "\n" * match[0].count("\n") if keep_lines else ""
        if kind == "comment":
            return " " + newlines
        if kind == "raw":
            return '""' + newlines
        return match[0][0] * 2 if kind == "literal" and literals else match[0]

    return _LEXEME.sub(replace, text)


def _code_tokens(text: str) -> list[str]:
    return _TOKEN.findall(_DIRECTIVE.sub("", blank(splice(text), literals=True)))


def _closing(tokens: list[str], start: int) -> int:
    """Index of the bracket that closes the one at ``start``; -1 when there is none."""
    depth = 0
    for i in range(start, len(tokens)):
        depth += (tokens[i] in _OPEN) - (tokens[i] in _CLOSE)
        if depth == 0:
            return i
    return -1


def _declarators(tokens: list[str]) -> Iterator[tuple[str, int]]:
    """(name, index of its parameter list) of each ``__global__`` function, declared or defined."""
    for start, token in enumerate(tokens):
        if token != "__global__":
            continue
        i = start + 1
        while i < len(tokens) and tokens[i] not in ("{", "}", ";"):
            if tokens[i] in ("(", "["):  # __launch_bounds__(256), a macro of that kind, [[attributes]], or the list
                end = _closing(tokens, i)
                if end < 0:
                    break
                ends_head = tokens[end + 1 : end + 2] in ([], ["{"], [";"], ["noexcept"])
                name = _named_before(tokens, i) if tokens[i] == "(" and ends_head else None
                if name is not None:
                    yield name, i
                    break
                i = end
            i += 1


def _named_before(tokens: list[str], i: int) -> str | None:
    """The name that stands before a parameter list: ``k(``, or ``k<16>(`` of an explicit specialization."""
    depth, i = 0, i - 1
    while i > 0 and (tokens[i] == ">" or depth):
        depth += (tokens[i] in _CLOSE or tokens[i] == ">") - (tokens[i] in _OPEN or tokens[i] == "<")
        i -= 1
    return tokens[i] if tokens[i].isidentifier() else None


def defined_kernels(text: str) -> tuple[str, ...]:
    """Names of the ``__global__`` functions that a source defines, each once, in order.

    Parameters
    ----------
    text : str
        Rendered C++ source. Untaken ``#if`` branches count too: the list is for a message.
    """
    tokens = _code_tokens(text)
    found = []
    for name, start in _declarators(tokens):
        end = _closing(tokens, start)
        if tokens[end + 1 : end + 2] in (["{"], ["noexcept"]):
            found.append(name)
    return tuple(dict.fromkeys(found))


def base_name(entry: str) -> str:
    """Plain name in a name expression: ``"ns::sgemm<16>"`` gives ``"sgemm"``; a cast in front is skipped."""
    depth = 0
    for i, char in enumerate(entry):
        if char == "<" and depth == 0:
            entry = entry[:i]
            break
        depth += (char == "(") - (char == ")")
    names = re.findall(r"[A-Za-z_]\w*", entry)
    return names[-1] if names else entry.strip()


def find_parameters(text: str, entry: str) -> tuple[str, ...] | None:
    """Names in the parameter list that a kernel writes itself.

    Parameters
    ----------
    text : str
        Rendered C++ source.
    entry : str
        The kernel's name, or a name expression.

    Returns
    -------
    tuple of str or None
        None when they cannot be read: no such kernel, a list made by a macro, an unnamed parameter, or two kernels of
        that name with different lists.
    """
    wanted = base_name(entry)
    tokens = _code_tokens(text)
    found: set[tuple[str, ...]] = set()
    for name, start in _declarators(tokens):
        if name != wanted:
            continue
        end = _closing(tokens, start)
        names = _names(tokens[start + 1 : end])
        if names is not None:
            found.add(names)
        elif tokens[end + 1 : end + 2] != [";"]:  # a declaration may leave its parameters unnamed, a definition not
            return None
    return found.pop() if len(found) == 1 else None


def _names(tokens: list[str]) -> tuple[str, ...] | None:
    if tokens in ([], ["void"]):
        return ()
    names = [_name(part) for part in _split(tokens)]
    return None if None in names or len(set(names)) < len(names) else tuple(n for n in names if n)


def _split(tokens: list[str]) -> Iterator[list[str]]:
    """Parts between the commas that stand outside brackets and template argument lists."""
    part: list[str] = []
    depth = angle = 0
    for i, token in enumerate(tokens):
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0 and token == "<" and i and tokens[i - 1].isidentifier() and "=" not in part:
            angle += 1
        elif depth == 0 and token == ">" and angle:
            angle -= 1
        if token == "," and depth == 0 and angle == 0:
            yield part
            part = []
        else:
            part.append(token)
    yield part


_QUALIFIERS = frozenset(("const", "volatile", "__restrict__", "__restrict", "__grid_constant__", "typename", "struct"))
_TYPE_WORDS = _QUALIFIERS | frozenset(
    ("unsigned", "signed", "char", "short", "int", "long", "float", "double", "bool", "void", "auto", "class", "enum")
)


def _name(tokens: list[str]) -> str | None:
    """The name that one parameter declares: ``float (&a)[4]``, ``const T* const __restrict__ a``, ``int n = 3``."""
    end = tokens.index("=") if "=" in tokens else len(tokens)
    tokens = tokens[:end]
    while tokens[:2] == ["[", "["]:  # [[maybe_unused]]
        tokens = tokens[_closing(tokens, 0) + 1 :]
    if tokens[-1:] == ["]"]:  # float a[][16]
        tokens = tokens[: tokens.index("[")]
    for i in range(len(tokens) - 2):  # a pointer or reference to an array or function keeps its name in parentheses
        if tokens[i] == "(" and tokens[i + 1] in ("*", "&"):
            inner = [t for t in tokens[i + 2 : _closing(tokens, i)] if t.isidentifier() and t not in _TYPE_WORDS]
            return inner[-1] if inner else None
    if len(tokens) < 2 or not tokens[-1].isidentifier() or tokens[-1] in _TYPE_WORDS or tokens[-2] == "::":
        return None
    return None if _QUALIFIERS.issuperset(tokens[:-1]) else tokens[-1]  # "const T" names nothing


# Enumerators and undefined functions only: a static constexpr member would reach the cubin. C++11, for any std.
_CHECKS = """
#line 1 "{file}"
namespace cuplate_check {{
template<class...> struct list {{}};
template<class R, class... P> __device__ list<P...> of(R (*)(P...));
template<class L> struct count;
template<class... P> struct count<list<P...>> {{ enum : unsigned {{ value = sizeof...(P) }}; }};
template<unsigned I, class L> struct parameter;
template<unsigned I> struct parameter<I, list<>> {{ using type = void; }};
template<class P, class... Q> struct parameter<0, list<P, Q...>> {{ using type = P; }};
template<unsigned I, class P, class... Q> struct parameter<I, list<P, Q...>> : parameter<I - 1, list<Q...>> {{}};
template<class A, class... B> struct any {{ enum {{ value = 0 }}; }};
template<class A, class... B> struct any<A, A, B...> {{ enum {{ value = 1 }}; }};
template<class A, class B, class... C> struct any<A, B, C...> : any<A, C...> {{}};
using kernel = decltype(of({entry}));
template<unsigned I, class... T> struct is {{
    enum {{ value = int(count<kernel>::value) != {count} || any<typename parameter<I, kernel>::type, T...>::value }};
}};
}}
static_assert(int(cuplate_check::count<cuplate_check::kernel>::value) == {count}, "{message}");
"""


_POINTERS = """namespace cuplate_check {
template<class T> struct points { enum { value = 0 }; };
template<class T> struct points<T*> { enum { value = 1 }; };
}"""


# NVRTC 12.9 and 13.0 know no __builtin_offsetof (13.5 does); all three know their front end's own name for it.
_OFFSET = """#ifdef __EDG__
#define cuplate_offset(type, member) __INTADDR__(&((type*)0)->member)
#else
#define cuplate_offset(type, member) __builtin_offsetof(type, member)
#endif"""


def _struct_checks(i: int, name: str, struct: Struct) -> list[str]:
    """That parameter `i` is a struct with these members at these bytes, whatever it is called."""
    kind = f"cuplate_struct_{i}"
    message = f'cuplate: parameter {i + 1} \\"{name}\\": a call passes {struct.itemsize} bytes, {struct}'
    lines = [
        f"using {kind} = cuplate_check::parameter<{i}, cuplate_check::kernel>::type;",
        f'static_assert(sizeof({kind}) == {struct.itemsize}, "{message}");',
    ]
    for field in struct.fields:
        message = f'cuplate: parameter {i + 1} \\"{name}\\": its member {field.declared} lies at byte {field.offset}'
        types = ", ".join(field.types)
        lines.append(
            f"static_assert(cuplate_check::any<decltype({kind}::{field.name}), {types}>::value && "
            f'cuplate_offset({kind}, {field.name}) == {field.offset}, "{message}");'
        )
    return lines


def parameter_checks(entry: str, slots: tuple[Slot, ...]) -> str:
    """C++ text that, appended to a source, makes the compiler check a kernel's own parameter list.

    One ``static_assert`` for the count and one for each parameter, on the type of ``&entry``, so ``using``, macros,
    templates and C++ linkage are seen as the compiler sees them. It changes no byte of the cubin.

    Parameters
    ----------
    entry : str
        The kernel's name or name expression.
    slots : tuple of Slot
        What a call passes, in order; each ``ctypes`` lists the types that are right there.
    """
    listed = ", ".join(slot.name for slot in slots) or "none"
    message = f"cuplate: a call passes {len(slots)} parameters: {listed}"
    address = entry if entry.lstrip().startswith("(") else f"&{entry}"
    lines = [_CHECKS.format(file=CHECKS_FILE, entry=address, count=len(slots), message=message).rstrip("\n")]
    if any(slot.kind == "null" for slot in slots):
        lines.append(_POINTERS)
    if any(slot.struct is not None for slot in slots):
        lines.append(_OFFSET)
    for i, slot in enumerate(slots):
        if slot.kind == "null":
            text = f'cuplate: parameter {i + 1} \\"{slot.name}\\": a call passes a null pointer'
            lines.append(f"static_assert(cuplate_check::points<cuplate_check::parameter<{i}, ")
            lines[-1] += f'cuplate_check::kernel>::type>::value, "{text}");'
            continue
        if slot.struct is not None:
            lines += _struct_checks(i, slot.name, slot.struct)
            continue
        if slot.kind == "map":  # by whatever name: the type is the kernel's own
            kind = f"cuplate_check::parameter<{i}, cuplate_check::kernel>::type"
            text = f'cuplate: parameter {i + 1} \\"{slot.name}\\": a call passes a tensor map, const __grid_constant__ '
            lines.append(f"static_assert(sizeof({kind}) == {MAP_BYTES} && alignof({kind}) == {MAP_ALIGNMENT}, ")
            lines[-1] += f'"{text}{slot.ctypes[0]}");'
            continue
        text = f'cuplate: parameter {i + 1} \\"{slot.name}\\": a call passes {slot.ctypes[0]}'
        types = ", ".join(slot.ctypes)
        lines.append(f'static_assert(cuplate_check::is<{i}, {types}>::value, "{text}");')
    return "\n".join(lines) + "\n"
