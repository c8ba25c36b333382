"""What the documentation shows is what happens: its code runs, its output is compared, its links and commands exist.

Fenced blocks are read with the comment in front of them, which a reader of the page does not see:

``<!-- file: saxpy.cu.j2 -->``   the block is written to that file, beside the page's code
``<!-- gpu -->``                 Python that needs a GPU: compiled, not run
``<!-- cpu: code -->``           Python for GPU arrays too: it runs after ``code``, which makes arrays in host memory
``<!-- prints: code -->``        the block is what ``code`` prints after the code above it
``<!-- raises: code -->``        the block is the error of ``code``; a last line ``...`` stands for the rest
``<!-- runs: command -->``       the block is what ``python command`` prints
``<!-- shows: path -->``         the block stands in that file
``<!-- pytest: options -->``     the lines of the block are among those that pytest prints beside the page, in order

A ``python`` block with no comment runs. Measured figures and paths are not compared, see `masked`; keys, and what the
compiler decides, are where the block names the very build that is installed here, see `of_this_compiler`.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cuplate
from cuplate import config

ROOT = Path(__file__).parents[1]
API = ROOT / "tests" / "typing" / "api.py"
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("examples/*.md")]
)
RUN = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]

_BLOCK = re.compile(
    r"(?:^<!-- (?P<what>[a-z]+)(?:: (?P<detail>.*?))? -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: the comment in front of it, its language, its text, and the line of its text."""

    what: str
    detail: str
    language: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("body")) + 1
        found.append(Block(match["what"] or "", match["detail"] or "", match["language"], match["body"], line))
    return found


# What follows from the compiler, and from its part in keys.
_OF_COMPILER = (
    (r"\b[0-9a-f]{16,}\b", "<key>"),
    (r"(kernel {5}\S+), \d+ bytes", r"\1, <bytes>"),
    (r"\b\d+ a thread, \d+ \+ \d+ bytes spilled", "<registers>"),
    (r"nvrtc [\d.]+", "nvrtc <build>"),
    (r"^( +registers +)\d+$", r"\1<n>"),
)
_MASKS = (
    (r"\b\d+(\.\d+)? ms\b", "<ms>"),
    (r"\b\d+ bytes, built", "<bytes> built"),
    (r"\b(gcc|clang|zig) \d+(\.\d+)+", "<compiler>"),
    (r"\b[\d.e-]+, [\d.]+% of the bound", "<share> of the bound"),
    (r"(?<![\w.])/(?:[\w.~-]+/)*[\w.~-]+", "<path>"),
    (r"(CuPy cannot be imported|no GPU) \(.*?\)(; pip install '[^']*')?", "<no GPU>"),
    (r" The kernel is compiled for .*", ""),
    (r"largest error [\d.e-]+ of what", "largest error <share> of what"),
    (r"^(\d+ (?:passed|failed))[\w, ]* in [\d.]+s.*$", r"\1"),
    (r'"registers": \d+', '"registers": <n>'),
    (r"\d+ bytes of code, \d+ bytes stored", "<bytes>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(\w+(?: ago)?\)", "<moment>"),
    (r"^(<key> +\S+) .*  (?=\w+ \w+=)", r"\1 <sizes and ages>  "),
    (r'"build": "[\d.]+"', '"build": "<build>"'),
    (r"^(E +compiler +)[\d.]+$", r"\1<build>"),
    (r"[ \t]+$", ""),
)


SHOWN_BY = ("13.5.37", "1.2.2")  # NVRTC and cuda-core of the keys and figures on all pages, as the pages say


def of_this_compiler(text: str) -> bool:
    """Whether a block shows what the compiler that is installed here gives: then keys and figures must be right."""
    from importlib.metadata import version

    from cuplate.backend.cuda import nvrtc

    return f"nvrtc {SHOWN_BY[0]}" in text and (nvrtc.toolchain().build, version("cuda-core")) == SHOWN_BY


def masked(text: str, *, exact: bool = False) -> list[str]:
    """Lines without what differs from run to run: times, paths, and, if not `exact`, what the compiler decides."""
    for pattern, instead in (*(() if exact else _OF_COMPILER), *_MASKS):
        text = re.sub(pattern, instead, text, flags=re.M)
    return text.strip("\n").split("\n")


class Page:
    """One page's code, run from top to bottom in a folder of its own, with the examples' kernels beside it."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.folder = folder
        for kernel in (*ROOT.glob("examples/*.cu"), *ROOT.glob("examples/*.j2")):
            shutil.copy(kernel, folder)
        self.file = folder / f"{page.stem}.py"
        self.names: dict[str, Any] = {"__name__": f"page_{page.stem}", "edited": self.edited, "file": self.file}
        self.undo: Callable[[], None] | None = None

    def edited(self, name: str, old: str, new: str, function: Any) -> Any:
        """`function` after its template was edited, until the block ends."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")
        function.reload()

        def undo() -> None:
            path.write_text(text, encoding="utf-8")
            function.reload()

        self.undo = undo
        return function

    def run(self, code: str, line: int = 1) -> str:
        """Execute code as if it stood at a line of the page; what it prints."""
        padded = "\n" * (line - 1) + code
        self.file.write_text(padded, encoding="utf-8")  # a real file, so that templates are found beside it
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(padded, str(self.file), "exec"), self.names)
        finally:
            if self.undo is not None:
                self.undo()
                self.undo = None
        return out.getvalue()

    def error(self, code: str, line: int) -> str:
        """The error of cuplate's that code ends in."""
        try:
            self.run(code, line)
        except cuplate.CuplateError as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    def pytest(self, *options: str) -> str:
        """What pytest prints about the page's tests; times and counts at its end are not shown on pages."""
        from importlib.metadata import entry_points

        installed = any(point.value == "cuplate.pytest_plugin" for point in entry_points(group="pytest11"))
        plugin = () if installed else ("-p", "cuplate.pytest_plugin")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def check(self, block: Block) -> None:
        """Run or compare one block."""
        if block.what == "file":
            (self.folder / block.detail).write_text(block.body, encoding="utf-8")
        elif block.what == "prints":
            exact = of_this_compiler(block.body)
            assert masked(self.run(block.detail, block.line), exact=exact) == masked(block.body, exact=exact)
        elif block.what == "raises":
            shown, raised = masked(block.body), masked(self.error(block.detail, block.line))
            if shown[-1] == "...":
                assert len(raised) >= len(shown), "nothing is left out"
                raised = [*raised[: len(shown) - 1], "..."]
            assert raised == shown
        elif block.what == "runs":
            assert masked(python(*block.detail.split())) == masked(block.body)
        elif block.what == "shows":
            assert block.body in (ROOT / block.detail).read_text(encoding="utf-8")
        elif block.what == "pytest":
            said = iter(masked(self.pytest(*block.detail.split())))
            missing = [line for line in masked(block.body) if line not in said]  # `in` goes on from the last one found
            assert not missing
        elif block.what == "gpu":
            compile(block.body, str(self.file), "exec")
        elif block.what == "cpu":
            self.run(block.detail, block.line)
            self.run(block.body, block.line)
        elif block.language == "python":
            self.run(block.body, block.line)
        else:
            assert block.language in ("cuda", "console", "json", "text"), f"line {block.line}: {block.language!r}"


def python(*command: str) -> str:
    """What a command prints in a checkout, with no GPU to be seen, whatever this machine has."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def forget_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a recording of a page begin with no calls of other tests."""
    monkeypatch.setattr(importlib.import_module("cuplate.record"), "live_walks", list)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_code_runs_and_prints_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of a page, from top to bottom, in one namespace."""
    forget_others(monkeypatch)
    running = Page(page, tmp_path)
    for block in blocks(page):
        try:
            running.check(block)
        except Exception as error:
            error.add_note(f"{page.relative_to(ROOT)}, line {block.line}")
            raise


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_a_page_binds_compiles(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every specialized function of a page compiles for sm_90, as far as its dtypes are known."""
    forget_others(monkeypatch)
    running = Page(page, tmp_path)
    for block in blocks(page):
        if block.what == "file" or (block.language == "python" and not block.what):
            running.check(block)
    for name, function in list(running.names.items()):
        if not hasattr(function, "reference") or not callable(getattr(function, "compile", None)) or name == "wrong":
            continue
        try:
            function.compile(arch="sm_90")
        except cuplate.CuplateError as error:  # an open dtype, a parameter without default, a tile that is a size
            if not re.search(r"is needed|is missing|has no value here", error.summary):
                raise


def test_the_page_runner_can_fail(tmp_path: Path) -> None:
    """A wrong output, a missing error and a broken block are found."""
    page = Page(tmp_path / "page.md", tmp_path)
    page.check(Block("", "", "python", "x = 3\n", 1))
    page.check(Block("prints", "print(x)", "text", "3\n", 1))
    with pytest.raises(AssertionError):
        page.check(Block("prints", "print(x)", "text", "4\n", 1))
    with pytest.raises(AssertionError):
        page.check(Block("raises", "print(x)", "text", "CompileError: f\n", 1))
    with pytest.raises(NameError):
        page.check(Block("", "", "python", "y\n", 1))
    with pytest.raises(NameError):
        page.check(Block("cpu", "y = 3", "python", "y\nnothing\n", 1))
    fails = "raise cuplate.CuplateError('no', given='x')"
    page.names["cuplate"] = cuplate
    page.check(Block("raises", fails, "text", "CuplateError: no\n  given      x\n", 1))
    page.check(Block("raises", fails, "text", "CuplateError: no\n...\n", 1))
    for short in ("CuplateError: no\n", "CuplateError: no\n  given      x\n...\n"):  # cut, and not cut
        with pytest.raises(AssertionError):
            page.check(Block("raises", fails, "text", short, 1))
    assert masked("register  3 a thread") != masked("register  4 threads")
    key, other = "  key        " + "ab" * 32, "  key        " + "cd" * 32
    assert masked(key) == masked(other) and masked(key, exact=True) != masked(other, exact=True)


# README and the type checkers -----------------------------------------------------------------------------------------


def statements(code: str) -> Iterator[str]:
    """Top-level statements of a block, decorators included, imports and trailing comments left out."""
    lines = code.splitlines()
    for node in ast.parse(code).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        yield "\n".join(lines[first - 1 : node.end_lineno])


def imported(code: str) -> set[str]:
    """``module.name`` of everything that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_type_checkers_read_the_readme() -> None:
    """Each statement of README's Python stands word for word in the file that mypy and pyright check, at some depth."""
    api = API.read_text(encoding="utf-8")
    checked = [block for block in blocks(ROOT / "README.md") if block.language == "python"]
    assert len(checked) >= 5
    for block in checked:
        assert imported(block.body) <= imported(api), f"README.md, line {block.line}: {API.name} imports less"
        for statement in statements(block.body):
            found = any(f"\n{textwrap.indent(statement, ' ' * depth)}\n" in api for depth in (0, 4))
            assert found, f"README.md, line {block.line}: not in {API.name}:\n{statement}"


# links, files, names, commands ----------------------------------------------------------------------------------------

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(
    r"`((?:src|tests|docs|examples|benchmarks|templates|\.ci)/[\w./-]*|[\w-]+\.(?:py|toml|md))(?::\d+)?`"
)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links name files of the repository, and headings that exist."""
    for target in _LINK.findall(prose(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    """A path in backquotes is a path of the repository, a bare ``name.py`` a file somewhere in it."""
    names = {
        path.name
        for folder in ("src", "tests", "examples", "benchmarks", "docs")
        for path in ROOT.glob(f"{folder}/**/*")
    }
    names |= {path.name for path in ROOT.glob("*")}
    for target in _PATH.findall(prose(page)):
        known = (ROOT / target).exists() if "/" in target else target in names
        assert known or target in ("saxpy.py",), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_and_attributes_that_are_named_exist(page: Path) -> None:
    """``cuplate.x.y`` in backquotes can be imported or read."""
    for dotted in set(re.findall(r"`(cuplate(?:\.\w+)+)", page.read_text(encoding="utf-8"))):
        value: Any = cuplate
        for part in dotted.split(".")[1:]:
            value = getattr(value, part, None) or importlib.import_module(f"{value.__name__}.{part}")


def test_environment_variables_agree() -> None:
    """The variables of the documentation are those that the settings read, no more and no less, in both tables."""
    known = set(config.VARIABLES.values())
    for page in PAGES:
        named = set(re.findall(r"\bCUPLATE_[A-Z_]+\b", page.read_text(encoding="utf-8")))
        assert named <= known, f"{page.name}: {named - known}"
    for page in (ROOT / "README.md", ROOT / "docs" / "cache.md"):
        table = set(re.findall(r"^\| `(CUPLATE_[A-Z_]+)` \|", page.read_text(encoding="utf-8"), re.M))
        assert table == known, page.name
    assert set(re.findall(r"``(CUPLATE_[A-Z_]+)``", config.__doc__ or "")) == known


def test_keywords_agree() -> None:
    """docs/binding.md has a row for each keyword of `specialize`, and for nothing else."""
    import inspect

    text = (ROOT / "docs" / "binding.md").read_text(encoding="utf-8")
    section = text[text.index("## The keywords of `specialize`") :].split("\n\n")[1]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert rows == list(inspect.signature(cuplate.specialize).parameters)


def commands(page: Path) -> Iterator[str]:
    """Each command of a page's console blocks."""
    for block in blocks(page):
        if block.language == "console":
            for line in block.body.splitlines():
                yield from (part.strip() for part in line.split("&&"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    """Console blocks use extras, nox sessions, scripts and files that exist."""
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    sessions = set(re.findall(r"^def (\w+?)_?\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.M))
    for command in commands(page):
        for extra in re.findall(r"\.\[([\w,]+)\]", command):
            assert set(extra.split(",")) <= extras.keys(), command
        if command.startswith("nox"):
            assert set(command.split()[2:]) <= sessions, command
        for word in command.split():
            if re.fullmatch(r"(?:\.ci|examples|tests|benchmarks)/\S+", word):
                assert (ROOT / word).exists(), command


def test_the_first_commands_are_what_ci_runs() -> None:
    """README has one line that sets up and runs the example, and one that sets up and runs the tests."""
    lines = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert [("examples/" in line, "pytest" in line) for line in lines] == [(True, False), (False, True)]


def test_the_vex_statement_is_json_and_names_tests_that_exist() -> None:
    """SECURITY.md's statement can be read by a scanner, for this version; the tests that it leans on are there."""
    import json

    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    (block,) = [block for block in blocks(ROOT / "SECURITY.md") if block.language == "json"]
    (statement,) = json.loads(block.body)["statements"]
    assert statement["status"] == "not_affected"
    assert statement["products"][0]["@id"] == f"pkg:pypi/cuplate@{cuplate.__version__}"
    tests = (ROOT / "tests" / "cache" / "test_disk_security.py").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) >= 5
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_versions_agree() -> None:
    """The changelog's newest entry is the version of the package; README's Pythons are those of the metadata."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[?(\d[\w.]*)", changelog, re.M)[0] == cuplate.__version__
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for version in re.findall(r"Programming Language :: Python :: (3\.\d+)", metadata):
        assert version in readme


DOCTESTED = sorted(path for path in ROOT.glob("src/cuplate/**/*.py") if ">>> " in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", DOCTESTED, ids=lambda path: path.stem)
def test_docstrings_show_what_happens(path: Path) -> None:
    """Every example in a docstring runs and gives the result that stands there."""
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted or "+SKIP" in path.read_text(encoding="utf-8")
    assert not found.failed
