"""Messages as product: one order, one layout; facts are attributes; every class survives pickling."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from cuplate import errors
from cuplate.errors import CompileError, CuplateError, ParameterError

ERRORS = [v for n in errors.__all__ if issubclass(v := getattr(errors, n), CuplateError)]
WARNINGS = [v for n in errors.__all__ if issubclass(v := getattr(errors, n), Warning)]


def test_facts_come_in_the_house_order() -> None:
    """What failed, where, what was given, what is allowed, the call, what to try; then the rest as given."""
    error = ParameterError(
        "block_x = 48 is not a multiple of 32.",
        try_="block_x=64",
        extra="more",
        allowed="32 to 1024",
        called_as="saxpy(block_x=48)",
        given="48",
        function="saxpy",
        template="elementwise/saxpy.cu.j2:3",
        nothing=None,
        _hidden=7,
    )
    assert str(error) == (
        "saxpy: block_x = 48 is not a multiple of 32.\n"
        "  template   elementwise/saxpy.cu.j2:3\n"
        "  given      48\n"
        "  allowed    32 to 1024\n"
        "  called as  saxpy(block_x=48)\n"
        "  try        block_x=64\n"
        "  extra      more"
    )


def test_a_long_label_widens_the_column_and_lines_are_indented() -> None:
    """A fact of several lines stays in its column; an empty one is a label alone."""
    error = CuplateError("no.", log="one\ntwo", compiler_command="nvrtc", given="")
    assert str(error) == (
        "no.\n  given            \n  log              one\n                   two\n  compiler command nvrtc"
    )


def test_a_summary_alone_is_the_message() -> None:
    """With the function in front, if there is one."""
    assert str(CuplateError("no.")) == "no." and str(CuplateError("no.", function="f")) == "f: no."


def test_facts_are_attributes() -> None:
    """Under their names; hidden ones without the underscore, and not printed."""
    error = CompileError("no.", function="f", given=3, _log="long", _key="ab", try_="this")
    assert (error.given, error.log, error.key, error.try_) == (3, "long", "ab", "this")  # type: ignore[attr-defined]
    assert (error.function, error.summary) == ("f", "no.") and "long" not in str(error)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_pickles(kind: Any, protocol: int) -> None:
    """Class, message, facts and attributes arrive in another process; notes too."""
    error = kind("no.", function="f", given=[1], try_="x", _log="hidden")
    error.add_note("a note")
    for other in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind and str(other) == str(error) and other.args == error.args
        assert (other.facts, other.log, other.given, other.function) == (error.facts, "hidden", [1], "f")
        assert other.__notes__ == ["a note"]


@pytest.mark.parametrize(
    ("kind", "caught_as"),
    [
        ("DeclarationError", TypeError), ("ExpressionError", ValueError), ("TemplateError", ValueError),
        ("ParameterError", ValueError), ("ParameterError", TypeError), ("ArgumentError", TypeError),
        ("DtypeError", TypeError), ("ShapeError", ValueError), ("LayoutError", ValueError), ("DeviceError", ValueError),
        ("ScalarOverflowError", OverflowError), ("ScalarOverflowError", TypeError), ("LaunchError", RuntimeError),
        ("LaunchError", ValueError), ("CaptureError", RuntimeError), ("ToolchainError", RuntimeError),
        ("CompileError", RuntimeError), ("KernelNotFoundError", CompileError),
    ],
)  # fmt: skip
def test_errors_are_what_python_would_raise(kind: str, caught_as: type[Exception]) -> None:
    """One tree of ours, and the built-in kind that a caller may expect."""
    assert issubclass(getattr(errors, kind), caught_as) and issubclass(getattr(errors, kind), CuplateError)


def test_warnings_are_user_warnings() -> None:
    """So that they are shown by default."""
    assert WARNINGS and all(issubclass(w, UserWarning) and issubclass(w, errors.CuplateWarning) for w in WARNINGS)


def test_every_class_is_listed_and_documented() -> None:
    """`__all__` is complete and sorted, and each class says what it is for."""
    defined = [n for n, v in vars(errors).items() if isinstance(v, type) and v.__module__ == errors.__name__]
    assert sorted(defined) == errors.__all__ == sorted(errors.__all__)
    assert all(getattr(errors, n).__doc__ for n in errors.__all__)
