"""The outcome of one tuning: a table for people, and a record for the store, found by what the outcome depends on.

A record names its winner by its place among the candidates, which are a part of the key, so that no value is ever read
from a store. What compiled the winner is compared with what would compile it now; a record of another compiler, or of
other headers, is as good as none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from cuplate.arguments import Described
from cuplate.binding import Binding
from cuplate.expression import Expression
from cuplate.key import fold, sha256

if TYPE_CHECKING:
    from cuplate.choice import Chosen

__all__ = ["Tried", "Tuned", "ingredients_of", "made_of", "size_class"]

_SCHEMA = "1"
_RECORD = b"CUPTUNE\x01"  # the last byte is the version of the record
# Of a content key: what the text of a template decides is in the key of the tuning already.
_TEXT = frozenset(("source", "kernel", "parameter checks", "program key"))
_STATES = ("measured", "slow", "wrong", "compile error", "launch error", "kernel error", "not measured")


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate.

    Attributes
    ----------
    parameters : tuple of (str, object)
        Values of the tuned parameters.
    state : str
        ``"measured"``; ``"slow"``, given up after few runs; ``"wrong"``, its result differs from the others';
        ``"compile error"``, ``"launch error"``, ``"kernel error"``; ``"not measured"``, for want of time.
    median_s : float or None
        Seconds a run.
    spread : float or None
        Distance of the quartiles, as a share of the median.
    samples : int
        Runs that were timed.
    compile_s : float or None
        Seconds to render and compile; 0 for what was stored.
    reason : str
        Of what was not measured, one line.
    """

    parameters: tuple[tuple[str, Any], ...]
    state: str = "not measured"
    median_s: float | None = None
    spread: float | None = None
    samples: int = 0
    compile_s: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.parameters)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was tried for one kind of call, and what runs it; ``str()`` is a table.

    Attributes
    ----------
    function : str
        The function whose parameters are tuned.
    origin : str
        ``"measured"`` now, ``"stored"``, or ``"default"`` where nothing has been measured yet.
    winner : int
        Place of what runs in `tried`.
    tried : tuple of Tried
        Every candidate, in order.
    device : str
        Where it was measured, in words.
    size_class : tuple of (str, str)
        What the winner depends on beside dtypes and layouts.
    key : str
        Under which it is stored, hexadecimal.
    seconds : float
        That it took, compiles included.
    note : str
        What else there is to say; a line, or nothing.
    made_of : str
        Digest of what compiled the winner.
    """

    function: str
    origin: str
    winner: int
    tried: tuple[Tried, ...]
    device: str
    size_class: tuple[tuple[str, str], ...] = ()
    key: str = ""
    seconds: float = 0.0
    note: str = ""
    made_of: str = ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The winner's values."""
        return dict(self.tried[self.winner].parameters)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {value}" for name, value in self.size_class)
        said = {"measured": f"measured in {self.seconds:.1f} s", "stored": "stored", "default": "not measured"}
        lines = [f"{self.function}: {said[self.origin]} on {self.device}" + (f" for {sizes}" if sizes else "")]
        width = max(len(str(tried)) for tried in self.tried)
        for place, tried in enumerate(self.tried):
            mark = "*" if place == self.winner else " "
            lines.append(f"{mark} {tried!s:<{width}}  {_told(tried)}".rstrip())
        return "\n".join([*lines, *([self.note] if self.note else [])])

    # the record -------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The record; equal tables give equal bytes."""
        rows = [[getattr(t, f.name) for f in fields(Tried) if f.name != "parameters"] for t in self.tried]
        told = {f.name: getattr(self, f.name) for f in fields(Tuned) if f.name not in ("tried", "origin", "key")}
        told |= {"tried": rows, "candidates": [str(t) for t in self.tried]}
        text = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return _RECORD + text.encode("ascii")

    @classmethod
    def decode(cls, record: bytes, candidates: Iterable[tuple[tuple[str, Any], ...]], key: str) -> Tuned:
        """The table of a record, for the candidates of its key.

        Raises
        ------
        ValueError
            It is of another version, damaged, or about other candidates.
        """
        told = _json(record)
        rows = [Tried(c) for c in candidates]
        if told.keys() != {f.name for f in fields(cls)} - {"origin", "key"} | {"candidates"}:
            raise ValueError("the record has other fields")
        texts = ("function", "device", "note", "made_of")
        if any(type(told[name]) is not str for name in texts) or not _is_number(told["seconds"]):
            raise ValueError("a field of the record is of another type")
        if told["candidates"] != [str(row) for row in rows]:
            raise ValueError("the record is about other candidates")
        tried = tuple(_row(row.parameters, given) for row, given in zip(rows, _list(told["tried"]), strict=True))
        winner = told["winner"]
        if type(winner) is not int or not 0 <= winner < len(tried) or tried[winner].state != "measured":
            raise ValueError("the record's winner was not measured")
        sizes = tuple((str(name), str(value)) for name, value in map(_list, _list(told["size_class"])))
        return cls(
            told["function"], "stored", winner, tried, told["device"], sizes, key,
            float(told["seconds"]), told["note"], told["made_of"],
        )  # fmt: skip


def _told(tried: Tried) -> str:
    """A row of the table, but for the candidate."""
    if tried.median_s is None:
        return f"{tried.state}: {tried.reason}" if tried.reason else tried.state
    spread = f" +- {tried.spread:.0%}" if tried.spread is not None and tried.samples > 1 else ""
    state = "" if tried.state == "measured" else f"  {tried.state}" + (f": {tried.reason}" if tried.reason else "")
    return f"{_time(tried.median_s):>10}{spread} ({tried.samples} runs){state}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"


def _json(record: bytes) -> dict[str, Any]:
    if not record.startswith(_RECORD):
        raise ValueError(f"not a record of a tuning of this version: {record[:8]!r}")
    try:
        told = json.loads(record[len(_RECORD) :].decode("ascii"))
    except RecursionError as error:
        raise ValueError("the record is nested too deeply") from error
    if not isinstance(told, dict):
        raise ValueError("the record is no object")
    return told


def _list(given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ValueError("a field of the record is no list")
    return given


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _row(parameters: tuple[tuple[str, Any], ...], given: Any) -> Tried:
    state, median, spread, samples, compile_s, reason = _list(given)
    numbers = all(value is None or _is_number(value) for value in (median, spread, compile_s))
    if state not in _STATES or not numbers or type(samples) is not int or type(reason) is not str:
        raise ValueError("a row of the record is of another type")
    return Tried(parameters, state, median, spread, samples, compile_s, reason)


# what an outcome depends on -------------------------------------------------------------------------------------------


def size_class(
    expressions: Iterable[Expression], values: Mapping[str, object], *, exact: bool, static: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """What stands for the sizes of a call: the same for all calls that one measurement serves.

    Parameters
    ----------
    expressions : iterable of Expression
        Of ``tune(key=)``: a bare name of an axis counts by the power of two above it, anything else by its value.
    values : mapping
        Of axes, parameters, arrays and the device.
    exact : bool
        Whether axes count by their size.
    static : iterable of str
        Axes that are constants of the text: these count by their size in any case.
    """
    held = frozenset(static)
    told = []
    for expression in expressions:
        value = expression.evaluate(values)
        rounded = not exact and expression.is_name and expression.text not in held and type(value) is int
        told.append((expression.text, f"<= {_power_above(value)}" if rounded else repr(value)))  # type: ignore[arg-type]
    return tuple(told)


def _power_above(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def ingredients_of(
    binding: Binding,
    chosen: Chosen,
    arrays: Mapping[str, Described | None],
    sizes: tuple[tuple[str, str], ...],
    device: str,
    arch: str,
) -> tuple[tuple[str, str], ...]:
    """All that a winner depends on, by name; `cuplate.key.fold` makes a key of it."""
    tuned = binding.space.names if binding.space is not None else ()
    fixed = [(n, v) for n, v in chosen.parameters if n not in tuned]
    candidates = [[(n, v) for n, v in c if n in tuned] for c in chosen.candidates]
    return (
        ("tuning", _SCHEMA),
        ("template", binding.template.digest),
        ("binding", sha256(_bound(binding))),
        ("options", "\n".join(binding.options.canonical())),
        ("fixed", _typed(fixed)),
        ("candidates", sha256("\n".join(map(_typed, candidates)))),
        ("dtypes", ", ".join(f"{n} {d}" for n, d in sorted(chosen.solved.dtypes.items()))),
        ("layouts", ", ".join(_layout(f.array, f.name, f.value, arrays) for f in sorted(binding.facts, key=repr))),
        ("absent", ", ".join(sorted(n for n, a in arrays.items() if a is None))),
        ("sizes", ", ".join(f"{name} {value}" for name, value in sizes)),
        ("device", device),
        ("arch", arch),
    )


def _typed(pairs: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}: {type(value).__name__} = {value!r}" for name, value in pairs)


def _bound(binding: Binding) -> str:
    """How kernel and call meet, as far as a decoration says it."""
    grid = getattr(binding.grid, "__qualname__", binding.grid)
    arguments = [name for name, _ in binding.arguments or ()]
    scratch = [(s.name, s.dtype, s.size) for s in binding.scratch]
    return repr(
        (
            binding.entry, binding.tiles, binding.block, grid, binding.cluster, binding.shared_bytes,
            binding.cooperative, sorted(binding.static), binding.zeroed, scratch, arguments, binding.maps,
        )
    )  # fmt: skip


def _layout(array: str, fact: str, value: int | None, arrays: Mapping[str, Described | None]) -> str:
    found = arrays.get(array)
    name = f"{array}.{fact}" + ("" if value is None else f"({value})")
    if found is None:  # absent, or yet to be allocated: what it will be follows from the rest
        return name
    if fact == "aligned":
        return f"{name} {found.aligned(value or 1)}"
    if fact == "stride":
        stride = found.stride(value or 0)
        return f"{name} {'-' if stride < 0 else ''}{_power_above(abs(stride))}"
    return f"{name} {found.order if fact == 'order' else ''}"


def made_of(ingredients: Iterable[tuple[str, str]], *, text: bool) -> str:
    """Digest of what would compile a kernel.

    Parameters
    ----------
    ingredients : iterable of (str, str)
        Of its content key.
    text : bool
        False leaves the text aside, which the key of a tuning covers by the template; not where the template names
        others when it is rendered.
    """
    return fold((name, value) for name, value in ingredients if text or name not in _TEXT).hex()
