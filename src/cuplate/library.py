"""Template files on their way into memory: where a name is looked up, and one snapshot of every file that was read."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Callable, Iterator
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from threading import RLock

import jinja2

from cuplate.errors import TemplateError
from cuplate.hints import nearest_name

__all__ = ["Library", "is_file", "shipped_directory"]

_SUFFIXES = (".j2", ".jinja", ".cu", ".cuh")


def shipped_directory() -> Traversable | None:
    """Return the directory of the shipped templates, or None where there is none.

    An installed cuplate has them as the package ``cuplate.templates``; a source tree as ``templates/`` beside ``src/``.
    """
    try:
        return importlib.resources.files("cuplate.templates")
    except ModuleNotFoundError:
        source_tree = Path(__file__).resolve().parents[2] / "templates"
        return source_tree if source_tree.is_dir() else None


class Library(jinja2.BaseLoader):
    """The snapshot: each file is read once, and every render sees that text.

    A file is known by its *key*, its path below the directory where it was found: ``"epilogue/relu.cuh.j2"``.

    Parameters
    ----------
    roots : sequence of Traversable
        Directories where a name is looked up, after the directory of the file that asks.
    function : str
        For messages.
    """

    def __init__(self, roots: tuple[Traversable, ...], function: str) -> None:
        self.roots = roots
        self.function = function
        self.texts: dict[str, str] = {}
        self.files: dict[str, Traversable | None] = {}
        self._links: dict[tuple[str, str], str] = {}
        self._lock = RLock()

    def add(self, key: str, text: str, file: Traversable | None) -> str:
        """Take one text in, with the line ends that Jinja gives everything it renders."""
        with self._lock:
            self.files[key] = file
            self.texts[key] = _lines(text)
        return key

    def add_file(self, file: Traversable, root: Traversable | None) -> str:
        """Read a file, unless it has been read, and return its key."""
        with self._lock:
            for key in _keys(file, root):
                held = self.files.get(key)
                if held is None and key not in self.texts:
                    return self.add(key, self.read(file), file)
                if held is not None and str(held) == str(file):
                    return key
        raise AssertionError("unreachable: the whole path is a key of its own")

    def read(self, file: Traversable) -> str:
        """Return the text of a file; UTF-8, with or without a byte order mark."""
        try:
            return file.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TemplateError(
                f"the template is not UTF-8: byte {error.start}", function=self.function, template=str(file)
            ) from error
        except OSError as error:
            raise TemplateError(
                f"the template cannot be read: {error.strerror}", function=self.function, template=str(file)
            ) from error

    def places(self, reference: str, parent: str | None) -> Iterator[tuple[Traversable, Traversable]]:
        """Yield (file, root) where a reference may lie, in the order in which it is looked up."""
        asking = self.files.get(parent) if parent is not None else None
        if isinstance(asking, Path):
            yield _below(asking.parent, reference), self._root_of(asking)
        for root in self.roots:
            yield _below(root, reference), root

    def _root_of(self, file: Path) -> Traversable:
        for root in self.roots:
            if isinstance(root, Path) and file.is_relative_to(root):
                return root
        return file.parent

    def resolve(self, reference: str, parent: str) -> str:
        """Return the key that a template means by a name.

        Raises
        ------
        jinja2.TemplateNotFound
            The file is in none of the places.
        """
        with self._lock:
            key = self._links.get((parent, reference))
            if key is None:
                for file, root in self.places(reference, parent):
                    if is_file(file):
                        key = self._links[parent, reference] = self.add_file(file, root)
                        break
                else:
                    raise jinja2.TemplateNotFound(reference)
            return key

    def missing(
        self, reference: str, parent: str | None, line: int | None = None, hint: str | None = None
    ) -> TemplateError:
        """Return the error for a file that is nowhere: where it was looked for, and what lies there."""
        looked = [str(file) for file, _ in self.places(reference, parent)]
        return TemplateError(
            f"no template {reference!r}",
            function=self.function,
            template=f"{parent}:{line}" if parent and line else parent,
            looked_in="\n".join(dict.fromkeys(looked)) or "nowhere: there is no directory to look in",
            try_=hint or self._near(reference),
        )

    def _near(self, reference: str) -> str | None:
        """Return the present name most like the given one. Every name ends alike, so the ends do not count."""
        stems = {name.partition(".")[0]: name for name in self._present()}
        near = nearest_name(reference.partition(".")[0], stems)
        return stems[near] if near else None

    def _present(self) -> list[str]:
        """Return the names of template files below the roots; two levels, for a root may be a home directory."""
        found = []
        for root in self.roots:
            for entry in _entries(root):
                inner = [f"{entry.name}/{file.name}" for file in _entries(entry)] if entry.is_dir() else [entry.name]
                found += [name for name in inner if name.endswith(_SUFFIXES)]
        return found

    def is_current(self) -> bool:
        """Return whether every file still reads as it did."""
        try:
            return all(
                file is None or _lines(self.read(file)) == self.texts[key] for key, file in list(self.files.items())
            )
        except TemplateError:
            return False

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        """Return the snapshot's text; Jinja's own interface."""
        try:
            return self.texts[template], template, lambda: True
        except KeyError:
            raise jinja2.TemplateNotFound(template) from None


def is_file(file: Traversable) -> bool:
    """Return whether a file is there and can be looked at; a name too long, or a closed folder, holds none."""
    try:
        return file.is_file()
    except OSError:
        return False


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _entries(directory: Traversable) -> list[Traversable]:
    try:
        return [entry for entry in directory.iterdir() if not entry.name.startswith(".")][:1000]
    except OSError:
        return []


def _below(root: Traversable, reference: str) -> Traversable:
    if isinstance(root, Path):
        return Path(os.path.normpath(root / reference))
    return root.joinpath(*PurePosixPath(reference).parts)


def _keys(file: Traversable, root: Traversable | None) -> Iterator[str]:
    """Yield names for a file, the shortest first; a longer one serves when two roots hold files of one name."""
    if not isinstance(file, Path):
        yield file.name
        yield str(file)
        return
    if isinstance(root, Path) and file.is_relative_to(root):
        yield file.relative_to(root).as_posix()
    for count in range(1, len(file.parts)):
        yield "/".join(file.parts[-count:])
    yield file.as_posix()
