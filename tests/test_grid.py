"""Grids cover what they must, fold only when they must, and are refused with the numbers."""

from __future__ import annotations

import itertools
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuplate.errors import LaunchError, ToolchainError
from cuplate.grid import Grid, Limits, Tile, check, check_block, cover, limits_for, tile_index

H100 = limits_for("sm_90")
SMALL = Limits(arch=90, shared_memory_bytes=1000, grid=(400, 4, 3))


def refused(call, *arguments, **options) -> LaunchError:  # type: ignore[no-untyped-def]
    """The error of a call."""
    with pytest.raises(LaunchError) as caught:
        call(*arguments, **options)
    return caught.value


@pytest.mark.parametrize(
    ("arch", "number", "kib"),
    [
        *[("sm_75", 75, 64), ("sm_80", 80, 163), ("sm_86", 86, 99), ("sm_87", 87, 163), ("compute_89", 89, 99)],
        *[
            ("sm_90", 90, 227),
            ("sm_90a", 90, 227),
            ("sm_100a", 100, 227),
            ("sm_103f", 103, 227),
            ("sm_121", 121, 99),
            ("sm_107", 107, 227),
        ],
    ],
)
def test_documented_limits(arch: str, number: int, kib: int) -> None:
    """Shared memory of one block per compute capability is the programming guide's, in bytes."""
    limits = limits_for(arch)
    assert (limits.arch, limits.shared_memory_bytes, limits.sm_count) == (number, kib * 1024, None)
    assert limits.cluster_blocks == (8 if number >= 90 else 1)


@pytest.mark.parametrize("arch", ["sm_999", "90", "sm_", "native", ""])
def test_unknown_arch_is_never_guessed(arch: str) -> None:
    """An architecture without documented limits is an error that lists the known ones."""
    with pytest.raises(ToolchainError) as caught:
        limits_for(arch)
    assert repr(arch) in str(caught.value) and "sm_90" in caught.value.allowed


@pytest.mark.parametrize(
    ("arch", "meant"),
    [("sm90", "sm_90"), ("90a", "sm_90a"), ("9.0", "sm_90"), ("SM-120f", "sm_120f"), ("sm91", None), ("hopper", None)],
)
def test_another_spelling_of_an_arch_is_told(arch: str, meant: str | None) -> None:
    """Where the number is a known one."""
    with pytest.raises(ToolchainError) as caught:
        limits_for(arch)
    assert caught.value.try_ == meant


@pytest.mark.parametrize(
    ("sizes", "grid"),
    [
        ([], (1, 1, 1)),
        ([(1000, 256)], (4, 1, 1)),
        ([(1024, 256)], (4, 1, 1)),
        ([(0, 256)], (1, 1, 1)),
        ([(17, 16), (0, 16), (1, 16)], (2, 1, 1)),
        ([(33, 16), (32, 16), (31, 16)], (3, 2, 2)),
        ([(2**31 - 1, 1)], (2**31 - 1, 1, 1)),
        ([(2**40, 2**20), (5, 2)], (2**20, 3, 1)),
    ],
)
def test_cover(sizes: list[tuple[int, int]], grid: tuple[int, int, int]) -> None:
    """x covers the first tile, y the second, z the third; an empty axis still has one block."""
    tiles = [Tile(label, *size) for label, size in zip("NMK", sizes, strict=False)]
    for may_fold in (False, True):
        assert cover(tiles, limits=H100, may_fold=may_fold, function="f") == (grid, False)


@pytest.mark.parametrize(("rows", "folded"), [(65535, False), (65536, True), (70000, True)])
@pytest.mark.parametrize("axis", [1, 2])
def test_long_axis_folds_into_x(rows: int, folded: bool, axis: int) -> None:
    """B45: up to 65535 blocks stand on y or z; one more, and all are counted on x."""
    tiles = [Tile("N", 48, 16), Tile("M", 1, 1), Tile("B", 1, 1)]
    tiles[axis] = Tile("rows", rows, 1)
    grid, answer = cover(tiles, limits=H100, may_fold=True, function="f")
    wanted = [3, 1, 1]
    wanted[axis] = rows
    assert (grid, answer) == ((3 * rows, 1, 1) if folded else tuple(wanted), folded)


@pytest.mark.parametrize("rows", [65536, 70000])
def test_long_axis_that_cannot_fold_is_refused_with_the_numbers(rows: int) -> None:
    """B45: a template that reads blockIdx itself gets an error before the launch, with size, tile, limit, remedies."""
    error = refused(cover, [Tile("N", 64, 16), Tile("M", rows * 2, 2)], limits=H100, may_fold=False, function="rowsum")
    assert str(error) == (
        f"rowsum: M = {2 * rows} needs {rows} blocks in y, the device allows 65535.\n"
        f"  given      M = {2 * rows}, tile 2: {rows} blocks in y\n"
        "  allowed    65535 blocks in y\n"
        "  try        put M first in tiles=, x may have 2147483647 blocks\n"
        "             {{ M.tile_index }} instead of blockIdx in the template, so that axes can be folded\n"
        "             a larger tile"
    )
    assert (error.axis, error.size, error.tile, error.blocks, error.limit) == ("M", 2 * rows, 2, rows, 65535)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_long_first_axis_is_refused() -> None:
    """Folding cannot help an axis that is past x's own limit."""
    error = refused(cover, [Tile("N", 2**31, 1)], limits=H100, may_fold=True, function="f")
    assert "N = 2147483648 needs 2147483648 blocks in x, the device allows 2147483647" in error.summary
    assert "a larger tile" in error.try_ and "first" not in error.try_


def test_fold_that_does_not_fit_is_refused() -> None:
    """When even x cannot count all blocks, the message has both products."""
    error = refused(cover, [Tile("N", 2**20, 1), Tile("M", 2**20, 1)], limits=H100, may_fold=True, function="f")
    assert "M = 1048576 needs 1048576 blocks in y" in error.summary
    assert error.folded == f"{2**40} blocks in x, the limit is {2**31 - 1}"


@pytest.mark.parametrize(
    ("tiles", "message"),
    [
        ([Tile(name, 1, 1) for name in "ABCD"], "a grid has three axes, tiles= has 4"),
        ([Tile("N", 1, 0)], "tiles={'N': ...} cannot be covered, its tile 0 is below 1"),
        ([Tile("N", 1, -4)], "tile -4 is below 1"),
        ([Tile("N-K+1", -3, 4)], "tiles={'N-K+1': ...} cannot be covered, its size -3 is below 0"),
    ],
)
def test_what_cannot_be_covered(tiles: list[Tile], message: str) -> None:
    """Too many axes, a tile below 1 and a size below 0 are refused, by the key as written."""
    assert message in refused(cover, tiles, limits=H100, may_fold=True, function="f").summary


sizes = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=3)


@given(sizes=sizes, may_fold=st.booleans())
@settings(deadline=None)
def test_every_grid_covers_and_fits(sizes: list[tuple[int, int]], may_fold: bool) -> None:
    """A grid has exactly the blocks needed and fits the device; otherwise it is refused, and then nothing fits."""
    tiles = [Tile(name, *size) for name, size in zip("NMK", sizes, strict=False)]
    needed = [max(1, -(-size // tile)) for size, tile in sizes]
    product = needed[0] * (needed[1:] or [1])[0] * (needed[2:] or [1])[0]
    fits = all(n <= limit for n, limit in zip(needed, SMALL.grid, strict=False))
    try:
        grid, folded = cover(tiles, limits=SMALL, may_fold=may_fold, function="f")
    except LaunchError:
        assert not fits and not (may_fold and product <= SMALL.grid[0])
        return
    assert folded is not fits
    assert grid == ((product, 1, 1) if folded else (*needed, 1, 1)[:3])
    assert all(1 <= n <= limit for n, limit in zip(grid, SMALL.grid, strict=True))


def as_python(c: str) -> str:
    """C text of `tile_index` as Python: casts go, and on non-negative ints C's / is //."""
    return re.sub(r"\((int|long long)\)", "", c).replace("/", "//").replace("blockIdx.", "")


@given(sizes=sizes, folded=st.booleans(), index_type=st.sampled_from(["int", "long long"]))
@settings(deadline=None, max_examples=60)
def test_tile_index_hits_each_tile_once(sizes: list[tuple[int, int]], folded: bool, index_type: str) -> None:
    """Over all blocks of the grid, folded or not, the C expressions name every combination of tiles exactly once."""
    needed = [max(1, -(-size // tile)) for size, tile in sizes]
    names = [(f"n{i}", f"t{i}") for i in range(len(sizes))]
    values = {k: v for pair, size in zip(names, sizes, strict=True) for k, v in zip(pair, size, strict=True)}
    codes = [compile(as_python(tile_index(i, names, folded, index_type)), "c", "eval") for i in range(len(sizes))]
    total = (needed[0] * (needed[1:] or [1])[0] * (needed[2:] or [1])[0], 1, 1)
    grid = total if folded else (*needed, 1, 1)[:3]
    hit = [
        tuple(eval(code, {**values, "x": x, "y": y, "z": z}) for code in codes)
        for x, y, z in itertools.product(*map(range, grid))
    ]
    assert sorted(hit) == sorted(itertools.product(*map(range, needed)))


def test_tile_index_text() -> None:
    """The text is parenthesised whole and in every part, whatever C text sizes and tiles are."""
    tiles = [("N", "16"), ("M + 1", "2 * t"), ("K", "8")]
    assert [tile_index(i, tiles, False, "long long") for i in range(3)] == [
        f"((long long)blockIdx.{axis})" for axis in "xyz"
    ]
    n, m = "(((int)(N) - ((N) > 0)) / (int)(16) + 1)", "(((int)(M + 1) - ((M + 1) > 0)) / (int)(2 * t) + 1)"
    assert [tile_index(i, tiles, True, "int") for i in range(3)] == [
        f"((int)blockIdx.x % {n})",
        f"((int)blockIdx.x / {n} % {m})",
        f"((int)blockIdx.x / {n} / {m})",
    ]
    assert tile_index(0, tiles[:1], True, "int") == "((int)blockIdx.x)"


def test_folded_arithmetic_stays_within_the_index_type() -> None:
    """No step exceeds the size itself, so that a size of 2**31 - 1 does not overflow a 32-bit index."""
    text = tile_index(0, [("n", "t"), ("1", "1")], True, "int")
    assert "+ (int)(t)" not in text  # n + t - 1 would overflow
    assert eval(as_python(text), {"n": 2**31 - 1, "t": 2**20, "x": 2047}) == 2047


@pytest.mark.parametrize(
    ("block", "padded"),
    [((1,), (1, 1, 1)), ((32, 8), (32, 8, 1)), ((1, 1, 64), (1, 1, 64)), ((1024,), (1024, 1, 1))],
)
def test_check_block(block: tuple[int, ...], padded: tuple[int, int, int]) -> None:
    """Sizes left out are 1."""
    assert check_block(block, H100, "f") == padded


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ((), "a block has one to three axes, not 0"),
        ((1, 1, 1, 1), "a block has one to three axes, not 4"),
        ((0,), "block in x is 0, not a positive integer"),
        ((32, -1), "block in y is -1, not a positive integer"),
        ((32.0,), "block in x is 32.0, not a positive integer"),
        ((True,), "block in x is True, not a positive integer"),
        ((1025,), "block in x is 1025 threads, the device allows 1024"),
        ((1, 1, 65), "block in z is 65 threads, the device allows 64"),
        ((64, 32), "a block of 2048 threads, the device allows 1024"),
    ],
)
def test_bad_block(block: tuple[int, ...], message: str) -> None:
    """A block that no device takes is refused with its numbers."""
    error = refused(check_block, block, H100, "f")
    assert message in error.summary
    assert error.given.startswith(f"block {' x '.join(map(str, block))}")


def make(**changes: object) -> Grid:
    """A good grid with some fields changed."""
    return Grid(**{"grid": (4, 2, 1), "block": (128, 1, 1), **changes})  # type: ignore[arg-type]


def test_a_good_grid_passes() -> None:
    """A launch exactly at every limit is not refused."""
    full = make(grid=(2**31 - 1, 65535, 65535), block=(1024, 1, 1), shared_memory_bytes=227 * 1024 - 100)
    check(full, H100, static_shared_bytes=100, kernel_threads=1024, registers=64, function="f")
    check(make(cluster=(4, 2, 1)), H100, function="f")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (1, 65536, 1)}, "grid in y is 65536 blocks, the device allows 1 to 65535"),
        ({"grid": (0, 1, 1)}, "grid in x is 0 blocks, the device allows 1 to 2147483647"),
        ({"grid": (1, 1, 1.5)}, "grid in z is 1.5 blocks"),
        ({"block": (64, 32, 1)}, "a block of 2048 threads, the device allows 1024"),
        ({"shared_memory_bytes": -1}, "dynamic shared memory of -1 bytes"),
        ({"cluster": (16, 1, 1)}, "a cluster of 16 blocks, the device allows 8"),
        ({"cluster": (0, 1, 1)}, "a cluster is three positive integers"),
        ({"cluster": (1, 4, 1)}, "a cluster of 4 blocks in y does not divide the grid of 2 blocks"),
    ],
)
def test_beyond_the_device(changes: dict[str, object], message: str) -> None:
    """What the driver would answer with "invalid argument" is refused first, by name and number."""
    error = refused(check, make(**changes), H100, function="saxpy")
    assert message in error.summary and error.function == "saxpy"


def test_no_clusters_before_sm_90() -> None:
    """An architecture without clusters says so."""
    error = refused(check, make(cluster=(2, 1, 1)), limits_for("sm_80"), function="f")
    assert error.allowed == "no cluster: they need sm_90 or later"


def test_shared_memory_message() -> None:
    """Dynamic and static shared memory count together, and both are shown."""
    error = refused(check, make(shared_memory_bytes=232448), H100, static_shared_bytes=16, function="gemm")
    assert str(error) == (
        "gemm: a block needs 232464 bytes of shared memory, the device allows 232448.\n"
        "  given      232448 bytes dynamic + 16 bytes static\n"
        "  allowed    0 to 232448 bytes in all (compute capability 9.0)\n"
        "  try        a smaller tile, or fewer stages"
    )


def test_block_too_large_for_the_kernel() -> None:
    """B47: a block that the kernel's registers forbid names kernel, registers and the largest block."""
    error = refused(
        check,
        make(block=(1024, 1, 1)),
        H100,
        kernel_threads=512,
        registers=128,
        kernel="hungry_f32",
        function="hungry",
    )
    assert error.summary == (
        "a block of 1024 threads is too large for the kernel hungry_f32, which uses 128 registers a thread, "
        "the largest is 512."
    )
    assert (error.kernel, error.registers, error.largest_block) == ("hungry_f32", 128, 512)
    check(make(block=(512, 1, 1)), H100, kernel_threads=512, registers=128, function="hungry")
