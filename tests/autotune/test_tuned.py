"""A tuning's outcome: its table, its record, and what it depends on."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from cuplate.autotune.tuned import Tried, Tuned, made_of, size_class
from cuplate.expression import parse

CANDIDATES = [(("tile", 16),), (("tile", 32),), (("tile", 64),)]
TABLE = Tuned(
    "f",
    "stored",
    1,
    (
        Tried(CANDIDATES[0], "measured", 2e-3, 0.05, 12, 0.25),
        Tried(CANDIDATES[1], "measured", 1.5e-5, 0.01, 50, 0.0),
        Tried(CANDIDATES[2], "compile error", None, None, 0, 0.1, "no such thing"),
    ),
    "H200",
    (("N", "<= 128"),),
    "ab",
    1.5,
    "a note",
    "cd",
)


def test_a_table_says_what_was_tried() -> None:
    """Times with their spread, what was against the others, and a mark at the winner."""
    assert str(TABLE).splitlines() == [
        "f: stored on H200 for N <= 128",
        "  tile=16        2 ms +- 5% (12 runs)",
        "* tile=32       15 us +- 1% (50 runs)",
        "  tile=64  compile error: no such thing",
        "a note",
    ]
    assert TABLE.parameters == {"tile": 32}
    assert pickle.loads(pickle.dumps(TABLE)) == TABLE


def test_a_record_gives_the_table_back() -> None:
    """For the candidates of its key, which are not read from it."""
    record = TABLE.encode()
    assert Tuned.decode(record, CANDIDATES, "ab") == TABLE
    assert TABLE.encode() == record
    with pytest.raises(ValueError, match="other candidates"):
        Tuned.decode(record, CANDIDATES[:2], "ab")


def damaged(**changes: Any) -> bytes:
    """A record with other fields, under the same head."""
    record = TABLE.encode()
    told = json.loads(record[8:])
    told.update(changes)
    return record[:8] + json.dumps({n: v for n, v in told.items() if v != "gone"}).encode()


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"CUPTUNE\x02{}",
        TABLE.encode()[:-1],
        b"CUPTUNE\x01[]",
        b"CUPTUNE\x01\xff",
        b"CUPTUNE\x01" + b"[" * 100_000,
        damaged(winner=2),
        damaged(winner=3),
        damaged(winner=-1),
        damaged(winner=True),
        damaged(winner="gone"),
        damaged(more=1),
        damaged(function=1),
        damaged(seconds=float("nan")),
        damaged(seconds="1"),
        damaged(size_class=[["N"]]),
        damaged(size_class=[1]),
        damaged(tried=[]),
        damaged(tried=7),
        damaged(tried=[["measured", -1, 0, 1, 0, ""]] * 3),
        damaged(tried=[["measured", 1, 0, 1.5, 0, ""]] * 3),
        damaged(tried=[["unheard of", 1, 0, 1, 0, ""]] * 3),
        damaged(tried=[["measured"]] * 3),
    ],
)
def test_a_record_that_is_not_ours_is_refused(record: bytes) -> None:
    """By one kind of error, whatever is wrong with it."""
    with pytest.raises(ValueError):
        Tuned.decode(record, CANDIDATES, "ab")


def classes(*sizes: int, exact: bool = False, static: tuple[str, ...] = (), text: str = "N") -> set[Any]:
    """The classes of some sizes."""
    expression = parse(text, names=["N"], function="f", where="key")
    return {size_class([expression], {"N": n}, exact=exact, static=static) for n in sizes}


def test_sizes_up_to_one_power_of_two_are_one_class() -> None:
    """Of an axis; a constant of the text and an expression count by their value."""
    assert classes(513, 700, 1024) == {(("N", "<= 1024"),)}
    assert len(classes(1024, 1025)) == 2
    assert classes(0, 1) == {(("N", "<= 1"),)}
    assert len(classes(*range(1 << 16))) == 17
    assert len(classes(513, 700, exact=True)) == len(classes(513, 700, static=("N",))) == 2
    assert classes(513, 514, 1024, text="N % 2 == 0") == {(("N % 2 == 0", "False"),), (("N % 2 == 0", "True"),)}


def test_a_winner_is_bound_to_what_compiled_it_not_to_its_text() -> None:
    """Another compiler, other headers or options: another digest; the template is in the key of the tuning already."""
    ingredients = (("source", "a"), ("compiler", "nvrtc 1"), ("headers", "x"), ("program key", "p"))
    same = (("source", "b"), ("compiler", "nvrtc 1"), ("headers", "x"), ("program key", "q"))
    assert made_of(ingredients, text=False) == made_of(same, text=False)
    assert made_of(ingredients, text=True) != made_of(same, text=True)
    for name in ("compiler", "headers"):
        other = tuple((n, "other" if n == name else v) for n, v in ingredients)
        assert made_of(other, text=False) != made_of(ingredients, text=False)
