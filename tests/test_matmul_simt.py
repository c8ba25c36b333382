"""The register-blocked float32 product without a GPU: what it is compiled to, and its arithmetic on the CPU backend."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import Array, ArraySpec, Inline, ParameterError, config, specialize
from cuplate.kernels import matmul_epilogue, matmul_simt, matmul_simt_ragged
from cuplate.kernels.epilogues import Activation, Expression
from cuplate.kernels.simt import REST, TILES
from cuplate.kernels.simt_times import RAGGED, WHOLE
from cuplate.kernels.wgmma_times import TIMES

TEMPLATE = Path(__file__).parents[1] / "templates" / "matmul_simt.cu.j2"
LARGE = (ArraySpec((4096, 4096)), ArraySpec((4096, 4096)), ArraySpec((4096,)))
COLUMNS = (LARGE[0], ArraySpec((4096, 4096), strides=(1, 4096)), LARGE[2])

# what it takes --------------------------------------------------------------------------------------------------------


def test_indices_become_64_bits_where_an_array_needs_it_and_still_nothing_spills() -> None:
    """Arrays beyond 2**31 bytes: other text, with offsets of 64 bits."""
    a, b, bias = ArraySpec((40_000, 30_000)), ArraySpec((30_000, 4096)), ArraySpec((4096,))
    report = matmul_simt.inspect(a, b, bias, relu=True, arch="sm_90")
    assert "using index_t = long long" in report.source and "    long long offset_a[" in report.source
    assert report.cubin.resources.spill_store_bytes == 0
    assert "    unsigned offset_a[" in matmul_simt.inspect(*LARGE, relu=True, arch="sm_90").source


def test_the_source_includes_nothing_and_uses_no_tensor_core() -> None:
    """Header-free, and float32 all the way: one FMA a product, no TF32."""
    report = matmul_simt.inspect(*LARGE, relu=True, arch="sm_90")
    assert "#include" not in report.source and "mma" not in report.ptx and "tf32" not in report.ptx
    assert report.ptx.count("fma.rn.f32") >= 8 * 8 * 16


# when it runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "given", "variant"),
    [
        ((4096, 4096, 4096), {}, "matmul_simt_balanced"),  # 512 tiles: 116 are left after whole waves
        ((2048, 2048, 2048), {}, "matmul_simt"),  # 128 tiles are nearly a wave
        ((8448, 512, 4096), {}, "matmul_simt_medium"),
        ((4096, 4096, 4096), {"tile": 16}, "matmul_epilogue"),
        ((4096, 4096, 4093), {}, "matmul_simt_ragged"),
        ((1024, 256, 1024), {}, "matmul_simt_medium"),
        ((640, 640, 640), {}, "matmul_simt_split"),  # 50 tiles of 64 x 128
        ((512, 512, 512), {}, "matmul_simt_small"),
        ((128, 8192, 128), {}, "matmul_simt_split_small"),
        ((2001, 501, 1001), {}, "matmul_simt_ragged_medium"),
        ((512, 512, 511), {}, "matmul_simt_ragged_small"),
        ((896, 896, 895), {}, "matmul_simt_ragged_split"),
        ((33, 777, 1023), {}, "matmul_simt_ragged_split_small"),
        ((64, 64, 64), {}, "matmul_epilogue"),
        ((64, 0, 64), {}, "matmul_epilogue"),
    ],
    ids=str,
)
def test_matmul_epilogue_chooses_by_shape(shape: tuple[int, int, int], given: dict[str, Any], variant: str) -> None:
    """What is modelled to be the fastest; a given tile, and products of a few elements, stay with the tiled kernel."""
    m, k, n = shape
    arrays = ArraySpec((m, k)), ArraySpec((k, n)), ArraySpec((n,))
    assert matmul_epilogue.inspect(*arrays, arch="sm_90", **given).variant == variant


@pytest.mark.parametrize("times", [WHOLE, RAGGED, TIMES], ids=["whole", "ragged", "wgmma"])
def test_the_variants_stand_in_the_order_in_which_their_times_are_compared(times: dict[str, Any]) -> None:
    """Each is compared with those behind it alone: in another order the first that holds would not be the fastest."""
    names = [name for name, _ in matmul_epilogue.inspect(*LARGE, arch="sm_75").passed_over if name in times]
    assert names == [name for name in times if name != "matmul_epilogue"]


def test_matmul_epilogue_chooses_by_alignment_layout_and_architecture() -> None:
    """Four bytes into memory, column-major, sm_75: each is another reason, told in the report."""
    a, b, bias = LARGE
    shifted = ArraySpec((4096, 4096), alignment=4)
    report = matmul_epilogue.inspect(shifted, b, bias, arch="sm_90")
    assert report.variant == "matmul_simt_balanced"  # only b is copied by 16
    report = matmul_epilogue.inspect(a, shifted, bias, arch="sm_90")
    assert report.variant == "matmul_simt_ragged"
    assert ("matmul_simt", "'b.aligned(16)' does not hold") in report.passed_over
    assert matmul_epilogue.inspect(*COLUMNS, arch="sm_90").variant == "matmul_simt_ragged"
    report = matmul_epilogue.inspect(*LARGE, arch="sm_75")
    assert report.variant == "matmul_epilogue"
    reasons = dict(report.passed_over)
    assert reasons["matmul_simt_balanced"] == "'arch >= 80' does not hold"
    assert reasons["matmul_wgmma"] == "array 'a' is float32"
    assert reasons["matmul_split"] == "precision = None (NoneType) is not allowed"


def test_arrays_in_host_memory_stay_with_the_tiled_kernel() -> None:
    """Inline PTX cannot run on the CPU backend; asked for by hand, the kernel says so."""
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(s, dtype=np.float32) for s in ((1536, 8), (8, 1536), (1536,)))
    assert matmul_epilogue.inspect(a, b, bias, arch="sm_90").variant == "matmul_simt_small"
    assert matmul_epilogue.inspect(a, b, bias).variant == "matmul_epilogue"
    with pytest.raises(ParameterError, match="'on_gpu' does not hold") as caught:
        matmul_simt(a, b, bias)
    assert "not for the CPU backend" in str(caught.value)


@pytest.mark.filterwarnings("ignore:cuplate. .* has been rendered in")
def test_parameters_that_leave_part_of_a_tile_uncopied_are_refused() -> None:
    """All combinations: each is refused, or its copy passes cover both tiles exactly."""
    refused = 0
    for tile_m, tile_n, warp_m, warp_n, tile_k in itertools.product((64, 128), (128, 256), (32, 64), (32, 64), (8, 16)):
        given = {"tile_m": tile_m, "tile_n": tile_n, "warp_m": warp_m, "warp_n": warp_n, "tile_k": tile_k}
        for function, arrays in ((matmul_simt, LARGE), (matmul_simt_ragged, LARGE), (matmul_simt_ragged, COLUMNS)):
            inspection: Any = function.inspect
            try:
                described = inspection.__self__._described(arrays, given, "sm_90")
            except ParameterError:
                refused += 1
                continue
            text = described.content.source.text
            passes_a, passes_b = (len(re.findall(rf"copy_float4?\({name}_tile", text)) for name in "ab")
            threads = described.plan.specialization.block[0]
            assert passes_a * threads == tile_m * tile_k
            assert passes_b * threads * (4 if function is matmul_simt else 1) == tile_n * tile_k
    assert 0 < refused < 40


# the arithmetic, on the CPU backend -----------------------------------------------------------------------------------

COPY = "    for (int i = 0; i < {{ bytes }} / 4; ++i) ((float*)to)[i] = valid ? from[i] : 0.0f;\n"
POISON = """
    for (int i = threadIdx.x; i < {{ stages * (size_a + size_b) }}; i += {{ threads }}) memory[i] = nanf("");
    __syncthreads();
"""


def without_ptx(text: str) -> str:
    """The template with copies that are done at once: places, edges and barriers are those of the GPU."""
    text = re.sub(r'    asm volatile\("cp\.async\.\{\{ path.*?"memory"\);\n', COPY, text, flags=re.DOTALL)
    text = re.sub(r'asm volatile\("cp\.async\.(?:\w+_group|wait_all)[^;]*;" ::: "memory"\);', "", text)
    text = text.replace("(unsigned)__cvta_generic_to_shared(&", "(char*)(&").replace("const unsigned to,", "char* to,")
    text = re.sub(r"const unsigned (to_a|to_b) =", r"char* const \1 =", text)
    text = text.replace("const unsigned a_tile =", "char *const a_tile =").replace(", b_tile =", ", *const b_tile =")
    # The last step fetches ahead of what was copied, and uses nothing of it: whatever it did use would be NaN.
    text = text.replace("    // Tiles run down", f"{POISON}\n    // Tiles run down")
    assert "asm" not in text and "cvta" not in text and "nan" in text
    return text


@specialize(
    Inline(without_ptx(TEMPLATE.read_text(encoding="utf-8"))),
    entry="matmul_simt",
    grid=f"{TILES} * split if split else {TILES} - {REST} + min(wave, {REST} * 3) if wave else {TILES}",
    scratch={"sums": ("float32", f"split * {TILES} * tile_m * tile_n"), "done": ("uint32", f"1 + max(wave, {TILES})")},
    zeroed="done",
    block="tile_m // warp_m * (tile_n // warp_n) * 32",
    shared_bytes="stages * tile_k * (tile_m + 4 + tile_n + (4 if b.order == 'F' else 0)) * 4",
)
def emulated(
    a: Float32[Array, "M K"],
    b: Float32[Array, "K N"],
    bias: Float32[Array, " N"] | None = None,
    residual: Float32[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    vec: Literal[1, 4],
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    tile_m: int = 64,
    tile_n: int = 128,
    warp_m: int = 32,
    warp_n: int = 64,
    tile_k: int = 8,
    stages: int = 3,
    group_m: int = 4,
    split: int = 0,
    wave: int = 0,
) -> Float32[Array, "M N"]:
    """The kernel of `matmul_simt`, without its asynchronous copies."""
    raise NotImplementedError


@pytest.mark.parametrize(
    ("shape", "order", "vec", "more"),
    [
        ((1, 1, 1), "C", 1, {}),
        ((65, 17, 132), "C", 4, {}),
        ((65, 17, 131), "C", 1, {}),
        ((65, 17, 131), "F", 1, {}),
        ((5, 0, 8), "C", 4, {}),
        ((330, 9, 260), "C", 4, {"group_m": 2}),  # groups of tile rows, the last one short
        ((130, 40, 260), "C", 4, {"tile_m": 128, "tile_n": 256, "warp_m": 64, "stages": 4}),
        ((130, 33, 129), "F", 1, {"tile_m": 128, "tile_k": 16, "stages": 2}),
        ((70, 24, 132), "C", 4, {"stages": 2, "relu": True}),
        ((70, 24, 131), "C", 1, {"epilogue": "gelu", "scale": 0.5, "low": -0.1, "high": 2.0}),
        ((70, 50, 132), "C", 4, {"wave": 3, "relu": True}),  # four tiles, the last of seven steps in three parts
        ((130, 33, 260), "C", 4, {"wave": 8}),  # nine tiles: whole waves, and one in three parts
        ((130, 40, 132), "C", 4, {"wave": 7}),  # six tiles of five steps in seven parts: some blocks have two tiles
        ((70, 50, 132), "C", 4, {"split": 3, "relu": True}),  # four tiles, seven steps of each in three parts
        ((130, 33, 129), "F", 1, {"split": 2, "tile_m": 32, "tile_n": 32, "warp_n": 16, "tile_k": 16}),
        ((40, 9, 70), "C", 1, {"split": 4, "tile_n": 64, "warp_n": 32}),  # more parts than steps: some are empty
    ],
    ids=str,
)
def test_every_place_is_right_and_no_two_threads_race(
    shape: tuple[int, int, int], order: Literal["C", "F"], vec: Any, more: dict[str, Any]
) -> None:
    """With every check of the CPU backend on: bounds, races, uninitialised reads, outputs that are never written."""
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, *others = (rng.standard_normal(s, dtype=np.float32) for s in ((m, k), (n,), (m, n), (m,), (n,)))
    b = np.asarray(rng.standard_normal((k, n), dtype=np.float32), order=order)
    given = others if m == 70 else others[:1]
    with config.scope(cpu_check="full"):
        got = emulated(a, b, *given, vec=vec, **more)
    wide = [x.astype(np.float64) for x in (a, b, *given)]
    tiles = ("stages", "group_m", "tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "split", "wave")
    wanted = matmul_simt.reference(*wide, **{name: value for name, value in more.items() if name not in tiles})
    sizes = np.abs(wide[0]) @ np.abs(wide[1])
    sizes = sizes * np.abs(wide[4])[:, None] * np.abs(wide[5]) if m == 70 else sizes
    bound = (k + 8) * 2.0**-24 * (sizes + np.abs(wide[2]) + np.abs(wanted)) + 1e-30
    assert (np.abs(got - wanted) <= bound).all()


@pytest.mark.parametrize("tile", [16, 32])
def test_relu_keeps_nan(tile: Any) -> None:
    """What is not a number stays so, as in the reference, in every kernel: a zero would hide it."""
    a = np.full((3, 4), np.nan, np.float32)
    b, bias = np.ones((4, 8), np.float32), np.zeros(8, np.float32)
    assert np.isnan(matmul_epilogue.reference(a, b, bias, relu=True)).all()
    assert np.isnan(matmul_epilogue(a, b, bias, relu=True, tile=tile)).all()
    assert np.isnan(emulated(a, b, bias, vec=4, relu=True)).all()
