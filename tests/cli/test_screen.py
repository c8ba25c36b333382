"""How results are written where there is no terminal; terminals are in test_exits.py."""

from __future__ import annotations

import json

import pytest

from cuplate.cli.screen import age, clean, emit, progress, size, table


def test_a_table_for_a_pipe_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns as wide as what stands in them, wide characters counted as two; nothing is cut, no blank at an end."""
    long = "x" * 3000
    table(("KEY", "N", "NAME"), [("a", 1, long), ("漢", 100, ""), ("[b]bold[/b]", 20, ":smile:")], numbers=("N",))
    out = capsys.readouterr().out
    assert out == (f"KEY            N  NAME\na              1  {long}\n漢           100\n[b]bold[/b]   20  :smile:\n")


def test_a_table_without_headings_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and values, and nothing above them."""
    table(("", ""), [("name", "value"), ("n", "v")])
    assert capsys.readouterr().out == "name  value\nn     v\n"


def test_json_is_of_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """And of ASCII, whatever is in it."""
    emit(name="\udcff漢")
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"schema": 1, "name": "\udcff漢"}


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A log of a batch system stays clean."""
    with progress("working", 3) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (1.5 * (1 << 30), "1.5 GiB"),
        (1 << 62, "4194304.0 TiB"),
    ],
)
def test_sizes_are_in_powers_of_1024(count_bytes: float, text: str) -> None:
    """With one digit behind the point, as the limits are given."""
    assert size(count_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "now"),
        (0.5, "now"),
        (1, "1s"),
        (59.9, "59s"),
        (60, "1m"),
        (3600, "1h"),
        (86399, "23h"),
        (86400 * 400, "400d"),
    ],
)
def test_ages_are_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    """A clock that was set back gives no negative age."""
    assert age(seconds) == text


def test_text_is_cleaned_of_what_is_not_printable() -> None:
    """Lone surrogates too, which no encoding can print."""
    assert clean("a\x1b[0m\n\u202e\udcffé") == r"a\x1b[0m\n\u202e\udcffé"


@pytest.mark.parametrize("width", ["0", "1", "40"])
def test_a_narrow_terminal_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: str
) -> None:
    """It folds the lines by itself."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal to rich
    monkeypatch.setenv("COLUMNS", width)
    table(("KEY", "SIZE", "KERNEL"), [("k" * 16, "1.0 KiB", "saxpy")], numbers=("SIZE",))
    out = capsys.readouterr().out
    assert "k" * 16 in out
    assert "1.0 KiB" in out
    assert "saxpy" in out
