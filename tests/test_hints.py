"""The nearest name, which every error about an unknown name suggests."""

from __future__ import annotations

import pytest

from cuplate.hints import nearest_name


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
