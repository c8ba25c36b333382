"""Settings that stand with a project: the table ``[tool.cuplate]`` of its pyproject.toml. Found here, typed elsewhere.

Looked for once a process, from the working directory upwards, when the first setting is asked for. The nearest file
that has the table is taken; one without it is passed over, as other tools do. ``CUPLATE_CONFIG`` names a file instead,
or is ``off``. What is found is kept: a later ``chdir`` changes nothing.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any

from cuplate.errors import SettingError

__all__ = ["FILE", "Table", "forget", "table"]

FILE = "pyproject.toml"
_VARIABLE = "CUPLATE_CONFIG"
_LARGEST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Table:
    """What one file says, untyped.

    Attributes
    ----------
    path : str
        Of the file, absolute.
    values : dict of str to object
        The table's keys.
    text : str
        The whole file.
    """

    path: str
    values: dict[str, Any]
    text: str = field(repr=False)

    def place(self, key: str) -> str:
        """``path:line`` of a key; the path alone when the line cannot be told.

        Parameters
        ----------
        key : str
            Of the table.
        """
        inside = False
        name = rf"""(?:["']?{re.escape(key)}["']?)"""
        written = re.compile(rf"\s*(?:(?:tool\s*\.\s*)?cuplate\s*\.\s*)?{name}\s*=|.*\bcuplate\s*=\s*\{{.*\b{name}\s*=")
        for number, line in enumerate(self.text.splitlines(), 1):
            header = re.match(r"\s*\[+\s*([^\]]*?)\s*\]", line)
            if header is not None:
                parts = [part.strip().strip("\"'") for part in header[1].split(".")]
                inside = parts in (["tool", "cuplate"], ["tool"])
            elif written.match(line) and (inside or "cuplate" in line):
                return f"{self.path}:{number}"
        return self.path


_found: dict[str, Table | None] = {}


def table(named: str | None = None) -> Table | None:
    """The table that holds for this process, or None.

    Parameters
    ----------
    named : str, optional
        What ``CUPLATE_CONFIG`` says, ``""`` where it is not set, for a caller that has read it. Default: read here.

    Returns
    -------
    Table or None
        Read at the first call; the same from then on, as long as ``CUPLATE_CONFIG`` is the same.

    Raises
    ------
    SettingError
        The file is not TOML, its ``tool.cuplate`` is no table, or a file named by ``CUPLATE_CONFIG`` cannot be read.
    """
    if named is None:
        named = os.environ.get(_VARIABLE, "")
    if named not in _found:
        _found[named] = _named(named) if named else _nearest()
    return _found[named]


def forget() -> None:
    """Look again at the next question."""
    _found.clear()


def _named(named: str) -> Table | None:
    if named.strip().lower() == "off":
        return None
    try:
        found = _read(os.path.abspath(named))
    except OSError as error:
        raise SettingError(
            f"{_VARIABLE} names a file that cannot be read.",
            given=named,
            allowed=f"a {FILE}, or off",
            reason=error.strerror,
        ) from None
    if found is None:
        raise SettingError(f"{_VARIABLE} names a file without [tool.cuplate].", given=named)
    return found


def _nearest() -> Table | None:
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        return None
    while True:
        try:
            found = _read(os.path.join(folder, FILE))
        except OSError:  # none, or not ours to read: nobody has named it
            found = None
        parent = os.path.dirname(folder)
        if found is not None or parent == folder:
            return found
        folder = parent


def _read(path: str) -> Table | None:
    """The table of one file; None when it has none."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_BYTES:
        return None
    with open(path, "rb") as file:
        data = file.read(_LARGEST_BYTES)
    if b"cuplate" not in data:  # before the parser is imported, and so that others' mistakes stay theirs
        return None
    import tomllib

    try:
        text = data.decode("utf-8")
        tool = tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if not re.search(rb"tool\s*\.\s*[\"']?cuplate|^\s*[\"']?cuplate[\"']?\s*[.=]", data, re.M):
            return None
        raise SettingError(f"{FILE} cannot be read.", file=path, reason=str(error)) from None
    found = tool.get("cuplate") if isinstance(tool, dict) else None
    if found is None:
        return None
    if not isinstance(found, dict):
        raise SettingError("tool.cuplate is no table.", file=path, given=repr(found), try_="[tool.cuplate]")
    return Table(path, found, text)
