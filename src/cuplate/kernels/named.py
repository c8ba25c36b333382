"""One function under several names: products of one text that differ in the defaults of their tiles."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

__all__ = ["named"]

F = TypeVar("F", bound=Callable[..., Any])


def named(function: F, name: str, **defaults: Any) -> F:
    """The function under another name, with other defaults of its parameters."""
    it: Any = function
    copy: Any = FunctionType(it.__code__, it.__globals__, name, it.__defaults__)
    copy.__qualname__, copy.__kwdefaults__ = name, it.__kwdefaults__ | defaults
    copy.__annotations__, copy.__doc__ = it.__annotations__, it.__doc__
    return cast("F", copy)
