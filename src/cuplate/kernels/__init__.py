"""Specialized functions that ship with cuplate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuplate.kernels.matmul import matmul_epilogue
    from cuplate.kernels.simt import matmul_simt, matmul_simt_ragged

__all__ = ["matmul_epilogue", "matmul_simt", "matmul_simt_ragged"]

_HOMES = {
    "matmul_epilogue": "cuplate.kernels.matmul",
    "matmul_simt": "cuplate.kernels.simt",
    "matmul_simt_ragged": "cuplate.kernels.simt",
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
