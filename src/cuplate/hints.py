"""What an error suggests, and how it tells of several alike."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from cuplate.errors import CuplateError

__all__ = ["by_reason", "named_keywords", "nearest_name"]

F = TypeVar("F", bound=Callable[..., Any])
__tracebackhide__ = True


def nearest_name(given: object, names: Iterable[object]) -> str | None:
    """The name that was probably meant, for ``try_=``; None if none is near. Another case counts as the same name.

    Parameters
    ----------
    given : object
        What stood where a name should.
    names : iterable of object
        Those that exist; what is no text counts by its text.

    Returns
    -------
    str or None
    """
    folded = {str(name).lower(): str(name) for name in sorted(map(str, names), reverse=True)}
    found = difflib.get_close_matches(str(given).lower(), folded, n=1)
    return folded[found[0]] if found else None


def named_keywords(error: type[CuplateError]) -> Callable[[F], F]:
    """A function whose unknown keywords are an `error` with the nearest name, where Python says TypeError and no more.

    Parameters
    ----------
    error : type
        Of the error; one that is a TypeError too.

    Returns
    -------
    callable
        Decorator. The function keeps its signature, for people and for type checkers; its caller is one frame further.
    """

    def decorate(function: F) -> F:
        code = cast("Any", function).__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            for name in keywords:
                if name not in known:
                    near = nearest_name(name, known)
                    raise error(
                        f"{function.__name__} has no keyword {name!r}.",
                        allowed=", ".join(known),
                        try_=f"{near}=" if near else None,
                    )
            return function(*args, **keywords)

        return cast("F", checked)

    return decorate


def by_reason(passed_over: Iterable[tuple[str, str]]) -> list[str]:
    """What was against variants, a line for each reason, with the names of all that it was against."""
    names: dict[str, list[str]] = {}
    for name, reason in passed_over:
        names.setdefault(reason, []).append(name)
    return [f"{', '.join(found)}: {reason}" for reason, found in names.items()]
