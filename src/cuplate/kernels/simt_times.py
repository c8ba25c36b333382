"""What a float32 product takes with each tile of the FMA kernels: the model by which ``when=`` chooses one of them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RAGGED", "WHOLE", "Time", "divided", "parts", "rest"]


def parts(tiles: str, split: str | int) -> str:
    """Into how many parts `split` blocks divide K, as an expression: 64 of K or more each."""
    return f"max(1, min(K // 64, {split} // max(1, {tiles})))"


def rest(tiles: str, wave: str | int) -> str:
    """How many tiles fill no whole wave."""
    return f"{tiles} % {wave}"


def divided(tiles: str, wave: str | int) -> str:
    """Among how many blocks these are divided: 256 of K or more each."""
    return f"min({wave}, {rest(tiles, wave)} * max(1, K // 256))"


class Time(NamedTuple):
    """Picoseconds as a function of sizes.

    Blocks are dealt out to 132 multiprocessors, evenly; each of those takes `once`, for each of its blocks `block` and
    `step` for each of its K, and `wait` for each K however many blocks it has. 132 is written out: with `sm_count` a
    build machine without the GPU could not choose as the node does.

    Attributes
    ----------
    rows, columns : int
        Of a tile.
    once, block, step, wait : int, picoseconds
    split : int
        Blocks that K is divided among, or 0.
    wave : int
        Blocks that the tiles are divided among that fill no whole wave, or 0.
    part : int, picoseconds
        What each part of a tile's K takes beside its products.
    """

    rows: int
    columns: int
    once: int
    block: int
    step: int
    wait: int = 0
    split: int = 0
    wave: int = 0
    part: int = 0

    def __str__(self) -> str:
        """As an expression of M, N and K."""
        tiles = f"cdiv(M, {self.rows}) * cdiv(N, {self.columns})"
        if self.wave:
            left, blocks = rest(tiles, self.wave), divided(tiles, self.wave)
            return (
                f"{self.once} + {tiles} // {self.wave} * ({self.block} + {self.step} * K)"
                f" + {self.step} * K * ({left}) // max(1, {blocks}) + {self.part} * cdiv({blocks}, max(1, {left}))"
            )
        if self.split:
            shares = parts(tiles, self.split)
            blocks = f"cdiv({tiles} * {shares}, 132)"
            return (
                f"{self.once} + {self.block} * {blocks} + ({self.step} * {blocks} + {self.wait}) * K // {shares}"
                f" + {self.part} * {shares}"
            )
        return f"{self.once} + cdiv({tiles}, 132) * ({self.block} + {self.step} * K) + {self.wait} * K"


# Fitted to what 90 products took on an H200, see docs/decisions/0051. The tiled kernel runs what none of the others is
# chosen for.
_TILED = Time(16, 16, 1_350_000, 44_000, 7_810, 13_050)
WHOLE = {
    "matmul_simt_balanced": Time(128, 256, 6_250_000, 4_690_000, 160_100, wave=132, part=5_080_000),
    "matmul_simt_medium": Time(64, 128, 2_670_000, 585_000, 39_820, 7_150),
    "matmul_simt_small": Time(32, 64, 1_905_000, 210_000, 15_890, 3_460),
    "matmul_simt_split": Time(64, 128, 7_260_000, 645_000, 42_270, 2_470, split=396, part=357_000),
    "matmul_simt_split_small": Time(32, 32, 5_575_000, 134_000, 9_140, 1_900, split=264, part=289_000),
    "matmul_simt": Time(128, 256, 2_230_000, 4_680_000, 159_130),
    "matmul_epilogue": _TILED,
}
RAGGED = {
    "matmul_simt_ragged_medium": Time(64, 128, 3_335_000, 1_039_000, 43_350, 10_340),
    "matmul_simt_ragged_small": Time(32, 32, 1_800_000, 159_000, 9_870, 6_510),
    "matmul_simt_ragged_split": Time(64, 64, 5_970_000, 436_000, 26_960, 3_550, split=396, part=360_000),
    "matmul_simt_ragged_split_small": Time(32, 32, 5_470_000, 179_000, 10_470, 2_860, split=264, part=322_000),
    "matmul_simt_ragged": Time(128, 256, 4_975_000, 4_940_000, 165_020),
    "matmul_epilogue": _TILED,
}
