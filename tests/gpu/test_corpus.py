"""The corpus on a GPU: every kernel is right there too, twice, and as often as it is launched."""

from __future__ import annotations

import pytest

from tests.corpus.case import Case
from tests.corpus.cases import CASES
from tests.corpus.runner import compare, run_case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gpu_is_right(case: Case) -> None:
    """The GPU gives what the reference says; a second launch, on the hot path, gives the same bits."""
    outputs = run_case(case, arrays="cupy")
    assert [str(d) for d in compare(case, outputs) if not d.allowed] == []
    again = run_case(case, arrays="cupy")
    assert [str(d) for d in compare(case, again, outputs) if not d.identical] == []
