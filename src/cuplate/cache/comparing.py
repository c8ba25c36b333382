"""What two bundles, or other layers, have that differs, and why: by the ingredients of the keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from cuplate.cubin import Cubin, decode
from cuplate.key import difference

__all__ = ["Change", "Comparison", "compare", "kernels_of"]


@dataclass(frozen=True, slots=True)
class Change:
    """One kernel in the place of another.

    Attributes
    ----------
    key, other : str
        Of the first and of the second, hexadecimal.
    kernel : Cubin
        The second.
    ingredients : tuple of (str, str, str)
        Names of the ingredients that differ, with both values; those that follow from others are left out.
    resources : tuple of (str, object, object)
        The same of what the kernel takes.
    """

    key: str
    other: str
    kernel: Cubin
    ingredients: tuple[tuple[str, str, str], ...]
    resources: tuple[tuple[str, int | None, int | None], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs.

    Attributes
    ----------
    added, removed : tuple of (str, Cubin)
        Key, hexadecimal, and kernel.
    changed : tuple of Change
    same : int
        Kernels that are in both.
    """

    added: tuple[tuple[str, Cubin], ...]
    removed: tuple[tuple[str, Cubin], ...]
    changed: tuple[Change, ...]
    same: int

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return bool(self.added or self.removed or self.changed)


def kernels_of(entries: Iterable[tuple[bytes, str, bytes]]) -> dict[str, Cubin]:
    """The kernels among key, tag and payload of entries, by key in hexadecimal."""
    found = {}
    for key, _, payload in entries:
        try:
            found[key.hex()] = decode(payload)
        except ValueError:  # a note
            continue
    return found


def compare(first: dict[str, Cubin], second: dict[str, Cubin]) -> Comparison:
    """Which kernels of `second` are new, which of `first` are gone, and which have taken the place of which.

    Kernels of one function, with the same parameters and of one architecture, are a pair; of several the two that
    differ in the fewest ingredients.
    """
    gone = {key: cubin for key, cubin in first.items() if key not in second}
    new = {key: cubin for key, cubin in second.items() if key not in first}
    changed = [
        _change(key, first[key], key, second[key])
        for key in first
        if key in second and (first[key].code, first[key].resources) != (second[key].code, second[key].resources)
    ]
    pairs = sorted(
        (len(difference(a.ingredients, b.ingredients)), key, other)
        for key, a in gone.items()
        for other, b in new.items()
        if _named(a) == _named(b)
    )
    for _, key, other in pairs:
        if key in gone and other in new:
            changed.append(_change(key, gone.pop(key), other, new.pop(other)))
    changed.sort(key=lambda change: (*_named(change.kernel), change.other))
    return Comparison(_sorted(new), _sorted(gone), tuple(changed), len(first.keys() & second.keys()))


def _named(cubin: Cubin) -> tuple[str, str, str, str]:
    return cubin.function, cubin.parameters_text, cubin.arch, cubin.entry


def _sorted(kernels: dict[str, Cubin]) -> tuple[tuple[str, Cubin], ...]:
    return tuple(sorted(kernels.items(), key=lambda item: (*_named(item[1]), item[0])))


def _change(key: str, a: Cubin, other: str, b: Cubin) -> Change:
    mine, its = dict(a.ingredients), dict(b.ingredients)
    names = difference(a.ingredients, b.ingredients)
    before, after = asdict(a.resources), asdict(b.resources)
    return Change(
        key,
        other,
        b,
        tuple((name, mine.get(name, ""), its.get(name, "")) for name in names),
        tuple((name, before[name], after[name]) for name in before if before[name] != after[name]),
    )
