"""Sizes and tiles -> Grid: integer arithmetic, and every limit of a device or a kernel checked before a launch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cuplate.errors import LaunchError, ToolchainError

__all__ = ["Grid", "Limits", "Tile", "check", "check_block", "cover", "limits_for", "tile_index"]

_AXES = "xyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one device accepts; the defaults hold for every compute capability that cuplate can compile for.

    Attributes
    ----------
    arch : int
        Compute capability, ``10 * major + minor``: 90 for sm_90 and sm_90a.
    shared_memory_bytes : int, bytes
        Most shared memory of one block, static and dynamic together, after opting in.
    sm_count : int or None
        Multiprocessors; None where no device was asked, since it is a property of the product.
    on_gpu : bool
        False for the CPU backend, which stands for an architecture and cannot run its PTX.
    cluster_blocks : int, blocks
        Most blocks of one cluster that every device of this capability accepts; 1 where there are no clusters.
    grid : (int, int, int), blocks
        Most blocks in x, y, z.
    block : (int, int, int), threads
        Most threads in x, y, z.
    threads_per_block : int, threads
        Most threads of one block.

    Notes
    -----
    Source: CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per Compute Capability".
    """

    arch: int
    shared_memory_bytes: int
    sm_count: int | None = None
    on_gpu: bool = True
    cluster_blocks: int = 8
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    block: tuple[int, int, int] = (1024, 1024, 64)
    threads_per_block: int = 1024


# "Maximum amount of shared memory per thread block", KiB. Same source as `Limits`; cuda::arch_traits of CCCL agrees.
_SHARED_KIB = {
    **dict.fromkeys((50, 52, 53, 60, 61, 62), 48),
    **dict.fromkeys((70, 72), 96),
    75: 64,
    **dict.fromkeys((80, 87), 163),
    **dict.fromkeys((86, 88, 89), 99),
    **dict.fromkeys((90, 100, 101, 103, 110), 227),
    **dict.fromkeys((120, 121), 99),
}


def limits_for(arch: str) -> Limits:
    """The documented limits of an architecture, for work without a GPU.

    Parameters
    ----------
    arch : str
        ``"sm_90"``, ``"sm_90a"``, ``"sm_120f"``, ``"compute_90"``.

    Returns
    -------
    Limits
        With ``sm_count`` None. An architecture that is newer than this table has the least of its major version.

    Raises
    ------
    ToolchainError
        The name is no architecture, or one of a major version that is not known here.

    Examples
    --------
    >>> limits_for("sm_90a").shared_memory_bytes
    232448
    """
    match = re.fullmatch(r"(?:sm|compute)_(\d+)[af]?", arch)
    number = int(match[1]) if match else -1
    shared_kib = _SHARED_KIB.get(number, min((k for n, k in _SHARED_KIB.items() if n // 10 == number // 10), default=0))
    if not shared_kib:
        known = ", ".join(f"sm_{n}" for n in _SHARED_KIB)
        meant = re.fullmatch(r"[a-z]*[ _-]?(\d+)\.?(\d?)([af]?)", arch.lower())  # sm90, 90, 9.0
        near = f"sm_{meant[1]}{meant[2]}{meant[3]}" if meant and int(meant[1] + meant[2]) in _SHARED_KIB else None
        raise ToolchainError(f"the limits of arch {arch!r} are not known.", given=arch, allowed=known, try_=near)
    clusters = 8 if number >= 90 else 1
    return Limits(arch=number, shared_memory_bytes=shared_kib * 1024, cluster_blocks=clusters)


@dataclass(frozen=True, slots=True)
class Grid:
    """One launch configuration.

    Attributes
    ----------
    grid : (int, int, int), blocks
        Blocks in x, y, z.
    block : (int, int, int), threads
        Threads in x, y, z.
    cluster : (int, int, int) or None, blocks
        Blocks of one cluster in x, y, z.
    shared_memory_bytes : int, bytes
        Dynamic shared memory of one block.
    cooperative : bool
        Whether all blocks must be resident at once.
    folded : bool
        Whether the tiles of several axes are all counted on x; see `cover`.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None = None
    shared_memory_bytes: int = 0
    cooperative: bool = False
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """One entry of ``tiles=`` for one call.

    Attributes
    ----------
    label : str
        The key: ``"N"``, or an expression.
    size : int, elements
        What is to be covered, 0 or more.
    tile : int, elements
        What one block covers, 1 or more.
    """

    label: str
    size: int
    tile: int

    @property
    def blocks(self) -> int:
        """Blocks that cover the size; at least 1, so that an empty axis launches too."""
        return max(1, -(-self.size // self.tile))


def cover(tiles: Sequence[Tile], *, limits: Limits, may_fold: bool, function: str) -> tuple[tuple[int, int, int], bool]:
    """Grid that covers the tiles: x the first, y the second, z the third.

    Parameters
    ----------
    tiles : sequence of Tile
        At most three.
    limits : Limits
        Of the device.
    may_fold : bool
        Whether the template finds its place through ``tile_index`` only, so that y and z may be counted on x.
    function : str
        For messages.

    Returns
    -------
    grid : (int, int, int), blocks
        Each at least 1.
    folded : bool
        Whether y and z were past the limit and all blocks are counted on x.

    Raises
    ------
    LaunchError
        More than three tiles; a size below 0 or a tile below 1; or an axis passes the device's limit and cannot be
        folded.

    Examples
    --------
    >>> cover([Tile("N", 64, 16), Tile("M", 70000, 1)], limits=limits_for("sm_90"), may_fold=True, function="f")
    ((280000, 1, 1), True)
    """
    _check_tiles(tiles, function)
    x, y, z = (*(tile.blocks for tile in tiles), 1, 1, 1)[:3]
    past = [axis for axis, blocks in enumerate((x, y, z)) if blocks > limits.grid[axis]]
    if not past:
        return (x, y, z), False
    if may_fold and x * y * z <= limits.grid[0]:
        return (x * y * z, 1, 1), True
    raise _past_limit(tiles, past[0], limits, may_fold, function)


def _check_tiles(tiles: Sequence[Tile], function: str) -> None:
    if len(tiles) > 3:
        labels = ", ".join(tile.label for tile in tiles)
        raise LaunchError(
            f"a grid has three axes, tiles= has {len(tiles)}.",
            function=function,
            given=labels,
            allowed="at most 3 entries",
            try_="one expression for two axes, such as M*K",
        )
    for tile in tiles:
        if tile.size < 0 or tile.tile < 1:
            what = f"size {tile.size} is below 0" if tile.size < 0 else f"tile {tile.tile} is below 1"
            raise LaunchError(
                f"tiles={{{tile.label!r}: ...}} cannot be covered, its {what}.",
                function=function,
                given=f"size {tile.size}, tile {tile.tile}",
                allowed="size 0 or more, tile 1 or more",
            )


def _past_limit(tiles: Sequence[Tile], axis: int, limits: Limits, may_fold: bool, function: str) -> LaunchError:
    tile, limit = tiles[axis], limits.grid[axis]
    total = prod(t.blocks for t in tiles)
    if may_fold or axis == 0:
        advice = "a larger tile, or several calls"
    else:
        advice = (
            f"put {tile.label} first in tiles=, x may have {limits.grid[0]} blocks\n"
            f"{{{{ {tile.label}.tile_index }}}} instead of blockIdx in the template, so that axes can be folded\n"
            "a larger tile"
        )
    return LaunchError(
        f"{tile.label} = {tile.size} needs {tile.blocks} blocks in {_AXES[axis]}, the device allows {limit}.",
        function=function,
        given=f"{tile.label} = {tile.size}, tile {tile.tile}: {tile.blocks} blocks in {_AXES[axis]}",
        allowed=f"{limit} blocks in {_AXES[axis]}",
        folded=f"{total} blocks in x, the limit is {limits.grid[0]}" if may_fold and len(tiles) > 1 else None,
        try_=advice,
        _axis=tile.label,
        _size=tile.size,
        _tile=tile.tile,
        _blocks=tile.blocks,
        _limit=limit,
    )


def tile_index(position: int, tiles_c: Sequence[tuple[str, str]], folded: bool, index_type: str) -> str:
    """C expression of this block's tile on one entry of ``tiles=``.

    Parameters
    ----------
    position : int
        Which entry, from 0.
    tiles_c : sequence of (str, str)
        C text of each entry's size and tile.
    folded : bool
        As `cover` answered.
    index_type : str
        C integer type of the result and of all arithmetic; no step overflows it where sizes fit.

    Returns
    -------
    str
        Parenthesised, so that it may be spliced into any expression.

    Examples
    --------
    >>> tile_index(1, [("N", "16"), ("M", "16")], False, "int")
    '((int)blockIdx.y)'
    """
    if not folded:
        return f"(({index_type})blockIdx.{_AXES[position]})"
    text = f"({index_type})blockIdx.x"
    for size, tile in tiles_c[:position]:
        text += f" / {_blocks_c(size, tile, index_type)}"
    if position < len(tiles_c) - 1:
        text += f" % {_blocks_c(*tiles_c[position], index_type)}"
    return f"({text})"


def _blocks_c(size: str, tile: str, index_type: str) -> str:
    """`Tile.blocks` in C: ``(size - (size > 0)) / tile + 1`` cannot overflow and is 1 for size 0."""
    return f"((({index_type})({size}) - (({size}) > 0)) / ({index_type})({tile}) + 1)"


def check_block(block: Sequence[int], limits: Limits, function: str) -> tuple[int, int, int]:
    """Threads in x, y, z, within what the device accepts.

    Parameters
    ----------
    block : sequence of int, threads
        One to three sizes, x first; those left out are 1.
    limits : Limits
        Of the device.
    function : str
        For messages.

    Raises
    ------
    LaunchError
        Not one to three positive ints, or beyond a limit.
    """
    given = f"block {_times(block)}"
    if not 1 <= len(block) <= 3:
        raise LaunchError(
            f"a block has one to three axes, not {len(block)}.", function=function, given=given, allowed="x, y, z"
        )
    for axis, threads in zip(_AXES, block, strict=False):
        if type(threads) is not int or threads < 1:
            raise LaunchError(
                f"block in {axis} is {threads!r}, not a positive integer.",
                function=function,
                given=given,
                allowed="1 or more threads on each axis",
            )
    padded = (*block, 1, 1)
    x, y, z = padded[0], padded[1], padded[2]
    for axis, threads, limit in zip(_AXES, (x, y, z), limits.block, strict=True):
        if threads > limit:
            raise LaunchError(
                f"block in {axis} is {threads} threads, the device allows {limit}.",
                function=function,
                given=given,
                allowed=f"block up to {_times(limits.block)}, {limits.threads_per_block} threads in all",
            )
    if x * y * z > limits.threads_per_block:
        raise LaunchError(
            f"a block of {x * y * z} threads, the device allows {limits.threads_per_block}.",
            function=function,
            given=f"{given} = {x * y * z} threads",
            allowed=f"{limits.threads_per_block} threads in all",
            try_="a smaller block",
        )
    return x, y, z


def check(
    grid: Grid,
    limits: Limits,
    *,
    static_shared_bytes: int = 0,
    kernel_threads: int | None = None,
    registers: int | None = None,
    kernel: str | None = None,
    function: str,
) -> None:
    """Refuse, before a launch and with the numbers, what the device or the kernel would refuse.

    Parameters
    ----------
    grid : Grid
        The launch configuration.
    limits : Limits
        Of the device.
    static_shared_bytes : int, bytes
        Shared memory that the kernel declares itself.
    kernel_threads : int or None, threads
        Largest block of this kernel, as its registers allow; None where the kernel is not loaded.
    registers : int or None
        Registers of one thread, for the message.
    kernel : str or None
        The kernel's name, when it is not the function's.
    function : str
        For messages.

    Raises
    ------
    LaunchError
        A grid axis, the block, the shared memory or the cluster is beyond a limit. Whether a cooperative grid is
        resident at once is not decided here.
    """
    for axis, blocks, limit in zip(_AXES, grid.grid, limits.grid, strict=True):
        if type(blocks) is not int or not 1 <= blocks <= limit:
            raise LaunchError(
                f"grid in {axis} is {blocks!r} blocks, the device allows 1 to {limit}.",
                function=function,
                given=f"grid {_times(grid.grid)}",
                allowed=f"1 to {_times(limits.grid)}",
            )
    threads = prod(check_block(grid.block, limits, function))
    _check_kernel_threads(threads, grid, kernel_threads, registers, kernel or function, function)
    _check_shared(grid.shared_memory_bytes, static_shared_bytes, limits, function)
    if grid.cluster is not None:
        _check_cluster(grid.cluster, grid.grid, limits, function)


def _check_kernel_threads(
    threads: int, grid: Grid, most: int | None, registers: int | None, kernel: str, function: str
) -> None:
    if most is None or threads <= most:
        return
    uses = f"which uses {registers} registers a thread, " if registers is not None else ""
    raise LaunchError(
        f"a block of {threads} threads is too large for the kernel {kernel}, {uses}the largest is {most}.",
        function=function,
        given=f"block {_times(grid.block)} = {threads} threads",
        allowed=f"{most} threads for this kernel",
        try_=f"a block of at most {most} threads, or __launch_bounds__({threads}) so that the compiler saves registers",
        _kernel=kernel,
        _registers=registers,
        _largest_block=most,
    )


def _check_shared(dynamic: int, static: int, limits: Limits, function: str) -> None:
    if dynamic >= 0 and dynamic + static <= limits.shared_memory_bytes:
        return
    problem = (
        f"dynamic shared memory of {dynamic} bytes"
        if dynamic < 0
        else f"a block needs {dynamic + static} bytes of shared memory, the device allows {limits.shared_memory_bytes}"
    )
    raise LaunchError(
        f"{problem}.",
        function=function,
        given=f"{dynamic} bytes dynamic + {static} bytes static",
        allowed=f"0 to {limits.shared_memory_bytes} bytes in all (compute capability {limits.arch / 10:.1f})",
        try_="a smaller tile, or fewer stages",
        _dynamic_bytes=dynamic,
        _static_bytes=static,
        _limit_bytes=limits.shared_memory_bytes,
    )


def _check_cluster(cluster: tuple[int, int, int], grid: tuple[int, int, int], limits: Limits, function: str) -> None:
    given = f"cluster {_times(cluster)}, grid {_times(grid)}"
    if len(cluster) != 3 or any(type(blocks) is not int or blocks < 1 for blocks in cluster):
        raise LaunchError("a cluster is three positive integers.", function=function, given=given, allowed="x, y, z")
    size = prod(cluster)
    if size > limits.cluster_blocks:
        none = limits.cluster_blocks == 1
        allowed = "no cluster: they need sm_90 or later" if none else f"{limits.cluster_blocks} blocks"
        raise LaunchError(
            f"a cluster of {size} blocks, the device allows {limits.cluster_blocks}.",
            function=function,
            given=given,
            allowed=allowed,
        )
    for axis, step, blocks in zip(_AXES, cluster, grid, strict=True):
        if blocks % step:
            raise LaunchError(
                f"a cluster of {step} blocks in {axis} does not divide the grid of {blocks} blocks.",
                function=function,
                given=given,
                allowed=f"a grid in {axis} that is a multiple of {step}",
                try_=f"round the grid up, as in cdiv(size, {step} * tile) * {step}",
            )


def _times(sizes: Sequence[object]) -> str:
    return " x ".join(str(size) for size in sizes)
