"""The project's chores, the same here and in `.ci/run`: lint, type, test, cuda12, gpu, sanitize, docs, faults."""

from __future__ import annotations

from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "type", "test", "cuda12"]
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).parent
# One list of supported versions: the classifiers.
PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
# One list of tools: the extra `test`.
RUFF = next(tool for tool in PROJECT["project"]["optional-dependencies"]["test"] if tool.startswith("ruff"))


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format, without changing a file."""
    session.install(RUFF)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(name="type")
def type_(session: nox.Session) -> None:
    """Two type checkers over the source, what runs beside it, and a user's file."""
    session.install("-e", ".[dev]")
    session.run("mypy")
    session.run("pyright")


@nox.session(python=PYTHONS)
def test(session: nox.Session) -> None:
    """All that needs no GPU, on every supported Python that is installed."""
    session.install("-e", ".[nvrtc,cpu,test]")
    session.run("python", "-m", "pytest", "-n", "auto", *session.posargs)


@nox.session
def cuda12(session: nox.Session) -> None:
    """What the compiler decides, with the CUDA 12 extra: keys, headers, errors, and every kernel of the tests."""
    session.install("-e", ".[cuda12,test]")
    names = (
        "backend/test_nvrtc.py",
        "test_bindings.py",
        "test_compile.py",
        "test_headers.py",
        "test_inspection.py",
        "test_key.py",
    )
    session.run("python", "-m", "pytest", *(f"tests/{name}" for name in names), *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """The tests that need a GPU; without one this session fails instead of skipping them."""
    session.install("-e", ".[cuda13,test]")
    session.run("python", "-m", "pytest", "tests/gpu", *session.posargs, env={"CUPLATE_REQUIRE_GPU": "1"})


@nox.session
def sanitize(session: nox.Session) -> None:
    """The GPU tests under compute-sanitizer, with what each of its tools counts."""
    session.install("-e", ".[cuda13,test]")
    session.run("python", "tests/gpu/sanitize.py", *session.posargs, env={"CUPLATE_REQUIRE_GPU": "1"})


@nox.session
def docs(session: nox.Session) -> None:
    """Run what the documentation shows: the examples in README.md, docs/ and the docstrings."""
    session.install("-e", ".[nvrtc,cpu,test]")
    session.run("python", "-m", "pytest", "tests/test_docs.py", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """The store's faults with real mounts (as root, with bindfs) and more rounds; their table for docs/faults.md."""
    session.install("-e", ".[nvrtc,test]")
    names = ("faults_more", "flight", "files", "disk_faults", "disk_processes", "disk_security")
    files = (f"tests/cache/test_{name}.py" for name in names)
    session.run("python", "-m", "pytest", *files, *session.posargs, env={"CUPLATE_FAULTS": "full"})
    session.run("python", "tests/cache/fault_table.py")
