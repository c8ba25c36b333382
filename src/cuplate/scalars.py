"""Scalars for signatures: a Python number to type checkers, at run time also the dtype that the kernel gets."""

from __future__ import annotations

from typing import Annotated

import numpy as np

__all__ = ["f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]

f16 = Annotated[float, np.float16]
f32 = Annotated[float, np.float32]
f64 = Annotated[float, np.float64]
i8 = Annotated[int, np.int8]
i16 = Annotated[int, np.int16]
i32 = Annotated[int, np.int32]
i64 = Annotated[int, np.int64]
u8 = Annotated[int, np.uint8]
u16 = Annotated[int, np.uint16]
u32 = Annotated[int, np.uint32]
u64 = Annotated[int, np.uint64]
