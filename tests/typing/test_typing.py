"""A strict type checker sees a specialized function's own signature."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
API = ROOT / "tests/typing/api.py"

pytestmark = pytest.mark.slow


def run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a checker of this environment; skip without it, but not in CI, where a skip would hide what this is for."""
    if importlib.util.find_spec(tool) is None:
        message = f"{tool} is not installed: pip install -e '.[test]'"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_mypy_strict_is_clean() -> None:
    """mypy --strict accepts every snippet, refuses every mistake, and no ignore hides nothing."""
    # Imports are followed but not judged: a user's mypy does not report on an installed library either.
    done = run("mypy", "--strict", "--warn-unused-ignores", "--follow-imports=silent", str(API))
    assert done.returncode == 0, done.stdout + done.stderr


def pyright(text: str, folder: Path) -> list[str]:
    """Messages of pyright, strict, about one file of a user's."""
    (folder / "user.py").write_text(text, encoding="utf-8")
    config = {
        "include": ["user.py"],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,  # mypy's; what it hides from mypy must not be hidden here
        "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    done = run("pyright", "--project", str(folder), "--pythonpath", sys.executable, "--outputjson")
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [f"{m['range']['start']['line'] + 1}: {m['message']}" for m in report["generalDiagnostics"]]


def test_pyright_strict_is_clean(tmp_path: Path) -> None:
    """Pyright, strict, accepts every snippet, refuses every mistake, and no ignore hides nothing."""
    assert pyright(API.read_text(encoding="utf-8"), tmp_path) == []


def test_ruff_is_clean() -> None:
    """A file of bindings passes ruff with the project's rules, jaxtyping's axes included."""
    done = run("ruff", "check", "--no-cache", str(API))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_find_a_wrong_type(checker: str, tmp_path: Path) -> None:
    """The checks above can fail: a result that is claimed to be another array type is found."""
    text = API.read_text(encoding="utf-8")
    claim = "assert_type(matmul(device, device, device, tile=32), Device)"
    assert claim in text
    text = text.replace(claim, claim.replace("Device)", "Host)"))
    if checker == "mypy":
        wrong = tmp_path / "wrong.py"
        wrong.write_text(text, encoding="utf-8")
        config = str(ROOT / "pyproject.toml")
        done = run("mypy", "--strict", "--follow-imports=silent", "--config-file", config, str(wrong))
        assert "Expression is of type" in done.stdout
    else:
        assert any("assert_type" in message for message in pyright(text, tmp_path))
