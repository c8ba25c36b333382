"""The folder of tests that need CuPy and a GPU: skipped where they are missing, failed where they were promised.

`tests/conftest.py` decides it test by test; here it is decided before a module is imported, so that a test module may
import CuPy at its top.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

import cuplate
from cuplate.events import Event
from tests.conftest import missing_gpu


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """A module of this folder, unless nothing in it can run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what CuPy says while it is imported is not ours
        reason = missing_gpu()
    return None if reason is None else Unavailable.from_parent(parent, path=module_path)


class Unavailable(pytest.Module):
    """A module that cannot run here: one skip, or with ``CUPLATE_REQUIRE_GPU=1`` one error."""

    def collect(self) -> NoReturn:
        if os.environ.get("CUPLATE_REQUIRE_GPU") == "1":
            raise self.CollectError(f"CUPLATE_REQUIRE_GPU=1, but {missing_gpu()}")
        pytest.skip(str(missing_gpu()), allow_module_level=True)


@pytest.fixture(scope="session")
def cp() -> ModuleType:
    """CuPy."""
    import cupy

    return cupy  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """PyTorch, with a GPU; the tests that use it are skipped without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch", exc_type=ImportError)
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return torch  # type: ignore[no-any-return]


@pytest.fixture
def launches() -> Iterator[list[Event]]:
    """Every launch of the test so far."""
    heard: list[Event] = []
    with cuplate.subscribe(heard.append, "launch"):
        yield heard


@pytest.fixture
def device_memory(cp: Any) -> Iterator[Any]:
    """CuPy's memory pool, emptied afterwards: for tests that take gigabytes."""
    pool = cp.get_default_memory_pool()
    yield pool
    pool.free_all_blocks()
