"""The nearest name, which every error about an unknown name suggests."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import cuplate
from cuplate.errors import ArgumentError, DeclarationError
from cuplate.hints import named_keywords, nearest_name
from cuplate.testing import check


@pytest.mark.parametrize(
    ("given", "names", "want"),
    [
        ("relo", ["relu", "tile"], "relu"),
        ("K", ["M", "N", "k"], "k"),
        ("TILE", ["tile", "title"], "tile"),
        ("tille", iter(["tile", "relu"]), "tile"),
        (3, [1, 3], "3"),
        ("zzz", ["relu", "tile"], None),
        ("relu", [], None),
    ],
)
def test_the_nearest_name_is_blind_to_case(given: object, names: list[object], want: str | None) -> None:
    """A name of one letter in the other case is found, which likeness alone does not find."""
    assert nearest_name(given, names) == want


@pytest.mark.parametrize(
    ("call", "kind", "near"),
    [
        (lambda: cuplate.specialize("saxpy.cu.j2", tile={"N": 3}), DeclarationError, "tiles="),  # type: ignore[call-arg]
        (lambda: cuplate.specialize("saxpy.cu.j2", blok=3), DeclarationError, "block="),  # type: ignore[call-arg]
        (lambda: check(None, parameterz={}), ArgumentError, "parameters="),  # type: ignore[call-arg]
        (lambda: check(None, zzz={}), ArgumentError, None),  # type: ignore[call-arg]
    ],
)
def test_a_misspelt_keyword_gets_the_nearest_name(call: Any, kind: type[Exception], near: str | None) -> None:
    """Of `specialize` and `check`; it is a TypeError as well, and lists what there is."""
    with pytest.raises(TypeError) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.try_ == near
    assert (near or "sizes=").removesuffix("=") in caught.value.allowed.split(", ")


def test_a_function_with_named_keywords_stays_what_it_is() -> None:
    """Name, doc and signature are its own; right calls go through, its own TypeError too."""

    def area(width: int, *, height: int = 2) -> int:
        """Both."""
        return width * height

    named = named_keywords(ArgumentError)(area)
    assert (named.__name__, named.__doc__, inspect.signature(named)) == ("area", "Both.", inspect.signature(area))
    assert (named(3), named(3, height=4), named(width=1)) == (6, 12, 2)
    with pytest.raises(TypeError, match="missing 1 required"):
        named()  # type: ignore[call-arg]
