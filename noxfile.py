"""The project's chores, the same here and in `.ci/run`: lint, type, test, gpu, docs."""

from __future__ import annotations

from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "type", "test"]
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).parent
# One list of supported versions: the classifiers.
PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format, without changing a file."""
    session.install("ruff>=0.12")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(name="type")
def type_(session: nox.Session) -> None:
    """Two type checkers over the source and over a user's file."""
    session.install("-e", ".[nvrtc,test]")
    session.run("mypy")
    session.run("pyright")


@nox.session(python=PYTHONS)
def test(session: nox.Session) -> None:
    """All that needs no GPU, on every supported Python that is installed."""
    session.install("-e", ".[nvrtc,test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """The tests that need a GPU; without one this session fails instead of skipping them."""
    session.install("-e", ".[cuda13,test]")
    session.run("python", "-m", "pytest", "tests/gpu", *session.posargs, env={"CUPLATE_REQUIRE_GPU": "1"})


@nox.session
def docs(session: nox.Session) -> None:
    """Run what the documentation shows: the examples in README.md, docs/ and the docstrings."""
    session.install("-e", ".[nvrtc,test]")
    session.run("python", "-m", "pytest", "tests/test_docs.py", *session.posargs)
