"""The front door: cheap to open, and everything is behind it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import cuplate
from cuplate.cache.bundle import write_bundle
from cuplate.seal import seal

SRC = Path(cuplate.__file__).parents[1]
DOORS = {door.__name__: door for door in (cuplate, cuplate.cache)}


def fresh(code: str, *flags: str, **environment: str | None) -> str:
    """Standard output of ``code`` in a new interpreter; a None in ``environment`` unsets the variable."""
    env = {**os.environ, "PYTHONPATH": str(SRC), **environment}
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        env={name: value for name, value in env.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_for_checkers(door: str) -> dict[str, str]:
    """Name -> module, from a front door's ``if TYPE_CHECKING`` block."""
    source = ast.parse(Path(str(DOORS[door].__file__)).read_text(encoding="utf-8"))
    block = next(n for n in source.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    return {alias.name: str(n.module) for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}


def test_import_loads_nothing_else() -> None:
    """`import cuplate` loads one module: none of NumPy, Jinja, jaxtyping, diskcache, CUDA, CuPy, nor of the library."""
    code = "import sys; before = {*sys.modules}; import cuplate; print(*sorted({*sys.modules} - before))"
    assert fresh(code, "-S").split() == ["cuplate"]


@pytest.mark.parametrize("name", ["Array", "Specialized", "CuplateError", "subscribe"])
def test_light_names_stay_light(name: str) -> None:
    """Names that need no library load none: errors, hooks and what a signature is annotated with."""
    code = f"import sys, cuplate; cuplate.{name}; print(*sys.modules)"
    heavy = {"numpy", "jinja2", "jaxtyping", "diskcache", "cuda", "cupy"}
    assert heavy.isdisjoint(fresh(code, "-S").split())


def test_import_touches_no_disk() -> None:
    """`import cuplate` opens its own source and writes nothing, whatever else it lists or looks up."""
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append((args[0], args[1])) if event in ("open", "os.mkdir") else None)
import cuplate
print(*(f"{mode} {path}" for path, mode in opened), sep="\\n")
"""
    lines = fresh(code, "-B").splitlines()
    assert lines
    for mode, path in (line.split(" ", 1) for line in lines):
        assert mode in ("r", "rb", "None"), f"{path} was opened to write"
        assert "cuplate" in Path(path).parts


def test_import_is_silent_under_w_error() -> None:
    """No warning is raised by importing the package or any name of it that needs no optional library."""
    assert fresh("import cuplate; cuplate.Array, cuplate.f32, cuplate.CuplateError", "-W", "error") == ""


def test_import_needs_no_home() -> None:
    """An account without HOME, and with an unwritable working directory, imports cuplate."""
    assert fresh("import os; os.chdir('/'); import cuplate; cuplate.Array; print('ok')", HOME=None) == "ok\n"


def test_dir_lists_every_public_name() -> None:
    """`dir(cuplate)` shows all of `__all__` before anything was used, so completion works."""
    code = "import cuplate; print(sorted({*cuplate.__all__} - {*dir(cuplate)}))"
    assert fresh(code) == "[]\n"


@pytest.mark.parametrize(("door", "name"), [(door, name) for door in DOORS for name in DOORS[door].__all__])
def test_every_public_name_resolves(door: str, name: str) -> None:
    """Each name of `__all__` is there, and is the one that type checkers see."""
    module = imported_for_checkers(door).get(name)
    value = getattr(DOORS[door], name)
    if module == "cuplate":
        assert value is sys.modules[f"cuplate.{name}"]
    elif module is not None:
        assert value is getattr(sys.modules[module], name)


@pytest.mark.parametrize("door", DOORS)
def test_checkers_see_every_public_name(door: str) -> None:
    """The lazy table and the block for type checkers name the same things."""
    public = {*DOORS[door].__all__} - {"__version__"}
    assert public <= {*imported_for_checkers(door)}
    assert {*imported_for_checkers(door)} == {*DOORS[door]._HOME} | DOORS[door]._MODULES


def test_every_error_is_public() -> None:
    """Whatever `cuplate.errors` exports can be caught as `cuplate.<Name>`."""
    from cuplate import errors

    assert {*errors.__all__} <= {*cuplate.__all__}


@pytest.mark.parametrize("first", ["import cuplate.specialize", "from cuplate.specialize import specialize"])
def test_specialize_stays_the_decorator(first: str) -> None:
    """`cuplate.specialize` is the function also after the module of the same name was imported."""
    code = f"{first}\nimport cuplate\nfrom cuplate import specialize as s\nprint(callable(s), s is cuplate.specialize)"
    assert fresh(code) == "True True\n"


@pytest.mark.parametrize("first", ["import cuplate.cache.stats", "from cuplate.cache.stats import stats"])
def test_stats_stays_the_function(first: str) -> None:
    """`cuplate.cache.stats` likewise."""
    assert (
        fresh(f"{first}\nfrom cuplate import cache\nprint(cache.stats().disk.hits, cache.stats().disk.puts)") == "0 0\n"
    )


def test_a_look_up_loads_what_it_needs() -> None:
    """One tier and its seal; no policy, record, statistics, events or errors: their classes take time to make."""
    code = "import sys; before = {*sys.modules}; from cuplate.cache import DiskTier; print(*{*sys.modules} - before)"
    ours = {name for name in fresh(code).split() if name.startswith("cuplate")}
    light = ("counts", "directory", "disk", "faults", "fork", "health", "reader", "touch")
    assert ours == {"cuplate", "cuplate.cache", "cuplate.seal"} | {f"cuplate.cache.{name}" for name in light}


def test_a_look_up_in_a_bundle_loads_no_more_than_that(tmp_path: Path) -> None:
    """Neither what a record says nor what a key is made of."""
    write_bundle(str(tmp_path / "b.cuplate"), [(bytes(32), "f", seal(bytes(32), b"payload"))])
    code = (
        "import sys; from cuplate.cache.layers import Layer\n"
        f"assert Layer({str(tmp_path / 'b.cuplate')!r}).get(bytes(32)) == (b'payload', 0)\n"
        "print(*sys.modules)"
    )
    loaded = {*fresh(code).split()}
    assert loaded.isdisjoint({"cuplate.key", "cuplate.cubin", "cuplate.cache.listing", "cuplate.cache.files", "json"})


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name is refused with the module's name, and `hasattr` says no."""
    assert not hasattr(cuplate, "specialise")
    with pytest.raises(AttributeError, match="module 'cuplate' has no attribute 'specialise'"):
        _ = cuplate.specialise  # type: ignore[attr-defined]


def test_templates_are_importable() -> None:
    """The shipped templates are the package `cuplate.templates` wherever cuplate was installed."""
    if find_spec("cuplate.templates") is None:
        pytest.skip("cuplate is on the path but not installed")
    from importlib.resources import files

    assert any(entry.name.endswith(".cu.j2") for entry in files("cuplate.templates").iterdir())
