"""Two results of one call: the same but for rounding, or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuplate.autotune import agree
from cuplate.autotune.agree import Tolerance, as_numbers, difference

FLOATS = ["float16", "float32", "float64", "complex64", "complex128"]


def raw(values: Any, dtype: str) -> Any:
    """Bytes of some values."""
    return np.frombuffer(np.asarray(values, dtype).tobytes(), np.uint8)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_rounding_is_no_difference_and_a_wrong_element_is_one(dtype: str) -> None:
    """One unit in the last place of the largest magnitude passes; a hundredth of it does not."""
    wanted = np.arange(1, 9).astype(dtype)
    eps = np.finfo(dtype).eps
    near, far = wanted.copy(), wanted.copy()
    near[2] += 8 * eps
    far[2] += 0.5
    assert difference(raw(near, dtype), raw(wanted, dtype), dtype, Tolerance()) is None
    told = difference(raw(far, dtype), raw(wanted, dtype), dtype, Tolerance())
    assert told is not None and told.startswith("element 2 is 3.5, not 3.0 (1 differ)"), told


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "uint64"])
def test_integers_are_equal_or_not(dtype: str) -> None:
    """By one is too much; 2**63 + 1 is not 2**63."""
    wanted = np.array([0, 1, 1], dtype)
    if dtype == "uint64":
        wanted += np.uint64(2**63)
    got = wanted.copy()
    assert difference(raw(got, dtype), raw(wanted, dtype), dtype, Tolerance(rtol=1.0)) is None
    got[0] ^= 1
    assert "(1 differ)" in str(difference(raw(got, dtype), raw(wanted, dtype), dtype, Tolerance(rtol=1.0)))


def test_sums_of_more_terms_may_differ_by_more() -> None:
    """Two orders of a sum of n terms; what is narrower than float32 is taken to be summed in it."""
    for dtype, few, many in (("float32", 16, 4096), ("float16", 16, 1 << 40)):
        wanted = np.ones(4, dtype)
        got = wanted + 40 * np.finfo(dtype).eps.astype(dtype)
        assert difference(raw(got, dtype), raw(wanted, dtype), dtype, Tolerance(terms=few))
        assert difference(raw(got, dtype), raw(wanted, dtype), dtype, Tolerance(terms=many)) is None


def test_a_tolerance_that_is_given_is_all_there_is() -> None:
    """``atol + rtol * |value|``, of each element."""
    wanted, got = np.array([1.0, 100.0]), np.array([1.1, 101.0])
    assert difference(raw(got, "float64"), raw(wanted, "float64"), "float64", Tolerance(rtol=0.02))
    assert difference(raw(got, "float64"), raw(wanted, "float64"), "float64", Tolerance(0.02, 0.1)) is None
    assert difference(raw(got, "float64"), raw(wanted, "float64"), "float64", Tolerance(atol=0.0))


def test_nan_and_infinity_agree_with_themselves_alone() -> None:
    """And an infinite element does not make every difference small."""
    wanted = np.array([np.nan, np.inf, 1.0], np.float32)
    other_nan = wanted.copy()
    other_nan.view(np.uint32)[0] ^= 1
    assert difference(raw(other_nan, "float32"), raw(wanted, "float32"), "float32", Tolerance()) is None
    for index, value in ((0, 1.0), (1, 1e30), (1, -np.inf), (2, np.nan), (2, 2.0)):
        got = wanted.copy()
        got[index] = value
        assert difference(raw(got, "float32"), raw(wanted, "float32"), "float32", Tolerance()), (index, value)


def test_what_numpy_has_no_name_for_is_read_by_its_bits() -> None:
    """bfloat16 and both kinds of float8, against values that are known."""
    assert as_numbers(raw([0x3F80, 0xC000, 0x7F80, 0x3F81], "uint16"), "bfloat16").tolist() == [
        1.0, -2.0, np.inf, 1.0078125
    ]  # fmt: skip
    assert as_numbers(raw([0x38, 0xB8, 0x7E, 0x01, 0x00], "uint8"), "float8_e4m3fn").tolist() == [
        1.0, -1.0, 448.0, 2.0**-9, 0.0
    ]  # fmt: skip
    assert np.isnan(as_numbers(raw([0x7F, 0xFF], "uint8"), "float8_e4m3fn")).all()
    assert as_numbers(raw([0x3C, 0x7B, 0x7C], "uint8"), "float8_e5m2").tolist() == [1.0, 57344.0, np.inf]
    assert difference(raw([0x3F81], "uint16"), raw([0x3F80], "uint16"), "bfloat16", Tolerance()) is None
    assert difference(raw([0x4000], "uint16"), raw([0x3F80], "uint16"), "bfloat16", Tolerance())


def test_large_arrays_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference in a later piece has the place it has in the whole, and all are counted."""
    monkeypatch.setattr(agree, "_CHUNK", 4)
    wanted = np.zeros(19)
    got = wanted.copy()
    got[[9, 18]] = 1
    told = difference(raw(got, "float64"), raw(wanted, "float64"), "float64", Tolerance())
    assert told == "element 9 is 1.0, not 0.0 (2 differ)"
