"""The mma.sync product without a GPU: its arithmetic on the CPU backend, and what it refuses."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from jaxtyping import Float16, Float32

from cuplate import Array, ArraySpec, DeviceError, Inline, ParameterError, config, specialize
from cuplate.kernels import matmul_mma, matmul_mma_ragged, matmul_mma_tma
from cuplate.kernels.epilogues import Activation, Expression

TEMPLATES = Path(__file__).parents[1] / "templates"
LARGE = tuple(ArraySpec(s, "bfloat16") for s in ((4096, 4096), (4096, 4096), (4096,)))
COLUMNS = (LARGE[0], ArraySpec((4096, 4096), "bfloat16", strides=(1, 4096)), LARGE[2])

# the arithmetic, on the CPU backend -----------------------------------------------------------------------------------

# What the instructions do, as the PTX manual has it: which lane holds which element, and whose address a matrix is at.
SHARED = "extern __shared__ __align__(128) unsigned char memory[];"
EMULATED = {
    "copy16": SHARED + "*(uint4*)(memory + to) = valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0);",
    "elected": "return (threadIdx.x & 31) == 0;",
    "fetch": SHARED
    + """
    unsigned* const r[4] = { &r0, &r1, &r2, &r3};
    const int lane = threadIdx.x & 31;
    for (int m = 0; m < 4; ++m)
        *r[m] = *(const unsigned*)(memory + __shfl_sync(0xffffffffu, from, m * 8 + lane / 4) + lane % 4 * 4);""",
    "fetch_turned": SHARED
    + """
    unsigned* const r[4] = { &r0, &r1, &r2, &r3};
    const int lane = threadIdx.x & 31;
    for (int m = 0; m < 4; ++m) {
        const unsigned low = __shfl_sync(0xffffffffu, from, m * 8 + lane % 4 * 2) + lane / 4 * 2;
        const unsigned high = __shfl_sync(0xffffffffu, from, m * 8 + lane % 4 * 2 + 1) + lane / 4 * 2;
        *r[m] = *(const unsigned short*)(memory + low) | (unsigned)*(const unsigned short*)(memory + high) << 16;
    }""",
    "multiply": """
    const int lane = threadIdx.x & 31;
    for (int k = 0; k < 16; ++k)
        for (int h = 0; h < 4; ++h) {
            const int from_a = lane / 4 * 4 + k % 8 / 2, from_b = (lane % 4 * 2 + (h & 1)) * 4 + k % 8 / 2;
            const unsigned x = __shfl_sync(0xffffffffu, a[(k / 8) * 2 + (h >> 1)], from_a) >> k % 2 * 16;
            const unsigned y = __shfl_sync(0xffffffffu, b[k / 8], from_b) >> k % 2 * 16;
            d[h] += widen(x) * widen(y);
        }""",
}
WIDEN = """#include <cuda_fp16.h>
__device__ float widen(const unsigned word) { return __half2float(__ushort_as_half((unsigned short)word)); }
"""
POISON = """
    for (int i = threadIdx.x; i < {{ stages * (tile_m + tile_n) * tile_k }}; i += {{ threads }})
        ((unsigned short*)memory)[i] = 0x7e00;
    __syncthreads();
"""
# What a tensor map does: a box of rows of 64, with its swizzle and zeros outside of the array. One thread copies, and
# who waits for a barrier waits for it.
BOXES = """
__device__ unsigned shared_address(const void* const p) { return 0u; }
__device__ void barrier_init(const unsigned barrier, const unsigned arrivals) {}
__device__ void barrier_expect(const unsigned barrier, const unsigned bytes) {}
__device__ void barrier_wait(const unsigned barrier, const unsigned parity) { __syncthreads(); }
__device__ void box_in(unsigned to, const void* from, int x, int y, int rows, int columns, int box)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const unsigned short* const p = (const unsigned short*)from;
    for (int r = 0; r < box; ++r)
        for (int c = 0; c < 64; ++c)
            *(unsigned short*)(memory + to + r * 128 + ((c / 8 ^ r % 8) * 8 + c % 8) * 2)
                = y + r < rows && x + c < columns ? p[(long long)(y + r) * columns + x + c] : 0;
}
"""
BOX_OF = {
    "a": "{{ M }}, {{ K }}, min((int){{ M }}, {{ tile_m }})",
    "b": "{{ 'N, K' if b_by_columns else 'K, N' }}, {{ tile_n if b_by_columns else 64 }}",
}


def without_ptx(name: str = "matmul_mma") -> str:
    """A template with instructions that are done at once: places, edges and barriers are those of the GPU."""
    text = (TEMPLATES / f"{name}.cu.j2").read_text(encoding="utf-8")
    text = text.replace('{% include "epilogue.cuh.j2" %}', f'{{% include "epilogue.cuh.j2" %}}\n{WIDEN}', 1)
    text = text.replace('{% include "boxes.cuh.j2" %}', BOXES + "{% set tile_k = 64 %}", 1)
    text = re.sub(
        r"copy_in\(([^,]*), &\{\{ (\w) \}\}, barrier, (.*?), (.*?)\);",
        lambda m: f"box_in({m[1]}, {{{{ {m[2]} }}}}, {m[3]}, {m[4]}, {BOX_OF[m[2]]});",
        text,
    )
    text = re.sub(
        r"\{% macro fetch_matrices.*?endmacro %\}\n.*?\n.*?\n", _both("fetch", "fetch_turned"), text, flags=re.DOTALL
    )
    for function, body in EMULATED.items():
        text, n = re.subn(
            rf"(void|unsigned|bool) {function}\(([^{{}}]*?)\)\n\{{.*?\n\}}\n",
            lambda m, function=function, body=body: f"{m[1]} {function}({m[2]})\n{{\n{body}\n}}\n",
            text,
            flags=re.DOTALL,
        )
        assert n == (function in text), function
    text = re.sub(
        r'asm volatile\("st\.shared\.v4.*?"memory"\);',
        SHARED + "*(uint4*)(memory + to) = *(uint4*)word;",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r'asm volatile\("(cp\.async\.\w+_group|fence)[^;]*;" ::: "memory"\);', "", text)
    text = re.sub(r"prefetch\(&\{\{ \w \}\}\);", "", text)
    text = text.replace("(unsigned)__cvta_generic_to_shared(memory)", "0u")
    text = text.replace("__forceinline__", "__noinline__")  # or a host compiler takes half a minute for each
    # The last step fetches ahead of what was copied, and uses nothing of it: whatever it did use would be NaN.
    text = text.replace("    // Tiles run down", f"{POISON}\n    // Tiles run down")
    assert "asm" not in text and "cvta" not in text and "0x7e00" in text
    return text


def _both(*names: str) -> str:
    results = ", ".join(f"unsigned& r{i}" for i in range(4))
    return "".join(
        f"__device__ __forceinline__ void {name}(const unsigned from, {results})\n{{\n;\n}}\n" for name in names
    )


@specialize(
    Inline(without_ptx()),
    entry="matmul_mma",
    grid="cdiv(M, tile_m) * cdiv(N, tile_n)",
    block="tile_m // warp_m * (tile_n // warp_n) * 32",
    shared_bytes="stages * (tile_m + tile_n) * tile_k * 2",
)
def emulated(
    a: Float16[Array, "M K"],
    b: Float16[Array, "K N"],
    bias: Float16[Array, " N"] | None = None,
    residual: Float16[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    vec: Literal[1, 8],
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    tile_m: int = 64,
    tile_n: int = 64,
    warp_m: int = 32,
    warp_n: int = 32,
    tile_k: int = 32,
    stages: int = 3,
    group_m: int = 4,
) -> Float16[Array, "M N"]:
    """The kernel of `matmul_mma`, with instructions of tensor cores done by shuffles."""
    raise NotImplementedError


@specialize(
    Inline(without_ptx("matmul_mma_tma")),
    entry="matmul_mma_tma",
    grid="cdiv(M, tile_m) * cdiv(N, tile_n)",
    block="tile_m // warp_m * (tile_n // warp_n) * 32",
    shared_bytes="stages * ((tile_m + tile_n) * 128 + 8)",
)
def emulated_tma(
    a: Float16[Array, "M K"],
    b: Float16[Array, "K N"],
    bias: Float16[Array, " N"] | None = None,
    residual: Float16[Array, "M N"] | None = None,
    row_scale: Float32[Array, " M"] | None = None,
    column_scale: Float32[Array, " N"] | None = None,
    *,
    epilogue: Activation | None = None,
    relu: bool | None = None,
    expression: Expression | None = None,
    scale: float | None = None,
    low: float | None = None,
    high: float | None = None,
    tile_m: int = 64,
    tile_n: int = 64,
    warp_m: int = 32,
    warp_n: int = 64,
    stages: int = 2,
    group_m: int = 4,
) -> Float16[Array, "M N"]:
    """The kernel of `matmul_mma_tma`, with boxes copied by one thread too."""
    raise NotImplementedError


@pytest.mark.parametrize(
    ("shape", "order", "vec", "more"),
    [
        ((1, 8, 8), "C", 8, {}),
        ((65, 40, 70), "F", 8, {}),
        ((65, 37, 71), "C", 1, {}),
        ((65, 37, 71), "F", 1, {"relu": True}),
        ((5, 0, 8), "C", 8, {}),
        ((200, 40, 136), "C", 8, {"group_m": 2, "relu": True}),  # groups of tile rows, the last one short
        ((66, 136, 72), "C", 8, {"tile_k": 64, "stages": 2}),
        ((66, 136, 72), "F", 8, {"tile_k": 64, "stages": 2}),
        ((70, 96, 136), "C", 8, {"tile_n": 128, "warp_n": 64, "stages": 4}),
        ((20, 24, 24), "C", 8, {"epilogue": "gelu"}),
        ((20, 24, 24), "C", 8, {"epilogue": "gelu_tanh", "high": 1.0}),
        ((20, 24, 24), "C", 8, {"epilogue": "silu", "low": 0.25, "high": 1.5}),
        ((67, 24, 70), "F", 8, {"scale": 0.25, "epilogue": "relu"}),
        ((67, 24, 71), "C", 1, {"expression": "row < column ? x : residual"}),
    ],
    ids=str,
)
def test_every_place_is_right_and_no_two_threads_race(
    shape: tuple[int, int, int], order: Literal["C", "F"], vec: Any, more: dict[str, Any]
) -> None:
    """With every check of the CPU backend on: bounds, races, uninitialised reads, outputs that are never written."""
    m, k, n = shape
    rng = np.random.default_rng(m)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = np.asarray(rng.standard_normal((k, n)).astype(np.float16), order=order)
    bias = None if m == 66 else rng.standard_normal(n).astype(np.float16)
    others = (rng.standard_normal((m, n)).astype(np.float16), *(rng.random(s, dtype=np.float32) for s in (m, n)))
    given = (a, b, bias, *(others if m == 67 else ()))
    with config.scope(cpu_check="full"):
        got = emulated(*given, vec=vec, **more)
    assert_near(got, given, more)


@pytest.mark.parametrize(
    ("shape", "order", "more"),
    [
        ((66, 264, 200), "C", {"tile_n": 128, "warp_m": 64, "stages": 3}),
        ((67, 72, 70), "F", {"scale": 0.25, "epilogue": "relu"}),
    ],
    ids=str,
)
def test_boxes_are_read_where_they_come_and_not_overwritten(
    shape: tuple[int, int, int], order: Literal["C", "F"], more: dict[str, Any]
) -> None:
    """The same with every check on: a tile that is copied before all have read what lay there would be a race."""
    m, k, n = shape
    rng = np.random.default_rng(m)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = np.asarray(rng.standard_normal((k, n)).astype(np.float16), order=order)
    others = (rng.standard_normal((m, n)).astype(np.float16), *(rng.random(s, dtype=np.float32) for s in (m, n)))
    given = (a, b, None if m == 66 else rng.standard_normal(n).astype(np.float16), *(others if m == 67 else ()))
    with config.scope(cpu_check="full"):
        got = emulated_tma(*given, **more)
    assert_near(got, given, more)


def assert_near(got: Any, given: tuple[Any, ...], more: dict[str, Any]) -> None:
    """One rounding to float16 of the result, and what float32 loses of each sum."""
    wide = [None if x is None else x.astype(np.float64) for x in given]
    tiles = ("group_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages")
    wanted = matmul_mma.reference(*wide, **{name: value for name, value in more.items() if name not in tiles})  # type: ignore[arg-type]
    bound = 2.0**-10 * np.abs(wanted) + 2.0**-18 * (np.abs(wide[0]) @ np.abs(wide[1]) + 1)  # type: ignore[arg-type,operator]
    assert (np.abs(got - wanted) <= bound).all()


def test_not_a_number_stays() -> None:
    """A zero would hide it."""
    a = np.full((3, 8), np.nan, np.float16)
    b = np.ones((8, 8), np.float16)
    assert np.isnan(emulated(a, b, vec=8, relu=True, low=0.0, high=1.0)).all()
    assert np.isnan(matmul_mma.reference(a, b, relu=True)).all()


# what it takes --------------------------------------------------------------------------------------------------------


def test_the_source_includes_nothing() -> None:
    """Header-free; each product is one instruction of tensor cores, with sums in float32."""
    report = matmul_mma.inspect(*LARGE, relu=True, arch="sm_80")
    assert "#include" not in report.source
    assert report.ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 2 * 4 * 8
    assert "cp.async.cg.shared.global" in report.ptx and "ldmatrix" in report.ptx
    report = matmul_mma_tma.inspect(*LARGE, relu=True, arch="sm_120")
    assert "#include" not in report.source and report.arch == "sm_120"
    assert report.ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 4 * 4 * 8
    assert "wgmma" not in report.ptx


@pytest.mark.parametrize("m", [1, 4096])
@pytest.mark.parametrize("arrays", [LARGE, COLUMNS], ids=["C", "F"])
@pytest.mark.parametrize("given", [{}, {"tile_n": 256, "stages": 4}, {"tile_m": 64, "tile_n": 64, "warp_m": 32}])
def test_a_stage_waits_for_the_bytes_that_its_boxes_bring(given: dict[str, Any], arrays: Any, m: int) -> None:
    """One too many and the kernel hangs; barriers end where shared memory does, and every box begins at its swizzle."""
    inspection: Any = matmul_mma_tma.inspect
    described = inspection.__self__._described((ArraySpec((m, 4096), "bfloat16"), *arrays[1:]), given, "sm_90")
    plan, text = described.plan, described.content.source.text
    tile_m, tile_n, stages = (dict(plan.specialization.parameters)[name] for name in ("tile_m", "tile_n", "stages"))
    rows, b_bytes = map(int, re.search(r"min\(\(int\)\w+, (\d+)\) \* 128u \+ (\d+)u", text).groups())  # type: ignore[union-attr]
    a_box, b_box = plan.maps["a"].box, plan.maps["b"].box
    assert min(m, rows) * 128 == a_box[0] * a_box[1] * 2 and a_box == (min(m, tile_m), 64)
    copies = int(re.search(r"panel < (\d+)", text)[1]) if arrays is LARGE else 1  # type: ignore[index]
    assert b_bytes == copies * b_box[0] * b_box[1] * 2 == tile_n * 128
    (barriers,) = map(int, re.findall(r"full = ring \+ (\d+)u", text))
    assert barriers == stages * (tile_m + tile_n) * 128 and plan.grid.shared_memory_bytes == barriers + stages * 8
    assert all(int(n) % 1024 == 0 for n in re.findall(r"stage \+ (\d+)u", text))


def test_parameters_that_leave_part_of_a_tile_uncopied_are_refused() -> None:
    """All combinations: each is refused, or its copy passes cover both tiles exactly."""
    refused = taken = 0
    tiles = itertools.product((64, 256), (128,), (32, 64), (32,), (32, 64))
    for tile_m, tile_n, tile_k, warp_m, warp_n in tiles:
        given = {"tile_m": tile_m, "tile_n": tile_n, "warp_m": warp_m, "warp_n": warp_n, "tile_k": tile_k}
        for arrays in (LARGE, COLUMNS):
            matmul_mma.reload()  # or there is a warning of so many renderings
            inspection: Any = matmul_mma.inspect
            try:
                described = inspection.__self__._described(arrays, {**given, "stages": 2}, "sm_90")
            except ParameterError:
                refused += 1
                continue
            taken += 1
            text, threads = described.content.source.text, described.plan.specialization.block[0]
            a_passes, b_passes = map(
                int, re.findall(r"i < (\d+); \+\+i\) *(?:\{\s+const bool row_there|\s+copy16)", text)
            )
            assert a_passes * threads * 8 == tile_m * tile_k and b_passes * threads * 8 == tile_n * tile_k
    assert refused and taken > 4


@pytest.mark.parametrize(
    ("a", "b", "condition"),
    [
        (ArraySpec((64, 60), "float16"), ArraySpec((60, 64), "float16"), "K % 8"),
        (ArraySpec((64, 64), "float16"), ArraySpec((64, 60), "float16"), "K % 8"),
        (ArraySpec((64, 64), "float16"), ArraySpec((64, 61), "float16", strides=(1, 64)), "K % 8"),
        (ArraySpec((64, 64), "float16", alignment=8), ArraySpec((64, 64), "float16"), "a.aligned"),
        (ArraySpec((64, 64), "float16"), ArraySpec((64, 64), "float16", alignment=8), "b.aligned"),
    ],
    ids=str,
)
def test_what_is_not_aligned_is_for_the_other_function(a: ArraySpec, b: ArraySpec, condition: str) -> None:
    """Refused with the condition; the ragged function takes it."""
    with pytest.raises(ParameterError, match=re.escape(condition)):
        matmul_mma.inspect(a, b, arch="sm_80")
    matmul_mma_ragged.inspect.__self__._described((a, b), {}, "sm_80")  # type: ignore[attr-defined]


def test_older_architectures_and_the_cpu_backend_are_refused() -> None:
    """Inline PTX of sm_80."""
    with pytest.raises(ParameterError, match="arch >= 80"):
        matmul_mma.inspect(*LARGE, arch="sm_75")
    with pytest.raises(DeviceError, match="sm_90 or later"):
        matmul_mma_tma.inspect(*LARGE, arch="sm_89")
    x = np.zeros((8, 8), np.float16)
    with pytest.raises(ParameterError, match="on_gpu"):
        matmul_mma(x, x)
