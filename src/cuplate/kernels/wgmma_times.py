"""What a product takes with each tile of the wgmma kernels: the model by which ``when=`` chooses one of them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TILES_AND_K", "TIMES", "Time"]


class Time(NamedTuple):
    """Nanoseconds as a function of sizes: teams of blocks compute a tile each, one round after the other.

    Attributes
    ----------
    rows, columns : int
        Of the tile of a team.
    parts : int
        Of K, one for each block of the team.
    teams : int
        That run at once on 132 multiprocessors. These are written out: with `sm_count` a build machine without the GPU
        could not choose as the node does.
    once, round, step : int, nanoseconds
        A product, a round, and 64 of a part's K in a round.
    """

    rows: int
    columns: int
    parts: int
    teams: int
    once: int
    round: int
    step: int

    def __str__(self) -> str:
        """As an expression of M, N and K."""
        rounds = f"cdiv(cdiv(M, {self.rows}) * cdiv(N, {self.columns}), {self.teams})"
        return f"{self.once} + {rounds} * ({self.round} + {self.step} * cdiv(K, {64 * self.parts}))"


# Fitted to what 62 products took on an H200, see docs/decisions/0047. Of clusters of four 30 run at once, not 33.
TIMES = {
    "matmul_wgmma_wide": Time(128, 192, 1, 132, 3800, 30, 548),
    "matmul_wgmma_flat": Time(64, 192, 1, 132, 2600, 80, 295),
    "matmul_wgmma_small": Time(64, 128, 1, 132, 2300, 110, 206),
    "matmul_wgmma_single": Time(64, 64, 1, 264, 400, 1150, 292),
    "matmul_wgmma_split": Time(64, 64, 2, 66, 300, 2690, 245),
    "matmul_wgmma_split_tall": Time(128, 64, 2, 66, 200, 3230, 280),
    "matmul_wgmma_split_deep": Time(128, 128, 4, 30, 1000, 4700, 331),
    "matmul_wgmma": Time(128, 128, 1, 132, 2600, 120, 367),
}
TILES_AND_K = ("cdiv(M, 64)", "cdiv(N, 64)", "K")
"""What a tile that was measured is kept for: how many there are of the smallest decides, and K by powers of two."""
