"""The picture of the rooms, held against the import statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# First to last; a room imports only from lines above its own, or from its own line. Packages (`cache`, `backend`) are
# one room unless a module of theirs is listed by its dotted name.
ROOMS = """
errors dtypes hints
structs autotune autotune.tunable
specialization project config
events progress typing scalars
literal cxx instead device_text
expression
options headers
library dialect names origin template
views
grid signature
parameters
autotune.space
arguments encode
solve layout tensor_map
binding
plan
idiom
dispatch
render
cubin seal
backend.protocol
key
cache
compile
debug
backend
host verdict
content indices
call
report
variants
choice
wanted
manifest
autotune.agree autotune.turn autotune.tuned autotune.workspace
autotune.measure autotune.judge
autotune.stage autotune.job
autotune.contest
autotune.tuner
autotune.fleet
autotune.settle
hotpath hostpath
inspection
walk
record
specialize
warmup
build
draw
search
testing
baseline
pytest_plugin
kernels
cli
__main__
"""
RANK = {room: rank for rank, line in enumerate(ROOMS.strip().splitlines()) for room in line.split()}

# Top-level packages that only some modules may import, however late.
ONLY_IN = {
    "cuda": ("cuplate.backend.cuda",),
    "cupy": ("cuplate.backend", "cuplate.testing"),
    "torch": ("cuplate.backend", "cuplate.testing"),
    "diskcache": ("cuplate.cache",),
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}


def module_name(path: Path) -> str:
    """Dotted name of a source file."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SRC.glob("cuplate/**/*.py"))}


def walk_imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements that run, in functions too; those for type checkers alone do not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield from walk_imports(ast.Module([other], []))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from walk_imports(node)


def imports(name: str) -> set[str]:
    """Dotted names that a module imports; ``from package import module`` counts as the module."""
    found: set[str] = set()
    for node in walk_imports(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        assert node.level == 0, f"{name}, line {node.lineno}: write absolute imports"
        base = node.module or ""
        found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names}
    return found


def room(name: str) -> str:
    """The room of a module: its own entry in ROOMS, else its first part below ``cuplate``."""
    below = name.removeprefix("cuplate").removeprefix(".")
    return below if below in RANK else below.split(".")[0]


ROOM_MODULES = [name for name in MODULES if name != "cuplate"]  # the front door is lazy and has no place in the row


@pytest.mark.parametrize("name", ROOM_MODULES)
def test_every_module_has_a_room(name: str) -> None:
    """A new module is placed in the row of rooms on purpose."""
    assert room(name) in RANK, f"{name} is in no line of ROOMS: decide what it may import"


@pytest.mark.parametrize("name", ROOM_MODULES)
def test_a_room_never_imports_a_later_one(name: str) -> None:
    """Values are handed forward only, deferred imports included."""
    own = RANK.get(room(name), len(RANK))
    later = {other for other in imports(name) if other in MODULES and RANK.get(room(other), -1) > own}
    assert not later, f"{name} imports {sorted(later)}, which come later in the walk"


@pytest.mark.parametrize("name", [name for name in ROOM_MODULES if RANK.get(room(name), 0) <= RANK["specialize"]])
def test_a_room_imports_rooms_not_the_front_door(name: str) -> None:
    """`from cuplate import X` inside the walk would hide which room X is from; `cache` is itself such a door."""
    assert ("cuplate" in imports(name)) == (name == "cuplate.cache")


def test_imports_have_no_cycle() -> None:
    """Modules can be read in one order, each after what it imports."""
    graph = {name: imports(name) & MODULES.keys() - {name} for name in ROOM_MODULES}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]), pytrace=False)


@pytest.mark.parametrize("name", MODULES)
def test_only_the_cuda_backend_imports_cuda(name: str) -> None:
    """Everything else runs on a laptop: cuda.core and its bindings stay in one place, array libraries near it."""
    packages = {other.split(".")[0] for other in imports(name)}
    assert {p for p in packages & ONLY_IN.keys() if not name.startswith(ONLY_IN[p])} == set()


@pytest.mark.parametrize("name", MODULES)
def test_files_are_named_for_what_they_do(name: str) -> None:
    """No drawer for things without a place."""
    assert FORBIDDEN_NAMES.isdisjoint(part.strip("_") for part in name.split("."))


def test_this_test_can_fail() -> None:
    """The reader of imports sees deferred and dotted imports, and skips what only a type checker runs."""
    text = "import a.b\nif TYPE_CHECKING:\n    import c\nelse:\n    import d\ndef f():\n    from e import g\n"
    found = [ast.unparse(node) for node in walk_imports(ast.parse(text))]
    assert found == ["import a.b", "import d", "from e import g"]
