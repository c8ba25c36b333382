"""What every test gets: its own cache directory, no settings from outside, and a GPU or a reason."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.servers import Served, missing_server

GPU_TESTS = Path(__file__).parent / "gpu"
CPP_TESTS = Path(__file__).parent / "backend" / "cpu"

KEPT = ("CUPLATE_REQUIRE_GPU", "CUPLATE_REQUIRE_REDIS", "CUPLATE_REQUIRE_DASK")  # they say what this machine must have

# For the processes that tests start: they find a checkout that is not installed, as pytest's own `pythonpath` does.
SOURCES = str(Path(__file__).parent.parent / "src")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))

# No deadline: a test never fails for being slow. In CI the examples are the same at every run.
hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("here"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


@functools.cache
def missing_gpu() -> str | None:
    """Why the GPU tests cannot run here; None if they can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU: {error}"
    return None if count else "no GPU: the driver lists no device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in a folder of its kind, so that the folder is the only place that says it."""
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker(pytest.mark.gpu)
        if CPP_TESTS in item.path.parents:
            item.add_marker(pytest.mark.cpp)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a GPU test without a GPU, or fail it where the GPU was promised."""
    if item.get_closest_marker("gpu") is None:
        return
    reason = missing_gpu()
    if reason is not None and os.environ.get("CUPLATE_REQUIRE_GPU") == "1":
        pytest.fail(f"CUPLATE_REQUIRE_GPU=1, but {reason}", pytrace=False)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """``serve(*options)`` starts a Redis-protocol server for this test."""
    reason = missing_server()
    if reason is not None and os.environ.get("CUPLATE_REQUIRE_REDIS") == "1":
        pytest.fail(f"CUPLATE_REQUIRE_REDIS=1, but {reason}", pytrace=False)
    if reason is not None:
        pytest.skip(reason)
    started: list[Served] = []

    def start(*options: str) -> Served:
        started.append(Served(tmp_path_factory.mktemp("s"), *options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    """A Redis-protocol server of the test's own."""
    return serve()


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sees none of the developer's settings, and writes neither into their cache nor into a shared /tmp."""
    for variable in [v for v in os.environ if v.startswith("CUPLATE_") and v not in KEPT]:
        monkeypatch.delenv(variable)
    own = tmp_path_factory.mktemp("own")
    for name in ("cache", "temporary"):
        (own / name).mkdir(mode=0o700)
    monkeypatch.setenv("CUPLATE_CACHE_DIR", str(own / "cache"))
    monkeypatch.setenv("TMPDIR", str(own / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", str(own / "temporary"))
