"""At least 2,000 drawn calls on the GPU, compared with NumPy: CuPy's, torch's, and arrays known by a protocol alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import drawn
from tests.gpu.test_layouts import LIBRARIES

CALLS = {"combine": 1200, "total": 500, "scaled": 600}
CHECKS = {
    "combine": lambda library, data: drawn.check_combine(library, data, drawn.DTYPES),
    "total": drawn.check_total,
    "scaled": drawn.check_scaled,
}


def libraries() -> list[Any]:
    """Those that are here; torch and CuPy must be where the other tests need them."""
    made = []
    for make in LIBRARIES.values():
        try:
            made.append(make())
        except pytest.skip.Exception:
            continue
    return made


@pytest.mark.parametrize("what", CHECKS)
def test_a_drawn_call_gives_what_numpy_gives(what: str, record_property: Any) -> None:
    """Shapes with empty axes, cut, turned and broadcast views, ten dtypes, parameters, scalars; twice each."""
    drawn_calls: Counter[str] = Counter()
    here = libraries()

    @settings(max_examples=CALLS[what], database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def draw(data: st.DataObject) -> None:
        library = data.draw(st.sampled_from(here), "library")
        CHECKS[what](library, data)
        drawn_calls[library.name] += 1

    draw()
    record_property("calls", dict(drawn_calls))
    print(what, dict(drawn_calls))
    assert drawn_calls.total() >= 0.9 * CALLS[what], "too few of the drawn calls were made"
