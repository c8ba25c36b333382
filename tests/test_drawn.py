"""Drawn calls in host memory, compared with NumPy; `tests/gpu` draws thousands on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import drawn
from tests.layouts import Library, Torch

CHECKS: dict[str, Callable[[Library, Any], None]] = {
    "combine": drawn.check_combine, "total": drawn.check_total, "scaled": drawn.check_scaled
}  # fmt: skip
few = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.parametrize("what", CHECKS)
@few
@given(data=st.data())
def test_a_drawn_call_gives_what_numpy_gives(what: str, data: st.DataObject) -> None:
    """Shapes with empty axes, cut, turned and broadcast views, five dtypes, parameters, scalars; twice each."""
    CHECKS[what](Library(), data)


@few
@given(data=st.data())
def test_a_drawn_call_of_torch_gives_what_numpy_gives(data: st.DataObject) -> None:
    """The same in torch's hands."""
    torch = pytest.importorskip("torch")
    CHECKS[data.draw(st.sampled_from(sorted(CHECKS)))](Torch(torch, "cpu"), data)
