"""Softmax and norms of rows in Triton, a program a row as in its tutorials: peers of `memory_bound.py`."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, out, C, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * C
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    value = tl.load(x + row + columns, mask=inside, other=float("-inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row + columns, value / tl.sum(value, axis=0), mask=inside)


@triton.jit
def layer_norm_rows(x, weight, bias, out, C, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * C
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    value = tl.load(x + row + columns, mask=inside, other=0.0)
    value = tl.where(inside, value - tl.sum(value, axis=0) / C, 0.0)
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / C + eps)
    factor, shift = tl.load(weight + columns, mask=inside), tl.load(bias + columns, mask=inside)
    tl.store(out + row + columns, value * factor + shift, mask=inside)


@triton.jit
def rms_norm_rows(x, weight, out, C, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * C
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    value = tl.load(x + row + columns, mask=inside, other=0.0)
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / C + eps)
    tl.store(out + row + columns, value * tl.load(weight + columns, mask=inside), mask=inside)


def launch(kernel: Any, *arrays: Any, eps: float | None = None) -> Any:
    """Rows of the first tensor into the last, with as many warps as the tutorials choose; returns the last."""
    rows, columns = arrays[0].shape
    block = triton.next_power_of_2(columns)
    numbers = (columns,) if eps is None else (columns, eps)
    kernel[(rows,)](*arrays, *numbers, BLOCK=block, num_warps=min(max(block // 256, 1), 16))
    return arrays[-1]
