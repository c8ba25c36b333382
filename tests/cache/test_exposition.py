"""The OpenMetrics text, read back by the parser of the Prometheus project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from cuplate import CachePolicy, cache
from cuplate.cache import configure, counts, disk_tier, latencies, openmetrics


def families() -> dict[str, Any]:
    """The text, parsed; the parser refuses what the specification forbids."""
    return {family.name: family for family in text_string_to_metric_families(openmetrics())}


def value(family: Any, **labels: str) -> float:
    """The one sample with these labels."""
    (found,) = [s.value for s in family.samples if s.labels == labels]
    return float(found)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path) -> Any:
    """A store of the test's own."""
    with configure(CachePolicy(directory=tmp_path)):
        yield


def test_it_says_what_the_statistics_say() -> None:
    """Every count of every tier, of all threads, under its unit."""
    tier = disk_tier()
    tier.get(b"k" * 32)
    tier.put(b"k" * 32, b"payload")
    tier.get(b"k" * 32)
    counts.count("shared", hits=3, puts=1, drops=2, seconds=0.5)
    said = cache.stats(all_threads=True)
    found = families()
    assert value(found["cuplate_cache_drops"], tier="shared") == said.shared.drops >= 2
    for tier_name in ("memory", "disk", "shared"):
        for name in ("hits", "misses", "puts", "evictions", "errors", "read_bytes", "written_bytes", "seconds"):
            if (tier_name, name) == ("shared", "evictions"):
                continue
            family = found[f"cuplate_cache_{name}"]
            assert value(family, tier=tier_name) == pytest.approx(getattr(getattr(said, tier_name), name))
            assert family.unit == {"read_bytes": "bytes", "written_bytes": "bytes", "seconds": "seconds"}.get(name, "")
    assert value(found["cuplate_compiles"]) == said.compile.compiles
    assert value(found["cuplate_compile_seconds"]) == pytest.approx(said.compile.seconds)


def test_it_says_what_info_says() -> None:
    """Sizes and limits are gauges; what has no limit has an infinite one."""
    disk_tier().put(b"k" * 32, b"payload")
    found, said = families(), cache.info()
    for name in ("disk_entries", "disk_entry_bytes", "disk_file_bytes", "disk_limit_bytes", "memory_kernels"):
        assert value(found[f"cuplate_{name}"]) == getattr(said, name)
        assert found[f"cuplate_{name}"].type == "gauge"
    with configure(disk_bytes=cache.UNLIMITED):
        assert value(families()["cuplate_disk_limit_bytes"]) == float("inf")


def test_histograms_only_when_asked_for() -> None:
    """Off by default; on, the buckets are cumulated and end at infinity."""
    assert "cuplate_operation_seconds" not in families()
    with latencies():
        for seconds in (3e-6, 0.3, 1000.0):
            counts.count("compile", compiles=1, seconds=seconds)
        family = families()["cuplate_operation_seconds"]
    assert family.type == "histogram"
    labels = {"tier": "compile", "operation": "compile"}
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert (buckets["2e-06"], buckets["5e-06"], buckets["0.5"], buckets["50.0"], buckets["+Inf"]) == (0, 1, 2, 2, 3)
    assert [s.value for s in family.samples if s.name.endswith("_count") and s.labels == labels] == [3]
    assert [s.value for s in family.samples if s.name.endswith("_sum")] == [pytest.approx(1000.300003)]
    assert "cuplate_operation_seconds" not in families()


def test_the_text_ends_as_it_must() -> None:
    """Whoever reads half of it can tell."""
    assert openmetrics().endswith("\n# EOF\n")


def program(code: str, metrics: str) -> subprocess.CompletedProcess[str]:
    """A process that is asked for its metrics."""
    environment = {**os.environ, "CUPLATE_METRICS": metrics}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


LOOK = "from cuplate.cache import disk_tier; disk_tier().get(b'k' * 32)"


def test_a_process_leaves_its_metrics_at_its_end(tmp_path: Path) -> None:
    """Histograms included, in one piece, in a file of its own where the name says so; none without a look-up."""
    assert program("import cuplate.cache", str(tmp_path / "none")).stderr == ""
    assert program(LOOK, str(tmp_path / "one-{pid}.prom")).stderr == ""
    (left,) = [path for path in tmp_path.iterdir() if path.suffix == ".prom"]
    assert left.stem.removeprefix("one-").isdigit()
    found = {family.name: family for family in text_string_to_metric_families(left.read_text())}
    assert value(found["cuplate_cache_misses"], tier="disk") == 1
    assert [s.value for s in found["cuplate_operation_seconds"].samples if s.name.endswith("_count")] == [1]
    assert not (tmp_path / "none").exists()


FORK = f"import multiprocessing, os, sys\ndef look(): {LOOK}\nlook()\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize(
    "child",
    [
        "if not os.fork(): look(); sys.exit()\nos.wait()",
        "c = multiprocessing.get_context('fork').Process(target=look); c.start(); c.join()",
    ],
)
def test_a_forked_child_leaves_its_own_metrics(tmp_path: Path, child: str) -> None:
    """Never in its parent's file: in one of its own, or where the name says nothing of the process in none."""
    program(FORK + child, str(tmp_path / "{pid}.prom"))
    assert len(list(tmp_path.glob("*.prom"))) == 2
    program(f"{FORK}{child}\nos._exit(0)", str(tmp_path / "one"))
    assert not (tmp_path / "one").exists()


def test_metrics_that_cannot_be_written_are_a_warning(tmp_path: Path) -> None:
    """The program ends as it would."""
    done = program(LOOK, str(tmp_path / "nowhere" / "file"))
    assert "CacheWarning: cuplate: the metrics cannot be written" in done.stderr
