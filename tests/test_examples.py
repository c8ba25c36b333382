"""The examples, run as a user runs them, on a machine that shows no GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from cuplate.testing import check

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
EXAMPLES_RUN = [
    "dask_warmup.py",
    "existing_kernel.py",
    "persistent_cache.py",
    "saxpy.py",
    "tune_cache.py",
    "tune_tile.py",
]
SMALL = ("--m", "40", "--n", "20", "--k", "30")


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """One example in a fresh process that sees no GPU, even where there is one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The ``name value`` lines that come before the receipt."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.partition("\n\n")[0].splitlines()
    return {line[:20].strip(): line[20:] for line in lines}


def test_every_example_is_run_here() -> None:
    """A new example cannot be left out of these tests."""
    assert sorted(p.name for p in EXAMPLES.glob("*.py")) == EXAMPLES_RUN


def test_persistent_cache_misses_then_hits(tmp_path: Path) -> None:
    """The first run compiles and stores; the second, in another process, finds the same key and compiles nothing.

    --clear-cache empties the directory first, and says how much was there.
    """
    options = ("--cache-dir", str(tmp_path), "--m", "100", "--n", "70", "--k", "33", "--tile-size", "32")
    first, second = rows(run("persistent_cache.py", *options)), rows(run("persistent_cache.py", *options))
    assert (first["cache"], second["cache"]) == ("MISS", "HIT")
    assert first["key"] == second["key"] and re.fullmatch("[0-9a-f]{64}", first["key"])
    assert first["compile"].endswith(" ms") and second["compile"] == "skipped"
    assert first["store"].endswith(" ms") and second["store"] == "skipped"
    assert first["cache directory"].startswith(str(tmp_path))
    assert first["workload"] == "relu(a[100, 33] @ b[33, 70] + bias), float32"
    cleared = rows(run("persistent_cache.py", *options, "--clear-cache"))
    assert cleared["cache"] == "MISS" and cleared["cleared"] != "0 entries"


def test_persistent_cache_without_a_gpu_runs_on_the_cpu(tmp_path: Path) -> None:
    """Without a GPU the same kernel runs on the CPU backend, says so, and its result is checked."""
    done = run("persistent_cache.py", "--cache-dir", str(tmp_path), *SMALL)
    found = rows(done)
    assert found["device"].startswith("the CPU: ")
    assert "on the CPU backend, with all checks on" in found["kernel time"]
    assert done.stdout.rstrip().endswith("PASSED")


def test_persistent_cache_for_another_machine_prints_the_receipt(tmp_path: Path) -> None:
    """With --arch it exits with 0, prints the receipt and says that nothing was launched."""
    done = run("persistent_cache.py", "--cache-dir", str(tmp_path), "--arch", "sm_90")
    assert rows(done)["device"].startswith("none: ")
    receipt = done.stdout.partition("\n\n")[2]
    for fact in ("registers", "spilled", "sm_90", "grid       (16, 16, 1)", "block      (16, 16, 1)"):
        assert fact in receipt
    assert "Nothing was launched" in receipt
    assert "PASSED" not in done.stdout and "FAILED" not in done.stdout


def test_persistent_cache_options_change_the_key(tmp_path: Path) -> None:
    """Tile, epilogue and architecture each are another kernel; a size is not."""
    place = ("--cache-dir", str(tmp_path), *SMALL, "--arch", "sm_90")
    variants = [(), ("--tile-size", "32"), ("--epilogue", "identity"), ("--arch", "sm_80")]
    keys = [rows(run("persistent_cache.py", *place, *v))["key"] for v in variants]
    assert len(set(keys)) == len(keys)
    assert rows(run("persistent_cache.py", *place, "--m", "7"))["key"] == keys[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tile-size", "8"), "choose from 16, 32"),
        (("--epilogue", "gelu"), "choose from"),
        (("--m", "0"), "'0' is not a whole number of at least 1"),
        (("--iterations", "many"), "'many' is not a whole number of at least 1"),
        (("--warmup", "-1"), "'-1' is not a whole number of at least 0"),
        (("--cache-dir", __file__), "is not a directory"),
    ],
)
def test_persistent_cache_refuses_bad_options(
    options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad value names its option and what is allowed, and nothing runs."""
    monkeypatch.setattr(sys, "argv", ["persistent_cache.py", *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "persistent_cache.py"), run_name="__main__")
    done = capsys.readouterr()
    assert ended.value.code == 2 and done.out == ""
    assert f"argument {options[0]}" in done.err and said in done.err


def test_persistent_cache_refuses_an_unknown_architecture(tmp_path: Path) -> None:
    """What cuplate refuses ends the program with 1 and cuplate's own message, not with a traceback."""
    done = run("persistent_cache.py", "--cache-dir", str(tmp_path), "--arch", "sm_1")
    assert done.returncode == 1
    assert "sm_1" in done.stderr and "allowed" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["saxpy.py", "existing_kernel.py"])
def test_a_bound_template_passes(name: str) -> None:
    """The small examples run on the CPU backend without a GPU, and their results are checked."""
    done = run(name)
    assert done.returncode == 0 and done.stdout.rstrip().endswith("PASSED"), done.stdout + done.stderr
    assert "on the CPU backend" in done.stdout and "arch       host" in done.stdout


def test_tune_cache_recommends_what_its_work_needs(tmp_path: Path) -> None:
    """Five kernels, one of them never used again, and two parameters that cause variants."""
    done = run("tune_cache.py", "--rounds", "2", "--json", str(tmp_path / "tuning.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert 'disk_bytes = 16000000\neviction = "least-recently-used"' in done.stdout
    assert "never used again after their compile: 1 entries" in done.stdout
    told = json.loads((tmp_path / "tuning.json").read_text())
    assert told["kernels"] == 5
    assert {(cause["parameter"], cause["values"], cause["without"]) for cause in told["causes"]} == {
        ("arch", 3, 2),
        ("tile", 2, 3),
    }
    assert told["disk"]["curves"][0]["points"][-1]["hits"] == 4


def test_tune_tile_measures_once_and_then_knows() -> None:
    """The first run measures every candidate; the second finds the table, and the result is right in both."""
    said = [run("tune_tile.py", "--n", "1000").stdout.splitlines() for _ in range(2)]
    assert said[0][-1] == said[1][-1] == "PASSED"
    assert said[0][1].startswith("twice: measured in") and said[1][1].startswith("twice: stored on CPU")
    assert said[0][2:-1] == said[1][2:-1] and len(said[0][2:-1]) == 3
    assert sum(line.startswith("* block_x=") for line in said[0]) == 1


def test_the_gallery_checks_each_step_that_can_run_here() -> None:
    """Five kernels run on the CPU backend and are right; the last three say that they are not for it."""
    done = run("gallery/steps.py")
    lines = done.stdout.splitlines()[1:]
    assert (done.returncode, lines.pop()) == (0, "PASSED"), done.stdout + done.stderr
    assert [line[43:].strip() for line in lines] == ["right"] * 5 + ["not for this device"] * 3


def test_the_existing_kernel_keeps_its_own_parameter_list() -> None:
    """sgemm.cu is compiled as it stands: the rendered source is the file."""
    code = "import existing_kernel as e; print(e.sgemm.inspect(arch='sm_90').source, end='')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(EXAMPLES)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (EXAMPLES / "sgemm.cu").read_text().strip()


def test_the_check_of_the_example_can_fail() -> None:
    """persistent_cache accepts the float32 product and refuses a NaN, one wrong element, and a missing relu."""
    code = """
import argparse, numpy as np, persistent_cache as p
options = argparse.Namespace(m=9, n=7, k=200, epilogue="relu")
a, b, bias = p.operands(options)
raw = a @ b + bias
good = np.maximum(raw, 0)
assert p.check(options, good)
for index, value in (((0, 0), np.nan), ((8, 6), good[8, 6] + 0.1)):
    bad = good.copy()
    bad[index] = value
    assert not p.check(options, bad), index
assert not p.check(options, raw)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(EXAMPLES)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["saxpy", "sgemm"])
def test_the_examples_kernels_agree_with_their_references(name: str) -> None:
    """On drawn calls, on the CPU backend with all checks on."""
    file = EXAMPLES / {"saxpy": "saxpy.py", "sgemm": "existing_kernel.py"}[name]
    spec = importlib.util.spec_from_file_location(f"example_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    assert check(getattr(module, name), arrays="numpy", examples=8).device == "cpu"
