"""Specialized functions that ship with cuplate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuplate.kernels.counts import histogram
    from cuplate.kernels.elementwise import fused_elementwise
    from cuplate.kernels.matmul import matmul_epilogue
    from cuplate.kernels.mma import matmul_mma, matmul_mma_ragged, matmul_mma_tma
    from cuplate.kernels.moves import transpose
    from cuplate.kernels.rows import layer_norm, rms_norm, row_argmax, row_reduce, softmax
    from cuplate.kernels.scan import inclusive_scan, inclusive_scan_large, inclusive_scan_small
    from cuplate.kernels.simt import (
        matmul_simt,
        matmul_simt_balanced,
        matmul_simt_medium,
        matmul_simt_ragged,
        matmul_simt_ragged_medium,
        matmul_simt_ragged_small,
        matmul_simt_ragged_split,
        matmul_simt_ragged_split_small,
        matmul_simt_small,
        matmul_simt_split,
        matmul_simt_split_small,
    )
    from cuplate.kernels.split import matmul_split, matmul_split_small, matmul_split_wide
    from cuplate.kernels.wgmma import (
        matmul_wgmma,
        matmul_wgmma_flat,
        matmul_wgmma_small,
        matmul_wgmma_tuned,
        matmul_wgmma_wide,
    )
    from cuplate.kernels.wgmma_split import (
        matmul_wgmma_single,
        matmul_wgmma_split,
        matmul_wgmma_split_deep,
        matmul_wgmma_split_tall,
        matmul_wgmma_split_tuned,
    )

__all__ = [
    "fused_elementwise",
    "histogram",
    "inclusive_scan",
    "inclusive_scan_large",
    "inclusive_scan_small",
    "layer_norm",
    "matmul_epilogue",
    "matmul_mma",
    "matmul_mma_ragged",
    "matmul_mma_tma",
    "matmul_simt",
    "matmul_simt_balanced",
    "matmul_simt_medium",
    "matmul_simt_ragged",
    "matmul_simt_ragged_medium",
    "matmul_simt_ragged_small",
    "matmul_simt_ragged_split",
    "matmul_simt_ragged_split_small",
    "matmul_simt_small",
    "matmul_simt_split",
    "matmul_simt_split_small",
    "matmul_split",
    "matmul_split_small",
    "matmul_split_wide",
    "matmul_wgmma",
    "matmul_wgmma_flat",
    "matmul_wgmma_single",
    "matmul_wgmma_small",
    "matmul_wgmma_split",
    "matmul_wgmma_split_deep",
    "matmul_wgmma_split_tall",
    "matmul_wgmma_split_tuned",
    "matmul_wgmma_tuned",
    "matmul_wgmma_wide",
    "rms_norm",
    "row_argmax",
    "row_reduce",
    "softmax",
    "transpose",
]

_HOMES = {
    "fused_elementwise": "cuplate.kernels.elementwise",
    "histogram": "cuplate.kernels.counts",
    "inclusive_scan": "cuplate.kernels.scan",
    "inclusive_scan_large": "cuplate.kernels.scan",
    "inclusive_scan_small": "cuplate.kernels.scan",
    "layer_norm": "cuplate.kernels.rows",
    "matmul_epilogue": "cuplate.kernels.matmul",
    "matmul_mma": "cuplate.kernels.mma",
    "matmul_mma_ragged": "cuplate.kernels.mma",
    "matmul_mma_tma": "cuplate.kernels.mma",
    "matmul_simt": "cuplate.kernels.simt",
    "matmul_simt_balanced": "cuplate.kernels.simt",
    "matmul_simt_medium": "cuplate.kernels.simt",
    "matmul_simt_ragged": "cuplate.kernels.simt",
    "matmul_simt_ragged_medium": "cuplate.kernels.simt",
    "matmul_simt_ragged_small": "cuplate.kernels.simt",
    "matmul_simt_ragged_split": "cuplate.kernels.simt",
    "matmul_simt_ragged_split_small": "cuplate.kernels.simt",
    "matmul_simt_small": "cuplate.kernels.simt",
    "matmul_simt_split": "cuplate.kernels.simt",
    "matmul_simt_split_small": "cuplate.kernels.simt",
    "matmul_split": "cuplate.kernels.split",
    "matmul_split_small": "cuplate.kernels.split",
    "matmul_split_wide": "cuplate.kernels.split",
    "matmul_wgmma": "cuplate.kernels.wgmma",
    "matmul_wgmma_flat": "cuplate.kernels.wgmma",
    "matmul_wgmma_single": "cuplate.kernels.wgmma_split",
    "matmul_wgmma_small": "cuplate.kernels.wgmma",
    "matmul_wgmma_split": "cuplate.kernels.wgmma_split",
    "matmul_wgmma_split_deep": "cuplate.kernels.wgmma_split",
    "matmul_wgmma_split_tall": "cuplate.kernels.wgmma_split",
    "matmul_wgmma_split_tuned": "cuplate.kernels.wgmma_split",
    "matmul_wgmma_tuned": "cuplate.kernels.wgmma",
    "matmul_wgmma_wide": "cuplate.kernels.wgmma",
    "rms_norm": "cuplate.kernels.rows",
    "row_argmax": "cuplate.kernels.rows",
    "row_reduce": "cuplate.kernels.rows",
    "softmax": "cuplate.kernels.rows",
    "transpose": "cuplate.kernels.moves",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
