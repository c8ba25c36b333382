"""What a signature says about parameters that are to be tuned: ``tile: Literal[16, 32, 64] = tune()``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cuplate.errors import DeclarationError

__all__ = ["SIZE_CLASSES", "UNSAID", "Tunable", "tune"]

SIZE_CLASSES = ("power of two", "exact")


class _Unsaid:
    __slots__ = ()

    def __repr__(self) -> str:
        return "<unsaid>"

    def __reduce__(self) -> str:
        return "UNSAID"


UNSAID = _Unsaid()
"""In place of a default that nobody gave; None may be one."""


class Tunable:
    """The default of a tuned parameter, see `tune`. One object may stand for several parameters.

    No dataclass: every program with a decorated function would wait for one more to be made.
    """

    __slots__ = ("atol", "configs", "default", "key", "rtol", "size_class", "values")

    def __init__(
        self,
        values: tuple[Any, ...] | None = None,
        configs: tuple[Mapping[str, Any], ...] | None = None,
        default: Any = UNSAID,
        key: tuple[str, ...] | None = None,
        size_class: str | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        self.values, self.configs, self.default = values, configs, default
        self.key, self.size_class, self.rtol, self.atol = key, size_class, rtol, atol

    def __repr__(self) -> str:
        names = ("values", "configs", "default", "key", "size_class", "rtol", "atol")
        said = {name: getattr(self, name) for name in names}
        shown = {
            n: list(v) if isinstance(v, tuple) else v for n, v in said.items() if v is not None and v is not UNSAID
        }
        return f"tune({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def tune(
    *,
    values: Iterable[Any] | None = None,
    configs: Iterable[Mapping[str, Any]] | None = None,
    default: Any = UNSAID,
    key: str | Iterable[str] | None = None,
    size_class: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Any:
    """The default of a parameter that is left to measurement: the candidate that was fastest for calls of this size.

    Without an argument the candidates are what the annotation allows: the values of a ``Literal``, the members of an
    ``Enum``, False and True. Of several tuned parameters every combination is one that ``require=`` allows. A value
    that a call gives is taken as it is, and the other parameters are tuned around it.

    Parameters
    ----------
    values : iterable, optional
        Only these, or, for an annotation that does not list any (``int``), these.
    configs : iterable of mapping of str to object, optional
        Parameters that go together, ``[{"tile": 16, "stages": 2}, ...]``: only these combinations. Each parameter that
        they name has ``tune()`` as its default, or this very object.
    default : object, optional
        What runs where nothing is measured, default the first candidate; one of the values, or of the configs.
    key : str or iterable of str, optional
        What a winner depends on besides dtypes, layouts and device: names of axes, and expressions of the language of
        ``require=`` (exact). Default every axis. Once in a signature.
    size_class : str, optional
        How names of axes count: ``"power of two"`` (default), sizes up to the same power of two are one class;
        ``"exact"``, each size is one. Once in a signature.
    rtol, atol : float, optional
        By how much results of two candidates may differ; default by rounding alone, see ``docs/autotune.md``. Once in a
        signature.

    Returns
    -------
    Any
        For type checkers a value of the annotated type.

    Raises
    ------
    DeclarationError
        At decoration for what does not fit the signature, here for what never can.

    Examples
    --------
    >>> tune(values=[128, 256])
    tune(values=[128, 256])
    """
    if values is not None and configs is not None:
        raise DeclarationError("tune() takes values= or configs=, not both.", try_="tune() beside tune(configs=[...])")
    listed = _listed("values", values)
    together = _listed("configs", configs)
    if together is not None and not all(isinstance(c, Mapping) and c.keys() == together[0].keys() for c in together):
        raise DeclarationError(
            "tune(configs=...) lists mappings of the same parameters.",
            given=", ".join(f"{c!r:.40}" for c in together[:4]),
            try_='tune(configs=[{"tile": 16, "stages": 2}, {"tile": 32, "stages": 3}])',
        )
    if size_class is not None and size_class not in SIZE_CLASSES:
        raise DeclarationError(
            "tune(size_class=...) is none.", given=repr(size_class), allowed=", ".join(map(repr, SIZE_CLASSES))
        )
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if tolerance is not None and not (isinstance(tolerance, int | float) and tolerance >= 0):
            raise DeclarationError(f"tune({name}=...) is a number of at least 0.", given=repr(tolerance))
    asked = (key,) if isinstance(key, str) else None if key is None else tuple(key)
    return Tunable(
        listed, None if together is None else tuple(map(dict, together)), default, asked, size_class, rtol, atol
    )


def _listed(name: str, given: Any) -> tuple[Any, ...] | None:
    if given is None:
        return None
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DeclarationError(f"tune({name}=...) is a list.", given=f"{given!r:.60}")
    listed = tuple(given)
    if not listed:
        raise DeclarationError(f"tune({name}=[]) leaves nothing to choose from.")
    return listed
