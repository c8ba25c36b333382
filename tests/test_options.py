"""Options: what is accepted, what is refused and how, and the canonical form that keys are made of."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cuplate.errors import DeclarationError
from cuplate.options import Options


def test_the_default_is_cxx17_and_nothing_else() -> None:
    """Nobody has to write options to get a modern standard."""
    assert Options().canonical() == ("std=c++17",)


def test_every_option_has_one_spelling() -> None:
    """The canonical form lists all that reaches the compiler, in one order."""
    options = Options(
        "C++20", debug=True, fast_math=True, line_info=True, max_registers=64, define={"B": None, "A": True}
    )
    assert options.canonical() == (
        "std=c++20",
        "fast_math",
        "line_info",
        "debug",
        "max_registers=64",
        "define A=1",
        "define B",
    )


def test_directories_stay_out_of_the_canonical_form(tmp_path: Path) -> None:
    """What is in a directory decides a cubin; where the directory is does not."""
    assert Options(include=tmp_path).canonical() == Options().canonical()


@pytest.mark.parametrize("define", [{"B": 2, "A": 1}, {"A": "1", "B": "2"}, [("B", 2), ("A", 1)]])
def test_macros_have_no_order(define: object) -> None:
    """Definitions in another order, or as numbers, are the same options."""
    assert Options(define=define) == Options(define={"A": 1, "B": 2})  # type: ignore[arg-type]


def test_options_travel() -> None:
    """Options are hashable and picklable, and a changed copy is a new value."""
    options = Options(define={"A": 1}, include="here")
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options.replace()) == hash(options)
    assert options.replace(fast_math=True) == Options(define={"A": 1}, include="here", fast_math=True)


@pytest.mark.parametrize("value", [None, {}, Options()])
def test_nothing_given_is_the_default(value: object) -> None:
    """``options=`` takes None, a mapping or Options."""
    assert Options.from_value(value) == Options()  # type: ignore[arg-type]


def test_a_mapping_holds_the_keywords() -> None:
    """A mapping is as good as the constructor."""
    assert Options.from_value({"std": "c++20", "fast_math": True}) == Options("c++20", fast_math=True)


def test_a_relative_directory_belongs_to_the_binding_file(tmp_path: Path) -> None:
    """The working directory decides nothing."""
    (tmp_path / "include").mkdir()
    assert Options(include="include").directories(tmp_path) == (tmp_path / "include",)


def test_a_directory_that_is_not_there_is_named_as_written(tmp_path: Path) -> None:
    """A misspelt directory is an error by itself, not a missing header later."""
    with pytest.raises(
        DeclarationError, match=r"include directory does not exist\n  given +include='inclde', that is /"
    ):
        Options(include="inclde").directories(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"std": "c++18"}, "std is not known"),
        ({"std": 17}, "std is not known"),
        ({"fast_math": 1}, "fast_math is True or False"),
        ({"max_registers": 8}, "16 to 255"),
        ({"max_registers": True}, "16 to 255"),
        ({"max_registers": "64"}, "16 to 255"),
        ({"include": 3}, "include takes directories"),
        ({"include": [b"x"]}, "include takes directories"),
        ({"include": ""}, "include takes directories"),
        ({"bundled_headers": "yes"}, "bundled_headers is True or False"),
        ({"define": "A=1"}, "define takes a mapping or pairs"),
        ({"define": ["AB"]}, r"each entry of define is \(name, value\)"),
        ({"define": {"A B": 1}}, "C identifier"),
        ({"define": {"A": "1\n#include <x>"}}, "cannot be used"),
        ({"define": {"A": 1.5}}, "cannot be used"),
        ({"define": [("A", 1), ("A", 2)]}, "defined twice"),
        ({"fastmath": True}, "options has no keyword 'fastmath'"),
        (["std"], "takes cuplate.Options or a mapping"),
    ],
)
def test_what_is_refused_is_named(given: object, message: str) -> None:
    """A wrong option is an error where it is written, and the message says which."""
    with pytest.raises(DeclarationError, match=message):
        Options.from_value(given)  # type: ignore[arg-type]


def test_a_misspelt_keyword_gets_the_nearest_name() -> None:
    """The message offers the keyword that was meant."""
    with pytest.raises(DeclarationError) as caught:
        Options.from_value({"fastmath": True})
    assert str(caught.value).splitlines()[-1].split() == ["try", "fast_math"]


@pytest.mark.parametrize(
    ("arch", "specific", "target"),
    [("sm_90", True, "sm_90a"), ("sm_90", False, "sm_90"), ("sm_80", True, "sm_80"), ("sm_100f", True, "sm_100f")],
)
def test_arch_specific_asks_for_the_instructions_of_one_architecture(arch: str, specific: bool, target: str) -> None:
    """A call and ``compile(arch=)`` go through the same rule, so what was compiled ahead is what a call looks for."""
    assert Options(arch_specific=specific).target(arch) == target
