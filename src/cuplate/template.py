"""Finds and reads a template, and knows which names and facts it uses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2 import meta, nodes

from cuplate.dialect import GLOBALS, RESERVED_GLOBALS, Dialect, parse
from cuplate.errors import TemplateError
from cuplate.hints import nearest_name
from cuplate.library import Library, is_file, shipped_directory
from cuplate.names import Usage, references, usage
from cuplate.specialization import Fact

__all__ = [
    "ATTRIBUTES",
    "BUILTINS",
    "RESERVED_GLOBALS",
    "Header",
    "HeaderEntry",
    "Inline",
    "Template",
    "check_names",
    "names_in",
    "read",
    "shipped_directory",
]

BUILTINS = frozenset({"kernel", "args", "index_t", "block", "arch"})
"""What every template can use besides the names of its function."""

ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "array": frozenset(["name", "ctype", "dtype", "itemsize", "ndim", "aligned", "order", "stride"]),
    "scalar": frozenset(["name", "ctype", "dtype", "definition"]),
    "axis": frozenset(["name", "tile_index"]),
    "block": frozenset(["x", "y", "z", "size"]),
}
"""Attributes of each kind of name."""


@dataclass(frozen=True, slots=True)
class Inline:
    """A template written in the program: ``Inline("...")``.

    Attributes
    ----------
    text : str
        Jinja and CUDA C++; ``include`` finds files beside the module that defines the function.
    """

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """One name in the header comment: its description and its line in the file."""

    name: str
    description: str
    line: int


@dataclass(frozen=True, slots=True)
class Header:
    """The comment that may open a template; None for a section that it lacks.

    Attributes
    ----------
    kernel, launch, requires, source : str or None
        Prose.
    parameters, arguments : tuple of HeaderEntry or None
        Names with their descriptions.
    lines : mapping of str to int
        Line of each section.
    """

    kernel: str | None
    parameters: tuple[HeaderEntry, ...] | None
    arguments: tuple[HeaderEntry, ...] | None
    launch: str | None
    requires: str | None
    source: str | None
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Template:
    """A template as it was read: text, and what the text uses.

    Attributes
    ----------
    name : str
        Key in `sources`: path below the directory where it was found, ``"epilogue/relu.cuh.j2"``; ``"<inline>"``.
    path : Path or None
        The file; None for `Inline` and for templates inside an archive.
    directory : Path or None
        Where the compiler looks for ``#include "x"`` first.
    sources : mapping of str to str
        Text of this template and of all that it includes, imports or extends, read once; files that are named only at
        render time join at their first use.
    digest : str
        SHA-256 of the sources that are named statically, hexadecimal.
    names : mapping of str to str
        Names that nothing in the template defines, each with ``"file:line"`` of its first use.
    maybe : mapping of str to str
        Names that are defined on some paths only.
    isolated : mapping of str to str
        Undefined names in files imported without context.
    facts : frozenset of Fact
        Facts that are read of arrays.
    whole : frozenset of str
        Names whose use does not show which facts are read: passed to a macro, set to another name, computed axis.
    attributes : mapping of str to mapping of str to str
        Attributes that are read of each name, with ``"file:line"``.
    reads_block_index : bool
        The text reads ``blockIdx`` or ``gridDim``, or includes a header that may, outside Jinja comments.
    writes_args : bool
        ``args`` is used.
    header : Header or None
        The opening comment, if it has the form of one.
    dynamic : bool
        Some included name is computed, so that `names` and `facts` may be incomplete.
    """

    name: str
    path: Path | None
    directory: Path | None
    sources: Mapping[str, str]
    digest: str
    names: Mapping[str, str]
    maybe: Mapping[str, str]
    isolated: Mapping[str, str]
    facts: frozenset[Fact]
    whole: frozenset[str]
    attributes: Mapping[str, Mapping[str, str]]
    reads_block_index: bool
    writes_args: bool
    header: Header | None
    dynamic: bool
    _library: Library = field(repr=False, compare=False)
    _compiled: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    _lock: RLock = field(default_factory=RLock, repr=False, compare=False)

    def __hash__(self) -> int:
        return hash((self.name, self.digest))

    @property
    def paths(self) -> Mapping[str, Path | None]:
        """File of each source; None for text that is no file."""
        return {key: file if isinstance(file, Path) else None for key, file in self._library.files.items()}

    def is_current(self) -> bool:
        """Return whether all files still read as they did; reads them all."""
        return self._library.is_current()

    def compiled(self, extension: type | None = None) -> jinja2.Template:
        """Return Jinja's compiled template, made once; with an extension, another one made once.

        Raises
        ------
        TemplateError
            What Jinja notices only now: a block defined twice, and the like.
        """
        made = self._compiled.get(extension)
        if made is None:
            with self._lock:
                made = self._compiled.get(extension)
                if made is None:
                    made = self._compiled[extension] = self._compile(extension)
        return made

    def expression(self, text: str) -> jinja2.Template:
        """Return a small text, such as the name of the kernel, compiled in the same dialect."""
        made = self._compiled.get(text)
        if made is None:
            made = self._compiled[text] = self.compiled().environment.from_string(text)
        return made

    def _compile(self, extension: type | None) -> jinja2.Template:
        library = self._library
        environment = Dialect(library, library.resolve, [extension] if extension else [])
        try:
            return environment.get_template(self.name)
        except jinja2.TemplateSyntaxError as error:
            where = f"{error.name or self.name}:{error.lineno}"
            raise TemplateError(error.message or "", function=library.function, template=where) from error


def read(reference: str | Path | Inline, *, anchor: Path | None, function: str) -> Template:
    """Find and read a template, and all that it includes.

    Parameters
    ----------
    reference : str, Path or Inline
        A name is looked up beside the module that defines the function, then among the shipped templates. A relative
        Path is looked up beside the module, then in the working directory.
    anchor : Path or None
        Directory of the module that defines the function; None where there is no file.
    function : str
        Name of the function, for messages.

    Returns
    -------
    Template
        A snapshot: later edits of the files do not reach it (`Template.is_current` tells).

    Raises
    ------
    TemplateError
        A file is missing, the syntax is wrong, or braces of C++ or PTX were read as Jinja's.
    """
    template = _read_once(reference, anchor, function)
    for _ in range(2):
        # An editor may have saved one of the files between two reads: half old, half new is refused.
        if template.is_current():
            break
        template = _read_once(reference, anchor, function)
    return template


def _read_once(reference: str | Path | Inline, anchor: Path | None, function: str) -> Template:
    library, key = _find(reference, anchor, function)
    environment = Dialect(library, library.resolve)
    trees: dict[str, nodes.Template] = {}
    dynamic = _read_references(library, environment, key, trees)
    used = usage(key, trees.__getitem__, library.resolve, environment, function)
    file = library.files[key]
    path = file if isinstance(file, Path) else None
    return Template(
        name=key,
        path=path,
        directory=path.parent if path else anchor,
        sources=MappingProxyType(library.texts),
        digest=_digest(library.texts),
        **_frozen(used),
        reads_block_index=any(READS_GRID.search(text) for key in trees for text in _code(environment, library, key)),
        writes_args="args" in used.names or "args" in used.maybe,
        header=_header(library.texts[key]),
        dynamic=dynamic,
        _library=library,
    )


def _frozen(used: Usage) -> dict[str, Any]:
    return {
        "names": MappingProxyType(used.names),
        "maybe": MappingProxyType(used.maybe),
        "isolated": MappingProxyType(used.isolated),
        "facts": frozenset(used.facts),
        "whole": frozenset(used.whole),
        "attributes": MappingProxyType({name: MappingProxyType(found) for name, found in used.attributes.items()}),
    }


def _find(reference: str | Path | Inline, anchor: Path | None, function: str) -> tuple[Library, str]:
    shipped = shipped_directory()
    roots = tuple(root for root in (anchor.absolute() if anchor else None, shipped) if root is not None)
    library = Library(roots, function)
    if isinstance(reference, Inline):
        if not isinstance(reference.text, str):
            raise TemplateError("Inline holds a text", function=function, given=type(reference.text).__name__)
        # The anchor is where an inline template would lie, so that it finds its includes there.
        return library, library.add("<inline>", reference.text, None)
    if isinstance(reference, Path):
        return library, _find_path(library, reference, anchor)
    if not isinstance(reference, str):
        raise TemplateError(
            "a template is a name, a Path or an Inline", function=function, given=type(reference).__name__
        )
    for file, root in library.places(reference, None):
        if is_file(file):
            return library, library.add_file(file, root)
    # Code without a file (standard input, exec, a notebook) has no folder beside it; the current one is not guessed.
    hint = None if anchor else f'Path("{reference}") from pathlib, below the current folder: this code is in no file'
    raise library.missing(reference, None, hint=hint)


def _find_path(library: Library, reference: Path, anchor: Path | None) -> str:
    bases: list[Path] = [base for base in (anchor, Path.cwd()) if base is not None]
    candidates = [(base / reference).absolute() for base in bases]
    for base, file in zip(bases, candidates, strict=True):
        if is_file(file):
            root: Traversable = file.parent if reference.is_absolute() else base.absolute()
            library.roots = (root, *(other for other in library.roots if other != root))
            return library.add_file(file, root)
    beside = [entry.name for file in candidates if file.parent.is_dir() for entry in file.parent.iterdir()]
    raise TemplateError(
        f"no template {str(reference)!r}",
        function=library.function,
        looked_in="\n".join(dict.fromkeys(map(str, candidates))),
        try_=nearest_name(reference.name, beside),
    )


def _read_references(library: Library, environment: Dialect, key: str, trees: dict[str, nodes.Template]) -> bool:
    """Read and parse all that is named statically; return whether a name is computed."""
    dynamic = False
    waiting = [key]
    while waiting:
        key = waiting.pop()
        if key in trees:
            continue
        tree = trees[key] = parse(environment, library.texts[key], key, library.function)
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            assert isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends))
            named = references(node)
            dynamic = dynamic or named is None
            waiting += _resolved(library, node, named or [], key)
    return dynamic


def _resolved(
    library: Library,
    node: nodes.Include | nodes.Import | nodes.FromImport | nodes.Extends,
    named: list[str],
    key: str,
) -> Iterator[str]:
    found = 0
    any_will_do = getattr(node, "ignore_missing", False) or isinstance(node.template, (nodes.List, nodes.Tuple))
    for reference in named:
        try:
            yield library.resolve(reference, key)
            found += 1
        except jinja2.TemplateNotFound:
            if not any_will_do:
                raise library.missing(reference, key, node.lineno) from None
    if named and not found and not getattr(node, "ignore_missing", False):
        raise library.missing(named[0], key, node.lineno)


def _digest(texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for key in sorted(texts):
        for part in (key, texts[key]):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


# What a folded grid would change the meaning of. A header may read it too, unless it is known to define types only.
READS_GRID = re.compile(r"blockIdx|gridDim|%n?ctaid|^\s*#\s*include\s*(?!<cuda_(?:fp16|bf16|fp8)\.h>)", re.MULTILINE)


def _code(environment: Dialect, library: Library, key: str) -> Iterator[str]:
    for _, kind, value in environment.lex(library.texts[key], key):
        if "comment" not in kind:
            yield value


def names_in(text: str, *, function: str) -> frozenset[str]:
    """Return the names that a small Jinja text uses, such as ``entry="sgemm<{{ tile }}>"``.

    Raises
    ------
    TemplateError
        The text is not Jinja.
    """
    if "{" not in text:
        return frozenset()
    library = Library((), function)
    tree = parse(Dialect(library, library.resolve), text, "entry", function)
    return frozenset(meta.find_undeclared_variables(tree)) - frozenset(GLOBALS)


# The header comment

_SECTIONS = ("kernel", "parameters", "arguments", "launch", "requires", "source")
_SECTION = re.compile(rf"({'|'.join(_SECTIONS)})(?:\s{{2,}}(?=\S)|\s*$)")
_ENTRY = re.compile(r"([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)(?:\s+|$)")


def _header(text: str) -> Header | None:
    """Return the opening comment if its lines start with the words of a header."""
    opening = re.match(r"\s*\{#[-+]?(.*?)[-+]?#\}", text, re.DOTALL)
    if opening is None:
        return None
    first = text[: opening.start(1)].count("\n") + 1
    sections = _sections(opening[1].split("\n"), first)
    if not sections.keys() & {"kernel", "parameters", "arguments"}:
        return None

    def prose(name: str) -> str | None:
        return "\n".join(line.strip() for _, line in sections[name]) if name in sections else None

    def entries(name: str) -> tuple[HeaderEntry, ...] | None:
        return tuple(_entries(sections[name])) if name in sections else None

    return Header(
        prose("kernel"), entries("parameters"), entries("arguments"), prose("launch"), prose("requires"),
        prose("source"), {name: lines[0][0] for name, lines in sections.items()},
    )  # fmt: skip


def _sections(lines: list[str], first: int) -> dict[str, list[tuple[int, str]]]:
    """Return the lines of each section as (number, text); the section's word becomes spaces."""
    sections: dict[str, list[tuple[int, str]]] = {}
    current: list[tuple[int, str]] | None = None
    for number, line in enumerate(lines, first):
        match = _SECTION.match(line)
        if match and match[1] not in sections:
            current = sections[match[1]] = []
            line = " " * match.end() + line[match.end() :]
        if current is not None and (line.strip() or not current):
            current.append((number, line))
    return sections


def _entries(lines: list[tuple[int, str]]) -> Iterator[HeaderEntry]:
    """Yield the names; a line that is indented more than the first continues the one above."""
    margin = min((len(line) - len(line.lstrip()) for _, line in lines if line.strip()), default=0)
    for number, line in lines:
        match = _ENTRY.match(line[margin:]) if line.strip() else None
        if match and line[margin:].strip() not in ("none", "None"):
            description = line[margin + match.end() :].strip()
            for name in re.split(r"\s*,\s*", match[1]):
                yield HeaderEntry(name, description, number)


# Names, in both directions


def check_names(
    template: Template,
    *,
    known: Collection[str],
    parameters: Collection[str],
    used_elsewhere: Collection[str] = (),
    function: str,
    arguments: Collection[str] | None = None,
) -> None:
    """Hold the names of a template against those of its function.

    Parameters
    ----------
    template : Template
        What was read.
    known : mapping of str to str, or collection of str
        Names of arrays, scalars, axes and parameters. A mapping says which a name is (``"array"``, ``"scalar"``,
        ``"axis"``, ``"parameter"``), and then attributes are checked too.
    parameters : collection of str
        Those of them that are compile-time parameters, and must be used.
    used_elsewhere : collection of str
        Parameters that ``block=``, ``grid=``, ``require=``, ``entry=`` and so on use.
    function : str
        For messages.
    arguments : collection of str, optional
        Names that the header's ``arguments`` must list, if it has that section; axes may be listed besides.

    Raises
    ------
    TemplateError
        An unknown name, an unused parameter, an unknown attribute, or a header comment that is out of date.
    """
    everything = {*known, *parameters, *BUILTINS}
    _check_unknown(template, everything, function)
    _check_unused(template, parameters, used_elsewhere, function)
    if isinstance(known, Mapping):
        _check_attributes(template, {**known, "block": "block"}, function)
    if template.header is not None:
        _check_header(template, template.header, everything - BUILTINS, parameters, arguments, function)


def _check_unknown(template: Template, known: Collection[str], function: str) -> None:
    for name, where in template.names.items():
        if name not in known:
            raise TemplateError(
                f"the template uses `{name}`, which is no parameter, array, scalar or axis",
                function=function, template=where, allowed=", ".join(sorted(known)), try_=nearest_name(name, known),
            )  # fmt: skip
    for name, where in template.isolated.items():
        hint = f"a macro argument for it, or `with context` at the import: then `{name}` is seen"
        raise TemplateError(
            f"`{name}` is unknown in a file that is imported without context",
            function=function, template=where, try_=hint if name in known else nearest_name(name, known),
        )  # fmt: skip


def _check_unused(
    template: Template, parameters: Collection[str], used_elsewhere: Collection[str], function: str
) -> None:
    if template.dynamic:
        return  # a file that is named at render time may use it
    used = {*template.names, *template.maybe, *used_elsewhere}
    for name in parameters:
        if name not in used:
            raise TemplateError(
                f"the parameter `{name}` is used neither by the template nor by the launch configuration",
                function=function,
                template=template.name,
                allowed="used by the template: " + (", ".join(sorted(template.names)) or "nothing"),
                try_=nearest_name(name, used - set(parameters)),
            )


def _check_attributes(template: Template, kinds: Mapping[str, str], function: str) -> None:
    for name, attributes in template.attributes.items():
        allowed = ATTRIBUTES.get(kinds.get(name, ""))
        for attribute, where in attributes.items():
            if allowed is not None and attribute not in allowed:
                raise TemplateError(
                    f"`{name}.{attribute}` does not exist: `{name}` is {_article(kinds[name])}",
                    function=function, template=where, allowed=", ".join(sorted(allowed)),
                    try_=nearest_name(attribute, allowed),
                )  # fmt: skip


def _article(kind: str) -> str:
    if kind == "block":
        return "the block of threads"
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _check_header(
    template: Template,
    header: Header,
    known: Collection[str],
    parameters: Collection[str],
    arguments: Collection[str] | None,
    function: str,
) -> None:
    sections = (
        ("parameters", header.parameters, set(parameters), set(parameters)),
        ("arguments", header.arguments, set(known) - set(parameters), set(arguments or ())),
    )
    for section, entries, allowed, demanded in sections:
        if entries is None:
            continue
        for entry in entries:
            if entry.name not in allowed:
                raise TemplateError(
                    f"the header comment lists `{entry.name}` under {section}, which the signature does not have",
                    function=function, template=f"{template.name}:{entry.line}",
                    allowed=", ".join(sorted(allowed)) or "none", try_=nearest_name(entry.name, allowed),
                )  # fmt: skip
        absent = sorted(demanded - {entry.name for entry in entries})
        if absent:
            raise TemplateError(
                f"the header comment lacks `{absent[0]}` under {section}",
                function=function, template=f"{template.name}:{header.lines[section]}", try_=f"{absent[0]}  ...",
            )  # fmt: skip
