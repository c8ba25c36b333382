"""What kernels took when it was last recorded, and what has grown since: registers, spills, stack, shared memory.

The record is a JSON file to be kept with the code. One kernel on one architecture is one line of it, so that a diff
reads like a table.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuplate.arguments import ArraySpec
from cuplate.errors import ArgumentError, CuplateError, SettingError
from cuplate.report import Report
from cuplate.testing import reports

if TYPE_CHECKING:
    from cuplate.cubin import Resources

__all__ = [
    "FORMAT",
    "Baseline",
    "BaselineError",
    "Change",
    "Figures",
    "GrowthError",
    "Record",
    "Saved",
    "summary",
    "table",
]

FORMAT = "cuplate resources 1"
"""First value of a record file; the number is raised when its form changes."""

__tracebackhide__ = True  # pytest shows the line that asked, and the message

_REWRITE = "restore it from version control, or delete it and run pytest --cuplate-update"
_ALLOWED = re.compile(r"(\d{1,9})(%?)")


class BaselineError(CuplateError, AssertionError):
    """The record file cannot be used, or does not hold a kernel."""


class GrowthError(CuplateError, AssertionError):
    """A kernel takes more than was recorded.

    Attributes
    ----------
    changes : tuple of Change
        What grew.
    """


@dataclass(frozen=True, slots=True)
class Figures:
    """What one kernel takes on one architecture; None where the compiler does not say.

    Attributes
    ----------
    registers : int or None
        A thread.
    spill_bytes, stack_bytes : int or None
        A thread; spills are stores and loads together.
    shared_bytes : int or None
        A block, static.
    """

    registers: int | None
    spill_bytes: int | None
    stack_bytes: int | None
    shared_bytes: int | None


_FIGURES = tuple(f.name for f in fields(Figures))


@dataclass(frozen=True, slots=True)
class Record:
    """The figures of one kernel on one architecture, and the compiler's build that they were first seen with."""

    figures: Figures
    build: str


Name = tuple[str, str]
"""Kernel and target: ``("kernels.saxpy(x=float32, block_x=256)", "sm_90, nvrtc 13")``."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure that is not what was recorded.

    Attributes
    ----------
    kernel, target : str
        As in `Name`.
    what : str
        Field of `Figures`.
    was, now : int
    allowed : int
        The largest that passes.
    """

    kernel: str
    target: str
    what: str
    was: int
    now: int
    allowed: int


@dataclass(frozen=True, slots=True)
class Saved:
    """What an update did: kernels new to the record, kernels that were in it, and what of these is different now."""

    new: int
    known: int
    changes: tuple[Change, ...]


class Baseline:
    """A record file, and the kernels that are held against it.

    Parameters
    ----------
    path : Path
        Need not exist.
    update : bool
        True records what is found instead of comparing; `save` writes it.
    arch : sequence of str
        Architectures, for a check that names none.
    allow : mapping of str to int or str, optional
        How much each figure may grow, for a check that does not say.

    Attributes
    ----------
    made : dict of Name to Record
        What an update has found.
    smaller : list of Change
        What took less than recorded.
    """

    def __init__(
        self,
        path: Path,
        *,
        update: bool = False,
        arch: Sequence[str] = (),
        allow: Mapping[str, int | str] | None = None,
    ) -> None:
        self.path, self.update = path, update
        self.made: dict[Name, Record] = {}
        self.smaller: list[Change] = []
        self._arch, self._allow = tuple(arch), _read_allowed(allow or {})
        self._recorded: dict[Name, Record] | None = None
        self._keys: dict[Name, str] = {}

    def check(
        self,
        f: Any,
        /,
        *args: Any,
        arch: str | Iterable[str] | None = None,
        allow: Mapping[str, int | str] | None = None,
        **parameters: Any,
    ) -> dict[str, Resources]:
        """Compile a specialized function for each architecture, and compare with the record.

        Parameters
        ----------
        f : specialized function
        *args, **parameters
            As for ``f.compile``: arrays may be left out, or be `cuplate.ArraySpec`.
        arch : str or iterable of str, optional
            ``["sm_80", "sm_90"]``.
        allow : mapping of str to int or str, optional
            How much a figure may grow: ``{"registers": 4, "shared_bytes": "10%"}``.

        Returns
        -------
        dict of str to Resources
            By architecture.

        Raises
        ------
        GrowthError
            A figure is larger than recorded and allowed.
        BaselineError
            The kernel is not recorded, or the file cannot be used.
        CompileError, ToolchainError
            With a note that says for which architecture.
        """
        allowed = {**self._allow, **_read_allowed(allow or {})}
        if arch is None and not self._arch:
            raise ArgumentError(
                "arch= is needed: for what is the kernel to be compiled?",
                function=f.__name__,
                try_='arch=["sm_80", "sm_90"]; or for every check, in pytest\'s settings, cuplate_arch = ["sm_80"]',
            )
        found = reports(f, *args, arch=self._arch if arch is None else arch, **parameters)
        records = {self._name(f, args, parameters, report): _record(report) for report in found.values()}
        if self.update:
            self.made |= records
        else:
            self._compare(f.__name__, records, allowed)
        return {one: report.cubin.resources for one, report in found.items()}

    def save(self) -> Saved:
        """Write what an update has found into the file; what it did not look at stays as it is.

        Raises
        ------
        BaselineError
            The file that is there cannot be read; it is left alone.
        OSError
        """
        stored = read(self.path)
        known = {name: record for name, record in self.made.items() if name in stored}
        differ = {name: record for name, record in self.made.items() if _differs(record, stored.get(name))}
        if differ:  # else not even a build is written: the diff shows kernels that changed, not compilers that did
            write(self.path, stored | differ)
        changes = [c for name, record in known.items() for c in _changes(name, stored[name], record, {})]
        return Saved(len(self.made) - len(known), len(known), tuple(changes))

    def export(self) -> dict[str, Any]:
        """What this process has found, as plain values for `absorb` in another one."""
        made = [[*name, list(astuple(r.figures)), r.build] for name, r in self.made.items()]
        return {"made": made, "smaller": [list(astuple(change)) for change in self.smaller]}

    def absorb(self, exported: Mapping[str, Any]) -> None:
        """Add what another process has found."""
        for kernel, target, figures, build in exported["made"]:
            self.made[kernel, target] = Record(Figures(*figures), build)
        self.smaller += [Change(*values) for values in exported["smaller"]]

    def _name(self, f: Any, args: tuple[Any, ...], parameters: Mapping[str, Any], report: Report) -> Name:
        """The kernel's name in the record; without the compiler's minor version, which is no other kernel."""
        call = report.called_as.removeprefix(report.function)
        # A call in one line does not tell layouts apart, and a template may.
        names = [argument.name for argument in f.inspect.__self__.signature.arguments]
        specs = {n: s for n, s in {**dict(zip(names, args, strict=False)), **parameters}.items() if _is_special(s)}
        layouts = [f"{n} {_layout(spec)}" for n, spec in specs.items()]
        compiler, build = _compiler(report)
        kernel = ", ".join([f"{f.__module__}.{f.__qualname__}{call}", *layouts])
        name = kernel, f"{report.arch}, {compiler} {build.partition('.')[0]}"
        if self._keys.setdefault(name, report.key) != report.key:
            raise BaselineError(
                "two kernels have one name in the record.",
                function=report.function,
                called_as=kernel,
                try_="another name for one of the functions",
            )
        return name

    def _compare(self, function: str, records: Mapping[Name, Record], allowed: Mapping[str, str]) -> None:
        if self._recorded is None:
            self._recorded = read(self.path)
        recorded = {name: self._recorded[name] for name in records if name in self._recorded}
        changes = [c for name, was in recorded.items() for c in _changes(name, was, records[name], allowed)]
        self.smaller += [c for c in changes if c.now < c.was]
        grown = tuple(c for c in changes if c.now > c.allowed)
        (kernel, _), *_ = records
        if grown:
            raise GrowthError(
                f"the kernel takes more than {self.path.name} records.",
                function=function,
                given=table(grown),
                called_as=kernel,
                try_="pytest --cuplate-update, if it is meant to",
                compiler=_told_builds([(recorded[c.kernel, c.target], records[c.kernel, c.target]) for c in grown]),
                _changes=grown,
            )
        missing = [target for kernel, target in records if (kernel, target) not in recorded]
        if missing:
            raise BaselineError(
                f"{self.path.name} does not record this kernel.",
                function=function,
                given="\n".join(missing),
                allowed="\n".join(t for k, t in self._recorded if k == kernel) or None,
                called_as=kernel,
                try_="pytest --cuplate-update, and keep the file with the code",
            )


def _is_special(value: Any) -> bool:
    """Whether a value describes an array of another layout than a fresh one."""
    return isinstance(value, ArraySpec) and (value.strides is not None or value.alignment != ArraySpec().alignment)


def _layout(spec: ArraySpec) -> str:
    strides = "" if spec.strides is None else f"strides {list(spec.strides)} "
    return f"{strides}aligned to {spec.alignment}"


# figures --------------------------------------------------------------------------------------------------------------


def _record(report: Report) -> Record:
    r = report.cubin.resources
    spills = (r.spill_store_bytes, r.spill_load_bytes)
    spilled = None if None in spills else sum(n for n in spills if n is not None)
    return Record(Figures(r.registers, spilled, r.stack_bytes, r.static_shared_bytes), _compiler(report)[1])


def _compiler(report: Report) -> tuple[str, str]:
    """``("nvrtc", "13.5.37")``."""
    name, _, build = report.cubin.toolchain.partition(" ")
    return name, build


def _changes(name: Name, was: Record, now: Record, allowed: Mapping[str, str]) -> list[Change]:
    """The figures that differ; one that either side does not know is not compared."""
    pairs = [(what, getattr(was.figures, what), getattr(now.figures, what)) for what in _FIGURES]
    known = [(what, a, b) for what, a, b in pairs if a is not None and b is not None and a != b]
    return [Change(*name, what, a, b, a + _slack(a, allowed.get(what, "0"))) for what, a, b in known]


def _differs(record: Record, stored: Record | None) -> bool:
    return stored is None or stored.figures != record.figures


def _slack(was: int, allowed: str) -> int:
    return was * int(allowed[:-1]) // 100 if allowed.endswith("%") else int(allowed)


def _read_allowed(allow: Mapping[str, int | str]) -> dict[str, str]:
    for name, value in allow.items():
        if name not in _FIGURES or not _ALLOWED.fullmatch(str(value)):
            raise SettingError(
                "allowed growth is a figure and a number.",
                given=f"{name}={value}",
                allowed=f"{', '.join(_FIGURES)}; a number, or a percentage such as 10%",
                try_="registers=4",
            )
    return {name: str(value) for name, value in allow.items()}


def _told_builds(pairs: Iterable[tuple[Record, Record]]) -> str:
    """The compiler; and the one recorded with where it was another, for then it may be the compiler that changed."""
    told = {now.build if was.build == now.build else f"{now.build}, recorded with {was.build}" for was, now in pairs}
    return "\n".join(sorted(told))


def table(changes: Sequence[Change], *, kernels: bool = False) -> str:
    """Changes below each other.

    Parameters
    ----------
    changes : sequence of Change
    kernels : bool
        True names the kernel in each line, instead of what was allowed.
    """
    rows = [("target", "figure", "was", "now", "kernel" if kernels else "allowed")]
    rows += [(c.target, c.what, str(c.was), str(c.now), c.kernel if kernels else str(c.allowed)) for c in changes]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = []
    for row in rows:
        names = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        numbers = [text.rjust(width) for text, width in zip(row[2:4], widths[2:4], strict=True)]
        lines.append("  ".join([*names, *numbers, row[4] if kernels else row[4].rjust(widths[4])]))
    return "\n".join(lines)


def summary(baseline: Baseline, saved: Saved | Exception | None) -> tuple[str, bool]:
    """What is said at the end of a session, and whether it is a failure.

    Parameters
    ----------
    baseline : Baseline
    saved : Saved, Exception or None
        What `Baseline.save` did or raised; None where nothing was to be saved.
    """
    name = baseline.path.name
    if isinstance(saved, Exception):
        return f"{name} was not written: {saved}", True
    if saved is None:
        return f"less than {name} records, pytest --cuplate-update keeps it:\n{_told(baseline.smaller)}", False
    changed = len({(c.kernel, c.target) for c in saved.changes})
    text = f"{name}: {saved.new} recorded for the first time, {saved.known - changed} as before, {changed} changed"
    return (f"{text}:\n{_told(saved.changes)}" if changed else text), False


def _told(changes: Sequence[Change]) -> str:
    return table(sorted(set(changes), key=astuple), kernels=True)


# the file -------------------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[Name, Record]:
    """The records of a file; none where there is no file.

    Raises
    ------
    BaselineError
        It cannot be read, is no JSON, of another format, or holds what `write` does not write.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path.name} cannot be read: {error}", given=str(path), try_=_REWRITE) from error
    try:
        found = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise _no_json(path, text, error) from error
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{path.name} is damaged: {error}", given=str(path), try_=_REWRITE) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        format_ = found.get("format") if isinstance(found, dict) else None
        raise BaselineError(
            f"{path.name} is no record that this version of cuplate reads.",
            given=f'{path}: "format": {json.dumps(format_)}',
            allowed=f'"format": "{FORMAT}"',
            try_="the version of cuplate that wrote it; or delete it and run pytest --cuplate-update",
        )
    try:
        return {(k, t): _parsed(record) for k, targets in found["kernels"].items() for t, record in targets.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BaselineError(
            f"{path.name} is damaged: {type(error).__name__}: {error}", given=str(path), try_=_REWRITE
        ) from error


def _no_json(path: Path, text: str, error: json.JSONDecodeError) -> BaselineError:
    merge = any(line.startswith(("<<<<<<<", ">>>>>>>")) for line in text.splitlines())
    line = text.splitlines()[error.lineno - 1] if text.strip() else "nothing"
    return BaselineError(
        f"{path.name} has an unresolved merge." if merge else f"{path.name} is no JSON: {error.msg}",
        given=f"{path}:{error.lineno}: {line:.80}",
        try_="either side of the merge, then pytest --cuplate-update" if merge else _REWRITE,
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; twice the same name is what a careless merge leaves, and JSON would take the last."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return made


def _parsed(record: Mapping[str, Any]) -> Record:
    if set(record) != {*_FIGURES, "build"}:
        raise ValueError(f"a record holds {', '.join(record)}")
    figures = Figures(**{name: record[name] for name in _FIGURES})
    if not all(value is None or (type(value) is int and value >= 0) for value in astuple(figures)):
        raise ValueError(f"{astuple(figures)} are no counts")
    if type(record["build"]) is not str:
        raise ValueError(f"build {record['build']!r} is no text")
    return Record(figures, record["build"])


def write(path: Path, records: Mapping[Name, Record]) -> None:
    """Write a file whole or not at all: whoever reads it meanwhile sees the old one or the new one."""
    path = path.resolve()  # through a link: the file behind it is replaced, not the link
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        aside.write_text(_text(records), encoding="utf-8", newline="\n")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _text(records: Mapping[Name, Record]) -> str:
    kernels: dict[str, list[str]] = {}
    for (kernel, target), record in sorted(records.items()):
        values = {name: getattr(record.figures, name) for name in _FIGURES} | {"build": record.build}
        kernels.setdefault(kernel, []).append(f"      {_json(target)}: {_json(values)}")
    blocks = [f"    {_json(kernel)}: {{\n" + ",\n".join(lines) + "\n    }" for kernel, lines in kernels.items()]
    body = "{\n" + ",\n".join(blocks) + "\n  }" if blocks else "{}"
    return f'{{\n  "format": {_json(FORMAT)},\n  "kernels": {body}\n}}\n'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
