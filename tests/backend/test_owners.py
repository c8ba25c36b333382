"""What the libraries say of their arrays, here NumPy's: addresses, and fresh arrays."""

from __future__ import annotations

import numpy as np
import pytest

from cuplate.backend.owners import HOST, find_owner, numpy_address
from cuplate.plan import FRESH_ALIGNMENT


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "complex128", "bool"])
def test_the_address_is_that_of_the_first_element(dtype: str) -> None:
    """Of an array that may be written, and of one that may not."""
    array = np.zeros((3, 5), dtype)[1:]
    assert numpy_address(array) == array.ctypes.data
    array.flags.writeable = False
    assert numpy_address(array) == array.ctypes.data


def test_an_array_is_free_again_after_a_look_at_its_address() -> None:
    """No view of its memory stays behind, which would keep it from being resized."""
    array = np.zeros(4)
    numpy_address(array)
    array.resize(8, refcheck=False)
    assert numpy_address(array) == array.ctypes.data


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 0)])
def test_a_fresh_array_is_aligned_packed_and_writeable(shape: tuple[int, ...]) -> None:
    """As a plan counts on."""
    owner = find_owner("x", np.zeros(1), "f")
    array = owner.empty(shape, "float64", HOST, None)
    assert (array.shape, array.dtype) == (shape, np.float64)
    assert array.ctypes.data % FRESH_ALIGNMENT == 0
    assert array.flags.c_contiguous and array.flags.writeable
