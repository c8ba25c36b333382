"""What is installed: templates, types and every package, from a wheel and from an editable install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Without it, or pip and the new environment would find this checkout instead of what they install.
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TEMPLATES = sorted(
    path.relative_to(ROOT / "templates").as_posix()
    for path in (ROOT / "templates").rglob("*")
    if path.suffix in {".j2", ".cu", ".cuh"}
)


def can_build() -> bool:
    """Whether setuptools knows the licence expression of pyproject.toml; a fresh venv may carry an old one."""
    try:
        return int(version("setuptools").split(".")[0]) >= 77
    except PackageNotFoundError:
        return False


# In CI a missing one fails these tests: a skip would hide what they are for.
needs_setuptools = pytest.mark.skipif(
    not can_build() and not os.environ.get("CI"), reason="needs setuptools>=77: pip install -e '.[test]'"
)


def pip(*arguments: str) -> None:
    """Run pip of this environment, without an index."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=CLEAN)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that a build leaves nothing in the work tree."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "templates"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in the wheel."""
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(checkout), "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out))
    (path,) = out.glob("cuplate-*.whl")
    with zipfile.ZipFile(path) as archive:
        return {*archive.namelist()}


def test_every_package_is_listed() -> None:
    """A folder of modules under src/ is in pyproject's list of packages, which no finder keeps."""
    folders = {path.parent for path in (ROOT / "src").rglob("*.py")}
    found = {".".join(folder.relative_to(ROOT / "src").parts) for folder in folders}
    assert found | {"cuplate.templates"} == {*PROJECT["tool"]["setuptools"]["packages"]}


@pytest.mark.slow
@needs_setuptools
def test_wheel_holds_every_template(wheel: set[str]) -> None:
    """Each template of the root folder, nested ones too, is in the wheel as `cuplate/templates/...`."""
    assert TEMPLATES
    assert {f"cuplate/templates/{name}" for name in TEMPLATES} <= wheel
    assert "cuplate/templates/__init__.py" in wheel


@pytest.mark.slow
@needs_setuptools
def test_wheel_says_it_is_typed(wheel: set[str]) -> None:
    """`py.typed` is in the wheel, without which type checkers ignore every annotation."""
    assert "cuplate/py.typed" in wheel


@pytest.mark.slow
@needs_setuptools
def test_wheel_holds_the_package_and_nothing_else(wheel: set[str]) -> None:
    """Every module is in the wheel; tests, benchmarks and the like are not."""
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert modules <= wheel
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == {"cuplate"}


@pytest.mark.slow
@needs_setuptools
def test_editable_install_finds_the_templates(checkout: Path, tmp_path: Path) -> None:
    """After `pip install -e .`, `cuplate.templates` is the root folder itself, so edits are seen."""
    # What pip does for `-e`: ask the build backend for an editable wheel, install that.
    hook = f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", hook], cwd=checkout, capture_output=True, check=True, env=CLEAN)
    (editable,) = tmp_path.glob("cuplate-*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(editable))
    code = "import cuplate, cuplate.templates as t, json; print(json.dumps([cuplate.__file__, *t.__path__]))"
    done = subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=CLEAN
    )
    assert json.loads(done.stdout) == [str(checkout / "src/cuplate/__init__.py"), str(checkout / "templates")]


def test_the_script_leads_to_the_command() -> None:
    """`cuplate` on the command line is `cuplate.cli.main`, which needs nothing of the extra to be imported."""
    name, _, attribute = PROJECT["project"]["scripts"]["cuplate"].partition(":")
    code = f"import {name}, sys; print(callable({name}.{attribute}), {{'typer', 'rich'}} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "True set()\n"


def test_the_tests_install_what_the_command_line_needs() -> None:
    """The extras of the command line, of the shared tier and of clusters are in `test`: CI skips no test of them."""
    assert "cuplate[cli,dask,plot,redis]" in PROJECT["project"]["optional-dependencies"]["test"]


def test_extras_name_one_cuda_each() -> None:
    """`[cuda12]` and `[cuda13]` bring CuPy, NVRTC and headers of one major version; neither mixes the two."""
    for major, other in (("12", "13"), ("13", "12")):
        extra = " ".join(PROJECT["project"]["optional-dependencies"][f"cuda{major}"])
        assert f"cupy-cuda{major}x" in extra
        assert f"cuda-core[cu{major}]" in extra
        assert "nvrtc" in extra
        assert f"=={major}.*" in extra
        assert f"=={other}.*" not in extra
