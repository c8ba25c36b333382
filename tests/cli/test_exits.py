"""How the command ends, as a shell sees it: exit codes, closed pipes, interrupts, and what is not installed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cuplate.cache import DiskTier
from cuplate.cli.exits import Exit
from tests.cache.entries import image, put
from tests.cli.conftest import Command

pytest.importorskip("diskcache")

PYTHON = (sys.executable, "-W", "error::ResourceWarning")


def shell(*arguments: object, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: ``python -m cuplate`` with arguments, or some code."""
    what = ("-c", code) if code else ("-m", "cuplate")
    return subprocess.run(
        [*PYTHON, *what, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_each_exit_code_is_reached(keys: dict[str, str], tmp_path: Path) -> None:
    """The codes of scripts, from processes of their own; none ends in a traceback."""
    wanted = {
        ("ls",): Exit.FINE,
        ("verify",): Exit.FINE,
        ("show", keys["f"]): Exit.FINE,
        ("ls", "--kernel", "none"): Exit.FOUND,
        ("show", "0" * 64): Exit.FOUND,
        ("ls", "--sort", "none"): Exit.USAGE,
        ("ls", "--limit", "0"): Exit.USAGE,
        ("ls", "--older-than", "x"): Exit.USAGE,
        ("ls", "--no-such-option"): Exit.USAGE,
        ("clear",): Exit.USAGE,
        ("ls", "-d", str(tmp_path / "none")): Exit.STORE,
        ("none",): Exit.USAGE,
    }
    for arguments, code in wanted.items():
        done = shell("cache", *arguments)
        assert done.returncode == code, (arguments, done)
        assert "Traceback" not in done.stderr
        assert bool(done.stdout) == (code == Exit.FINE), (arguments, done)


@pytest.mark.parametrize(
    ("variable", "value", "code", "said"),
    [
        ("CUPLATE_CACHE_DIR", "off", Exit.STORE, "there is no disk cache (off: CUPLATE_CACHE_DIR)"),
        ("CUPLATE_DISK_BYTES", "many", Exit.USAGE, "CUPLATE_DISK_BYTES is not a size"),
        ("CUPLATE_CONFIG", "/none/pyproject.toml", Exit.USAGE, "/none/pyproject.toml"),
    ],
)
def test_settings_are_those_of_the_library(
    command: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: Exit, said: str
) -> None:
    """What the environment says holds, and a wrong value is named with its variable."""
    monkeypatch.setenv(variable, value)
    done = command("ls")
    assert (done.code, said in done.err) == (code, True)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    """Code 4 and no traceback, for `python -m cuplate` as for the script."""
    code = f"import sys; sys.modules[{missing!r}] = None; from cuplate.cli import main; main()"
    done = shell("cache", "ls", code=code)
    assert (done.returncode, done.stdout) == (Exit.LACKING, "")
    assert done.stderr == f"cuplate: the command line needs {missing}: pip install 'cuplate[cli]'\n"


def test_a_missing_module_of_our_own_is_not_hidden() -> None:
    """An install that is broken says so."""
    code = "import sys; sys.modules['cuplate.cli.look'] = None; from cuplate.cli import main; main()"
    assert "ModuleNotFoundError" in shell("cache", "ls", code=code).stderr


def test_a_closed_pipe_ends_quietly(directory: Path) -> None:
    """As after `| head`: no traceback, nothing on stderr, and the code that a shell gives a program SIGPIPE ended."""
    tier = DiskTier(str(directory), write_wait_s=20.0)
    for number in range(60):
        put(tier, number, function="f" * 900)
    tier.close()
    command = [*PYTHON, "-m", "cuplate", "cache", "ls", "-d", str(directory)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    assert (running.stderr.read(), running.wait()) == (b"", Exit.PIPE)
    running.stderr.close()


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [(">&-", "info", Exit.FINE), ("2>&-", "show 0", Exit.FOUND), ("<&-", "clear", Exit.USAGE)],
)
def test_a_stream_may_be_closed(keys: dict[str, str], closed: str, arguments: str, code: Exit) -> None:
    """What would go there goes nowhere, and to no other stream."""
    line = f"{sys.executable} -m cuplate cache {arguments} {closed}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr


def test_an_interrupt_is_130() -> None:
    """Ctrl-C inside a long command."""
    code = (
        "import signal, sys, cuplate.cli.store as store\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a shell's background jobs are without
        "def slow(*_): print('started', flush=True); import time; time.sleep(60)\n"
        "store.wrong_with = slow\n"
        "from cuplate.cli import main; main()\n"
    )
    command = [*PYTHON, "-c", code, "cache", "verify"]
    directory = os.environ["CUPLATE_CACHE_DIR"]
    tier = DiskTier(directory, write_wait_s=20.0)
    put(tier, 1)
    tier.close()
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "started\n"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out, err) == (Exit.INTERRUPTED, "", "cuplate: interrupted.\n")


def test_looking_needs_no_gpu_driver_compiler_or_array_library(keys: dict[str, str]) -> None:
    """`ls`, `show`, `verify`, `info` and `explain` run where none of these is there, and do not load diskcache."""
    heavy = ("numpy", "jinja2", "jaxtyping", "cuda", "cupy", "torch")
    code = (
        f"import sys\nfor name in {heavy!r}: sys.modules[name] = None\n"
        "from cuplate.cli import main\n"
        "for command in (['ls'], ['ls', '--json'], ['info'], ['verify'], ['show', KEY], ['explain', KEY]):\n"
        "    sys.argv = ['cuplate', 'cache', *command]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, command\n"
        "print('diskcache' in sys.modules)\n"
    ).replace("KEY", repr(keys["f"]))
    done = shell(code=code)
    assert done.stdout.endswith("False\n"), done


def test_the_code_of_a_kernel_goes_to_stdout_too(keys: dict[str, str]) -> None:
    """Byte for byte, for a pipe into a disassembler."""
    command = [*PYTHON, "-m", "cuplate", "cache", "show", keys["f"], "--cubin", "-"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == image()


def test_importing_the_library_loads_no_command_line() -> None:
    """`import cuplate` and its cache know nothing of typer and rich."""
    loaded = "[n for n in sys.modules if n.startswith(('typer', 'rich', 'cuplate.cli'))]"
    code = f"import sys, cuplate.cache; cuplate.cache.info(); print({loaded})"
    assert shell(code=code).stdout == "[]\n"


def test_the_version_and_the_help(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are results: on stdout, code 0; without a command the help comes."""
    import cuplate

    assert shell("--version").stdout == f"{cuplate.__version__}\n"
    done = command("--help")
    assert done.code == 0
    for name in ("info", "ls", "show", "explain", "verify", "prune", "clear", "export", "import", "path"):
        assert f" {name} " in done.out
    told = done.out[done.out.index("Exit codes:") :]
    assert [int(code) for code in re.findall(r"\b\d+\b", told)] == [int(code) for code in Exit]


@pytest.mark.parametrize("words", [("--help",), ("cache", "--help"), ("cache", "ls", "--help")])
def test_no_switch_looks_as_if_it_took_a_value(words: tuple[str, ...]) -> None:
    """``--json``, and not ``--json <bool>``; what takes a value does."""
    said = shell(*words).stdout
    assert "--help" in said
    assert "bool" not in said.lower()
    assert ("--directory" in said) is (words[-2:] == ("ls", "--help"))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_gets_colour_and_lines_that_fit(keys: dict[str, str], width: int) -> None:
    """NO_COLOR takes the colour away; the key is whole at either width."""
    for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        text = on_a_terminal("cache", "show", keys["f"], "--source", width=width, **more)
        assert (re.search(r"\x1b\[[\d;]*[39]\d[;m]", text) is not None) is coloured, text
        listed = on_a_terminal("cache", "ls", width=width, **more, TERM="dumb")
        assert keys["f"][:16] in listed
        assert max(map(len, listed.splitlines())) <= width


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_long_work_shows_a_bar_and_leaves_the_result(keys: dict[str, str]) -> None:
    """On a terminal; the bar is taken away when the work is done."""
    text = on_a_terminal("cache", "verify", width=80)
    assert "checking" in text
    assert text.endswith("4 entries checked, 0 wrong.\r\n")


def on_a_terminal(*arguments: str, width: int, **environment: str) -> str:
    """What a process writes to a terminal of that width."""
    import pty

    ours, theirs = pty.openpty()
    variables = {**os.environ, "COLUMNS": str(width), "TERM": "xterm-256color", **environment}
    variables.pop("CI", None)
    running = subprocess.Popen(
        [*PYTHON, "-m", "cuplate", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=variables
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux's end of file
            break
        if not more:
            break
        text += more
    os.close(ours)
    assert running.wait() == 0, text
    return text.decode()
