"""The matrix product of `dispatch.py` in Triton: relu(a @ b + bias), one 32 x 32 tile a program."""

from __future__ import annotations

from typing import Any

import torch
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
    """With everything prepared that can be: the least that a call of Triton costs."""
    matmul_relu[grid](a, b, bias, out, *sizes, BLOCK=32)


@triton.jit
def matmul_tf32x3(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """a @ b of float32 by three products of TF32, for sizes that the tile divides, in the tutorial's raster."""
    tiles_m, tiles_n = M // BM, N // BN
    band = tl.program_id(0) // (GROUP * tiles_n)
    height = min(tiles_m - band * GROUP, GROUP)
    row = band * GROUP + tl.program_id(0) % (GROUP * tiles_n) % height
    column = tl.program_id(0) % (GROUP * tiles_n) // height
    rows, columns, inner = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    left, right = a + rows[:, None] * K + inner[None, :], b + inner[:, None] * N + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(left), tl.load(right), total, input_precision="tf32x3")
        left += BK
        right += BK * N
    tl.store(out + rows[:, None] * N + columns[None, :], total)


def tf32x3(a: Any, b: Any, out: Any) -> Any:
    """`matmul_tf32x3` with the tile that was the fastest of those tried on an H200."""
    (M, K), N = a.shape, b.shape[1]
    grid = (M // 128 * (N // 128),)
    matmul_tf32x3[grid](a, b, out, M, N, K, BM=128, BN=128, BK=32, GROUP=8, num_warps=8, num_stages=3)
    return out


@triton.jit
def strided_matmul_relu(
    a, b, bias, out, M, N, K, a_row, a_column, b_row, b_column, out_row, out_column, BLOCK: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        ks = k + inner
        left_mask = (rows[:, None] < M) & (ks[None, :] < K)
        left = tl.load(a + rows[:, None] * a_row + ks[None, :] * a_column, mask=left_mask, other=0.0)
        right_mask = (ks[:, None] < K) & (columns[None, :] < N)
        right = tl.load(b + ks[:, None] * b_row + columns[None, :] * b_column, mask=right_mask, other=0.0)
        total += tl.dot(left, right, input_precision="ieee")
    total += tl.load(bias + columns, mask=columns < N, other=0.0)[None, :]
    where = out + rows[:, None] * out_row + columns[None, :] * out_column
    tl.store(where, tl.maximum(total, 0.0), mask=(rows[:, None] < M) & (columns[None, :] < N))


def matmul_like_the_tutorial(a: Any, b: Any, bias: Any) -> Any:
    """The host function of Triton's matrix multiplication tutorial: checks, output, grid of META, sizes and strides."""
    assert a.shape[1] == b.shape[0], "Incompatible dimensions"
    assert a.is_contiguous(), "Matrix A must be contiguous"
    M, K = a.shape
    K, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda META: (triton.cdiv(M, META["BLOCK"]), triton.cdiv(N, META["BLOCK"]))  # noqa: E731
    strided_matmul_relu[grid](
        a, b, bias, c, M, N, K,
        a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1),
        BLOCK=32,
    )  # fmt: skip
    return c
