"""The shipped functions, as far as no GPU is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuplate import ArraySpec, ParameterError
from cuplate.kernels import matmul_epilogue
from tests.doubles import install


def key(**parameters: Any) -> str:
    """Content key of a specialization."""
    return matmul_epilogue.inspect("float32", arch="sm_90", **parameters).key


def test_relu_is_the_short_spelling_of_an_epilogue() -> None:
    """``relu=True`` and ``epilogue="relu"`` render alike, so they share a cubin; so do the spellings of identity."""
    assert key(relu=True) == key(epilogue="relu") == key(relu=True, epilogue="relu")
    assert key() == key(relu=False) == key(epilogue="identity") == key(relu=False, epilogue="identity")
    assert len({key(), key(relu=True), key(tile=32), key(tile=32, relu=True)}) == 4


@pytest.mark.parametrize("at_odds", [{"relu": True, "epilogue": "identity"}, {"relu": False, "epilogue": "relu"}])
def test_both_spellings_at_odds_are_an_error(at_odds: dict[str, Any]) -> None:
    """Neither wins silently."""
    with pytest.raises(ParameterError, match="does not hold") as caught:
        key(**at_odds)
    assert "relu" in str(caught.value) and "epilogue" in str(caught.value)


def test_equal_spellings_share_one_loaded_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second spelling loads nothing."""
    gpu = install(monkeypatch)
    a, b, bias = gpu.array((40, 30)), gpu.array((30, 50)), gpu.array((50,))
    for spelling in ({"relu": True}, {"epilogue": "relu"}, {"relu": True, "epilogue": "relu"}):
        matmul_epilogue(a, b, bias, **spelling)
    assert len(gpu.notes("load")) == 1 and len(gpu.launches) == 3
    matmul_epilogue.reload()


@pytest.mark.parametrize(("tile", "grid"), [(16, (32, 63, 1)), (32, (16, 32, 1))])
def test_the_grid_covers_ragged_sizes(tile: Any, grid: tuple[int, int, int]) -> None:
    """x covers N and y covers M, rounded up; a block is one tile."""
    report = matmul_epilogue.inspect(
        ArraySpec((1000, 300)), ArraySpec((300, 500)), ArraySpec((500,)), tile=tile, arch="sm_80"
    )
    assert report.grid is not None and report.grid.grid == grid
    assert report.block == (tile, tile, 1)
    assert report.cubin.resources.static_shared_bytes == 2 * tile * tile * 4
    assert (report.cubin.resources.spill_store_bytes, report.cubin.resources.spill_load_bytes) == (0, 0)


@pytest.mark.parametrize("tile", [17, 16.0, True, "16"])
def test_a_tile_outside_its_literal_is_refused(tile: Any) -> None:
    """By type as well as by value."""
    with pytest.raises(ParameterError, match="tile") as caught:
        key(tile=tile)
    assert "16, 32" in str(caught.value)


def test_the_reference_is_the_definition() -> None:
    """The body computes what the kernel does, on NumPy arrays; a call never runs it."""
    rng = np.random.default_rng(0)
    a, b, bias = rng.standard_normal((3, 4)), rng.standard_normal((4, 5)), rng.standard_normal(5)
    assert np.allclose(matmul_epilogue.reference(a, b, bias), a @ b + bias)
    assert np.allclose(matmul_epilogue.reference(a, b, bias, relu=True), np.maximum(a @ b + bias, 0))
    assert np.allclose(matmul_epilogue.reference(a, b, bias, epilogue="relu"), np.maximum(a @ b + bias, 0))
