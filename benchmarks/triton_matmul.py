"""The matrix product of `dispatch.py` in Triton: relu(a @ b + bias), one 32 x 32 tile a program."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def matmul_relu(a, b, bias, out, M, N, K, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        left = tl.load(
            a + rows[:, None] * K + (k + inner)[None, :],
            mask=(rows[:, None] < M) & ((k + inner)[None, :] < K),
            other=0.0,
        )
        right = tl.load(
            b + (k + inner)[:, None] * N + columns[None, :],
            mask=((k + inner)[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        total += tl.dot(left, right, input_precision="ieee")
    total += tl.load(bias + columns, mask=columns < N, other=0.0)[None, :]
    where = out + rows[:, None] * N + columns[None, :]
    tl.store(where, tl.maximum(total, 0.0), mask=(rows[:, None] < M) & (columns[None, :] < N))


def launch(a: Any, b: Any, bias: Any, out: Any, grid: tuple[int, int], sizes: tuple[int, int, int]) -> None:
    matmul_relu[grid](a, b, bias, out, *sizes, BLOCK=32)
