"""The examples on a GPU, each run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """One example in a fresh process."""
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The ``name value`` lines."""
    return {line[:20].strip(): line[20:] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("epilogue", ["identity", "relu"])
@pytest.mark.parametrize("tile", ["16", "32"])
def test_persistent_cache_misses_then_hits_and_passes_twice(tile: str, epilogue: str, tmp_path: Path) -> None:
    """A fresh directory gives MISS and PASSED, the next process HIT and PASSED with no compile."""
    options = ("--cache-dir", str(tmp_path), "--tile-size", tile, "--epilogue", epilogue, "--iterations", "20")
    found = []
    for cache in ("MISS", "HIT"):
        done = run("persistent_cache.py", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.rstrip().endswith("PASSED")
        found.append(rows(done))
        assert found[-1]["cache"] == cache
    first, second = found
    assert first["key"] == second["key"]
    assert second["compile"] == second["store"] == "skipped"
    assert float(second["load"].removesuffix(" ms")) > 0
    assert float(first["kernel time"].split()[0]) > 0
    assert first["device"].startswith("0, ") and "." in first["compute capability"]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (100, 33, 70), (257, 1, 15)], ids=str)
def test_persistent_cache_is_right_at_ragged_sizes(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    """Sizes that no tile divides pass the check against float64 too, with no warm-up and one launch."""
    m, k, n = map(str, sizes)
    options = ("--m", m, "--k", k, "--n", n, "--warmup", "0", "--iterations", "1", "--cache-dir", str(tmp_path))
    done = run("persistent_cache.py", *options)
    assert done.returncode == 0 and done.stdout.rstrip().endswith("PASSED"), done.stdout + done.stderr


def test_persistent_cache_names_the_devices_that_exist(tmp_path: Path) -> None:
    """A device that is not there ends the program with 1 and the allowed range."""
    done = run("persistent_cache.py", "--device", "4096", "--cache-dir", str(tmp_path))
    assert done.returncode == 1
    assert "--device 4096" in done.stderr and "0 to " in done.stderr and "Traceback" not in done.stderr


def test_arch_compiles_and_launches_nothing(tmp_path: Path) -> None:
    """--arch asks for the receipt alone, on a machine with a GPU too."""
    done = run("persistent_cache.py", "--arch", "sm_80", "--cache-dir", str(tmp_path))
    assert done.returncode == 0 and "Nothing was launched" in done.stdout and "PASSED" not in done.stdout


@pytest.mark.parametrize("name", ["saxpy.py", "existing_kernel.py"])
def test_a_bound_template_passes(name: str) -> None:
    """The small examples launch and agree with their references."""
    done = run(name)
    assert done.returncode == 0 and done.stdout.rstrip().endswith("PASSED"), done.stdout + done.stderr
