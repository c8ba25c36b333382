"""Descriptors of the tensor memory accelerator, through cuda.core."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from cuplate.backend.cuda import importing
from cuplate.dtypes import DTYPES
from cuplate.errors import LaunchError
from cuplate.tensor_map import MapLayout

with importing:
    from cuda.core._tensor_map import TensorMapDataType, TensorMapL2Promotion, TensorMapSwizzle
    from cuda.core.utils import StridedMemoryView

__all__ = ["Descriptors"]

MOST = 64  # of one plan; memory pools give the same addresses again and again

# A reduction into global memory adds by this type; copies only count bytes, so the rest are bits of their size.
_NAMED = {
    "float16": TensorMapDataType.FLOAT16, "bfloat16": TensorMapDataType.BFLOAT16, "float32": TensorMapDataType.FLOAT32,
    "float64": TensorMapDataType.FLOAT64, "int32": TensorMapDataType.INT32, "int64": TensorMapDataType.INT64,
}  # fmt: skip
_BITS = {
    1: TensorMapDataType.UINT8, 2: TensorMapDataType.UINT16, 4: TensorMapDataType.UINT32, 8: TensorMapDataType.UINT64,
}  # fmt: skip
_SWIZZLES = {
    0: TensorMapSwizzle.NONE, 32: TensorMapSwizzle.SWIZZLE_32B, 64: TensorMapSwizzle.SWIZZLE_64B,
    128: TensorMapSwizzle.SWIZZLE_128B,
}  # fmt: skip
_PROMOTIONS = {
    0: TensorMapL2Promotion.NONE, 64: TensorMapL2Promotion.L2_64B, 128: TensorMapL2Promotion.L2_128B,
    256: TensorMapL2Promotion.L2_256B,
}  # fmt: skip


class _Memory:
    """An address as an array that nobody owns: a descriptor keeps what it was made from, and must keep no memory."""

    __slots__ = ("__cuda_array_interface__",)

    def __init__(self, pointer: int, layout: MapLayout) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (pointer, False),
            "shape": layout.shape,
            "strides": layout.strides,
            "typestr": f"<u{DTYPES[layout.dtype].itemsize}",
            "stream": None,
        }


class Descriptors(dict[int, Any]):
    """Descriptors of one plan's array by its address; what is missing is made.

    Nothing but the address differs between them, so one that is found is right. They are values: the driver copies one
    into each launch, and a captured graph.

    Parameters
    ----------
    layout : MapLayout
    beside : callable
        `cuplate.backend.cuda.device.beside_captures`.
    """

    def __init__(self, layout: MapLayout, beside: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self.layout, self._beside = layout, beside

    def __missing__(self, pointer: int) -> Any:
        layout = self.layout
        size = DTYPES[layout.dtype].itemsize
        try:
            with self._beside():
                view = StridedMemoryView.from_any_interface(_Memory(pointer, layout), stream_ptr=-1)
                made = view.as_tensor_map(
                    box_dim=layout.box,
                    data_type=_NAMED.get(layout.dtype, _BITS.get(size)),
                    swizzle=_SWIZZLES[layout.swizzle],
                    l2_promotion=_PROMOTIONS[layout.l2_promotion],
                )
        except Exception as error:
            raise LaunchError(
                f"a tensor map was refused: {error}", given=f"{layout.dtype} at {pointer:#x}, {layout}"
            ) from error
        if len(self) >= MOST:
            self.clear()
        self[pointer] = made
        return made
