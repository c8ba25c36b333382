"""Families of dtypes that shipped functions share; to type checkers they are what jaxtyping's own are."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Real", "RealOrInt32", "ShortFloat"]

if TYPE_CHECKING:
    from typing import Annotated as Real
    from typing import Annotated as RealOrInt32
    from typing import Annotated as ShortFloat
else:
    from jaxtyping import AbstractDtype

    class Real(AbstractDtype):
        """Floats whose arithmetic is done in float32."""

        dtypes = ("float16", "bfloat16", "float32")

    class RealOrInt32(AbstractDtype):
        """`Real`, and int32."""

        dtypes = ("float16", "bfloat16", "float32", "int32")

    class ShortFloat(AbstractDtype):
        """Floats that tensor cores multiply two of a word, summing in float32."""

        dtypes = ("float16", "bfloat16")
