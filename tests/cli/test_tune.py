"""``cuplate cache tune``: the report in a pipe and on a terminal, its picture, its JSON, and what is refused."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cuplate.cache.trace import read_trace
from cuplate.cache.tuning import Tuning, tune
from cuplate.cli.tune import chart, show
from tests.cache.test_tuning import POLICY, name
from tests.cli.conftest import Command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trace of a program that goes through twelve kernels four times."""
    from cuplate.cache.trace import Encoder

    encoder, notes = Encoder(), []
    for at in range(48):
        number = at % 12
        key = name(number)[0].hex()
        if at < 12:
            facts = {
                "function": "f",
                "parameters": f"tile={number}",
                "arch": "sm_90",
                "compile_s": 1.0,
                "code_bytes": 5,
            }
            told = {"place": "/c/v1", "thread": 1, "key": key, "bytes": 100, "tag": "f", "facts": facts}
            notes.append(({"what": "missed", "key": key, "device": 0, "thread": 1}, float(at)))
            notes.append(({"what": "put", **told}, float(at)))
        notes.append((name(number), float(at)))
    path = tmp_path / "trace"
    path.write_bytes(encoder.block([({"what": "start", "pid": 1, "policy": POLICY}, 0.0), *notes]))
    return path


@pytest.fixture
def tuning(file: Path) -> Tuning:
    """What is made of it, with two kernels in memory."""
    return tune(read_trace(file), memory_kernels=2)


def test_the_report_of_a_pipe_is_plain_lines(command: Command, file: Path) -> None:
    """All tables, and the recommendation for an environment and a pyproject.toml; no plot, nothing on stderr."""
    done = command("tune", file, "--memory-kernels", "1")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith("48 look-ups of memory by 1 process in 47.0 s; 12 kernels, 12.0 s")
    assert done.lines[1] == "answered by memory 36, disk 0, layer 0, compile 12"
    for told in (
        "CUPLATE_MEMORY_KERNELS=12",
        "CUPLATE_DISK_BYTES=16000000",
        "CUPLATE_EVICTION=least-recently-used",
        "[tool.cuplate]",
        "memory_kernels = 12",
        "disk_bytes = 16000000",
        'eviction = "least-recently-used"',
    ):
        assert told in done.lines
    assert any(line.startswith("f ") and " tile " in line for line in done.lines)
    assert "█" not in done.out and "\x1b" not in done.out


def test_json_is_the_figures(command: Command, file: Path) -> None:
    """Those of the library, as asked for."""
    done = command("tune", file, "--memory-kernels", 2, "--disk-bytes", "1K", "--disk-bytes", 900, "--json",
                   "--eviction", "none", "--time-to-live", "30d")  # fmt: skip
    want = tune(
        read_trace(file), memory_kernels=2, disk_sizes=[900, 1024], evictions=["none"], time_to_live_s=30 * 86400.0
    )
    assert done.json == {"schema": 1, **json.loads(want.to_json())}


def test_a_terminal_gets_a_plot_of_each_tier(tuning: Tuning) -> None:
    """With a bar for every policy at every size, and every policy named."""
    out = io.StringIO()
    show(tuning, Console(file=out, force_terminal=True, width=120, color_system=None))
    for told in ("miss ratio of the memory tier by kernels", "miss ratio of the disk tier by bytes", "4 █ none"):
        assert told in out.getvalue()


def test_a_bar_is_as_high_as_the_miss_ratio(tuning: Tuning) -> None:
    """Eight lines of eighths: full at the highest, a quarter of it at a quarter."""
    assert tuning.memory is not None
    lines = str(chart(tuning.memory)).splitlines()[2:10]
    sizes = [point.size for point in tuning.memory.curves[0].points]
    columns = ["".join(line[8 + 3 * n] for line in lines) for n in range(len(sizes))]
    assert columns[sizes.index(8)] == "█" * 8  # all miss: a loop that does not fit
    assert columns[sizes.index(12)] == " " * 6 + "██"  # 12 of 48


def test_the_picture_is_a_png(command: Command, file: Path, tmp_path: Path) -> None:
    """Of both tiers."""
    pytest.importorskip("matplotlib")
    done = command("tune", file, "--png", tmp_path / "curves.png")
    assert (done.code, done.out == "") == (0, False)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_picture_is_code_4(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = command("tune", file, "--png", tmp_path / "curves.png")
    assert (done.code, done.err) == (4, "cuplate: --png needs matplotlib: pip install 'cuplate[plot]'\n")
    assert done.out == ""


def test_a_cut_trace_is_replayed_as_far_as_it_goes(command: Command, file: Path) -> None:
    """What is missing is told on stderr."""
    with file.open("ab") as more:
        more.write(b"CUPTRC")
    done = command("tune", file)
    assert done.code == 0 and "CUPLATE_MEMORY_KERNELS=12" in done.lines
    assert "6 bytes from byte" in done.err and "cut" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere",), 3, "a trace cannot be read"),
        ((__file__,), 3, "there is no trace to read"),
        ((), 2, ""),
        (("FILE", "--eviction", "random"), 2, "a policy is not one to replay"),
        (("FILE", "--disk-bytes", "lots"), 2, "--disk-bytes is not a size"),
        (("FILE", "--memory-kernels", "0"), 2, ""),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], code: int, said: str, command: Command, file: Path) -> None:
    """With its exit code and without a traceback."""
    done = command("tune", *(file if word == "FILE" else word for word in arguments))
    assert done.code == code and said in done.err and "Traceback" not in done.err
