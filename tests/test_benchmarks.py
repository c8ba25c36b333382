"""The benchmarks run where there is no GPU, say what they could not measure, and write what they found."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.doubles import install

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


def run(name: str, tmp_path: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The JSON and the text of one benchmark, in a process that sees no GPU."""
    output = tmp_path / f"{name}.json"
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--output", str(output), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(output.read_text())
    assert found["benchmark"] == name and found["quick"] is True
    assert set(found["machine"]) == {"date", "system", "python", "gpu", "versions"}
    return found, done.stdout


@pytest.fixture(scope="module")
def measuring() -> ModuleType:
    """benchmarks/measuring.py as a module."""
    spec = importlib.util.spec_from_file_location("measuring", BENCHMARKS / "measuring.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def test_import_time_compares_with_numpy(tmp_path: Path) -> None:
    """import_time judges cuplate against NumPy, from rows that it measured."""
    found, text = run("import_time", tmp_path)
    medians = {row["name"]: row["median"] for row in found["rows"]}
    assert medians["import numpy"] > medians["nothing"]
    assert [goal["name"] for goal in found["goals"]] == ["import cuplate / import numpy"]
    assert "import cuplate / import numpy" in text


def test_bundle_is_judged_by_its_mount_and_by_the_disk_tier(tmp_path: Path) -> None:
    """bundle times mounts in fresh processes, and hits beside the disk tier's."""
    found, _ = run("bundle", tmp_path)
    assert [goal["limit"] for goal in found["goals"]] == [5.0, 1.0, 1.0]
    names = [row["name"] for row in found["rows"]]
    assert "bundle of 200: mount and first hit" in names and "hit of 61440 bytes: disk tier" in names


def test_cold_start_measures_look_ups_without_a_gpu(tmp_path: Path) -> None:
    """cold_start times both stores' look-ups and openings, and compiles; loads it leaves out, and says so."""
    found, text = run("cold_start", tmp_path)
    names = {row["name"] for row in found["rows"]}
    for who in ("cuplate", "FileStreamProgramCache"):
        assert {f"{who}: opening", f"{who}: look-up"} <= names
    assert {"first compile, cold", "first compile, warm", "render + compile, matmul_wgmma, relu"} <= names
    assert not any("load" in name for name in names)
    assert "Loads and calls were not measured" in text


@pytest.mark.parametrize("name", ["dispatch", "gemm", "gemm_sweep", "gallery", "checks", "memory", "memory_bound"])
def test_what_needs_a_gpu_says_so(name: str, tmp_path: Path) -> None:
    """Without a GPU no goal of the device is judged, and the text says why."""
    found, text = run(name, tmp_path)
    assert found["goals"] == []
    assert "measured" in text and found["machine"]["gpu"].startswith("none: ")


def test_autotune_starts_tuned_and_compares_warm_calls(tmp_path: Path) -> None:
    """Its children find the winner and compile nothing, which they assert; the goal is a ratio of warm calls."""
    found, text = run("autotune", tmp_path)
    names = {row["name"] for row in found["rows"]}
    assert {"the first call of a process, tuned", "a warm call in host memory, tuned", "a stored winner costs"} <= names
    assert [goal["name"] for goal in found["goals"]] == ["a warm call in host memory, tuned / given"]
    assert "Calls on a GPU were not measured" in text


def test_all_collects_every_benchmark(tmp_path: Path) -> None:
    """all.py runs what it is told to and leaves one JSON and one log each."""
    command = [sys.executable, str(BENCHMARKS / "all.py"), "--quick", "--output", str(tmp_path), "--only", "dispatch"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dispatch.json", "dispatch.log"]
    assert "dispatch: needs a GPU" in done.stdout


def test_checks_cuts_every_check_out_of_the_generated_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is found in the text that calls run today, and the call without it still launches the same."""
    gpu = install(monkeypatch)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    checks = importlib.import_module("checks")
    a, b, bias, out = gpu.array((32, 32)), gpu.array((32, 32)), gpu.array(32), gpu.array((32, 32))
    assert checks.cut("anything", None) == "anything"
    for check in checks.CHECKS:
        with checks.without(check) as changed:
            function = checks.bind()
            for _ in range(3):
                function(a, b, bias, out=out)
        assert any(changed), check
        for varied in (True, False):
            call = checks.caller(function, a, b, bias, out, varied=varied)
            before, hits = len(gpu.launches), function.cache_info().hits
            for _ in range(3):
                call()
            assert len(gpu.launches) == before + 3, check
            assert function.cache_info().hits == hits + 3 * (check != "tick and count"), check


def test_the_gallery_is_drawn_from_what_a_run_wrote(tmp_path: Path) -> None:
    """Each step is a bar with its idea and its figure, each dtype a panel with its own line for cuBLAS."""
    pytest.importorskip("matplotlib")
    rows = [
        {
            "name": "a",
            "dtype": "float32",
            "size": 8,
            "tflops": 12.34,
            "of_peer": 0.3,
            "step": 1,
            "idea": "the first idea",
        },
        {
            "name": "b",
            "dtype": "bfloat16",
            "size": 8,
            "tflops": 567.8,
            "of_peer": 0.9,
            "step": 2,
            "idea": "the second idea",
        },
        {"name": "peer", "dtype": "float32", "size": 8, "tflops": 45.6},
        {"name": "peer", "dtype": "bfloat16", "size": 8, "tflops": 654.3},
    ]
    found = tmp_path / "found.json"
    found.write_text(json.dumps({"rows": rows, "machine": {"gpu": "a card, driver", "date": "2026-01-02T00:00"}}))
    command = [sys.executable, str(BENCHMARKS / "gallery.py"), "--draw", str(found), str(tmp_path / "plot.svg")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    text = (tmp_path / "plot.svg").read_text()
    for said in (
        "the first idea  1",
        "the second idea  2",
        " 12.3<",
        " 568<",
        "cuBLAS 45.6",
        "cuBLAS 654",
        "a card, 2026-01-02",
    ):
        assert said in text, said


def test_all_knows_every_benchmark() -> None:
    """A new benchmark cannot be left out of all.py, nor of what report.py writes."""
    parts = {"all", "loopback", "measuring", "report", "simulation", "triton_matmul", "triton_rows"}
    for name, listed in (("all", "NAMES"), ("report", "ORDER")):
        spec = importlib.util.spec_from_file_location(f"{name}_benchmarks", BENCHMARKS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert set(getattr(module, listed)) == {p.stem for p in BENCHMARKS.glob("*.py")} - parts


def test_a_goal_is_missed_by_nan(measuring: ModuleType) -> None:
    """A figure that could not be computed never passes."""
    assert measuring.Goal("g", 1.0, 1.0).passed
    assert not measuring.Goal("g", 1.1, 1.0).passed
    assert not measuring.Goal("g", float("nan"), 1.0).passed


def test_a_ratio_is_held_to_its_worse_reading(measuring: ModuleType) -> None:
    """One lucky reading of two does not pass a goal."""
    found = measuring.ratio([1.0, 2.0, 9.0], [1.0, 4.0, 3.0])
    assert (found.of_medians, found.median_of_rounds) == (2 / 3, 1.0)
    assert found.worse == 1.0


def test_bursts_interleave_all_contenders(measuring: ModuleType) -> None:
    """Every round runs every contender once, drains after each, and orders are not always the same."""
    calls: list[str] = []
    contenders = {name: (lambda name=name: calls.append(name)) for name in "abcd"}
    times = measuring.time_bursts(contenders, lambda: calls.append("drain"), rounds=8, calls=1)
    rounds = [tuple(calls[i : i + 8 : 2]) for i in range(8, len(calls), 8)]
    assert len(rounds) == 8 and all(sorted(r) == list("abcd") for r in rounds)
    assert calls[1::2] == ["drain"] * (len(calls) // 2)
    assert len(set(rounds)) > 1
    assert all(len(values) == 8 for values in times.values())


def test_events_interleave_all_contenders(measuring: ModuleType) -> None:
    """Every round runs every contender between two events of its own, and waits only at its end."""
    log: list[str] = []

    class Event:
        def record(self) -> None:
            self.at = len(log)
            log.append("record")

        def synchronize(self) -> None:
            log.append("synchronize")

        def elapsed_time(self, later: Any) -> float:
            return float(later.at - self.at - 1)

    contenders = {name: (lambda name=name: log.append(name)) for name in "abc"}
    times = measuring.time_events(contenders, Event, rounds=20, calls=2)
    assert all(values == [1.0] * 20 for values in times.values())  # two calls between its events, divided by two
    rounds = ["".join(log[i : i + 11]) for i in range(0, len(log), 11)]
    assert all(text.count("synchronize") == 1 and text.endswith("synchronize") for text in rounds)
    assert len(rounds) == 20 and len(set(rounds)) > 1
