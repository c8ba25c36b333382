"""What every shipped function takes on every architecture: registers, spills, stack, static shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cuplate import ArraySpec, kernels
from cuplate.baseline import Baseline
from cuplate.kernels import (
    fused_elementwise,
    histogram,
    inclusive_scan,
    inclusive_scan_large,
    inclusive_scan_small,
    layer_norm,
    matmul_epilogue,
    matmul_mma,
    matmul_mma_ragged,
    matmul_mma_tma,
    matmul_simt,
    matmul_simt_balanced,
    matmul_simt_medium,
    matmul_simt_ragged,
    matmul_simt_ragged_medium,
    matmul_simt_ragged_small,
    matmul_simt_ragged_split,
    matmul_simt_ragged_split_small,
    matmul_simt_small,
    matmul_simt_split,
    matmul_simt_split_small,
    matmul_split,
    matmul_split_small,
    matmul_split_wide,
    matmul_wgmma,
    matmul_wgmma_flat,
    matmul_wgmma_single,
    matmul_wgmma_small,
    matmul_wgmma_split,
    matmul_wgmma_split_deep,
    matmul_wgmma_split_tall,
    matmul_wgmma_split_tuned,
    matmul_wgmma_tuned,
    matmul_wgmma_wide,
    rms_norm,
    row_argmax,
    row_reduce,
    softmax,
    transpose,
)

pytestmark = pytest.mark.filterwarnings("ignore:cuplate. .* has been rendered in")

RECORD = Path(__file__).parent / "resources.json"
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")


class Compiled(NamedTuple):
    """One call that is recorded, for each of some architectures."""

    function: Any
    arrays: tuple[ArraySpec, ...]
    parameters: dict[str, Any]
    archs: tuple[str, ...] = ARCHS

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.parameters.items()]
        columns = ["b by columns"] if self.arrays[1:] and self.arrays[1].strides else []
        shape = "x".join(map(str, self.arrays[0].shape or ()))
        more = ["residual and scales"] if self.function.__name__[:6] == "matmul" and self.arrays[3:] else []
        return "-".join([self.function.__name__, self.arrays[0].dtype, shape, *columns, *more, *said])


def memory_bound() -> list[Compiled]:
    """Each dtype where rows are held and where they are not, each operation, each size of element."""
    made: list[Compiled] = []
    for dtype in ("float32", "float16", "bfloat16"):
        for columns in (1000, 8192, 50_000) if dtype == "float32" else (8192,):
            x, w = ArraySpec((4096, columns), dtype), ArraySpec((columns,), dtype)
            rows = ((softmax, (x,)), (layer_norm, (x, w, w)), (rms_norm, (x, w)), (row_argmax, (x,)))
            made += [Compiled(f, arrays, {}) for f, arrays in rows]
            made += [Compiled(row_reduce, (x,), {"op": op}) for op in ("sum", "max", "logsumexp")]
        x, w = ArraySpec((4096, 8192), dtype), ArraySpec((8192,), dtype)
        longer, w16 = ArraySpec((4096, 16_384), dtype), ArraySpec((16_384,), dtype)
        rows = (
            (layer_norm, (longer, w16, w16)),
            (rms_norm, (longer, w16)),
            (softmax, (longer,)),
            (row_argmax, (longer,)),
        )
        made += [Compiled(f, arrays, {}) for f, arrays in rows]  # held at twice as many elements a thread
        made += [Compiled(fused_elementwise, (x, w, w, x), {"activation": a}) for a in ("gelu", "silu")]
        scans = (inclusive_scan_large, inclusive_scan, inclusive_scan_small)
        made += [Compiled(f, (ArraySpec((2**24,), dtype),), {}) for f in scans]
    made += [Compiled(transpose, (ArraySpec((4096, 8192), d),), {}) for d in ("int8", "float16", "float32", "float64")]
    made += [Compiled(histogram, (ArraySpec((2**28,), d),), {}) for d in ("uint8", "int32", "int64")]
    return made


def product(dtype: str, order: str = "C", *, more: bool = False) -> tuple[ArraySpec, ...]:
    """The arrays of a product; `more`: a residual and both scales too."""
    b = ArraySpec((4096, 4096), dtype, strides=(1, 4096) if order == "F" else None)
    row = ArraySpec((4096,))
    given = (ArraySpec((4096, 4096), dtype), b, ArraySpec((4096,), dtype))
    return (*given, ArraySpec((4096, 4096), dtype), row, row) if more else given


# The tiles that were measured in a prototype, and the ones that fill the registers.
WGMMA: tuple[tuple[Any, dict[str, Any]], ...] = (
    (matmul_wgmma, {}),
    (matmul_wgmma_wide, {}),
    (matmul_wgmma_small, {}),
    (matmul_wgmma_flat, {}),
    (matmul_wgmma_single, {}),
    (matmul_wgmma_split, {}),
    (matmul_wgmma_split_tall, {}),
    (matmul_wgmma_split_deep, {}),
    (matmul_wgmma, {"tile_n": 256, "stages": 4, "cluster": 2, "schedule": "cooperative"}),
)
SIMT = (
    (matmul_simt_medium, "C"),
    (matmul_simt_small, "C"),
    (matmul_simt_split, "C"),
    (matmul_simt_split_small, "C"),
    (matmul_simt_ragged_medium, "F"),
    (matmul_simt_ragged_small, "F"),
    (matmul_simt_ragged_split, "F"),
    (matmul_simt_ragged_split_small, "F"),
)
SMALLER = (matmul_wgmma, matmul_wgmma_small, matmul_wgmma_split_deep)


def products() -> list[Compiled]:
    """Each kind of copy, both orders of `b`; activations that are more than one instruction."""
    made = [Compiled(matmul_epilogue, product("float32"), {"tile": 16, "relu": True})]
    for f, order in (
        (matmul_simt, "C"),
        (matmul_simt_balanced, "C"),
        (matmul_simt_ragged, "C"),
        (matmul_simt_ragged, "F"),
    ):
        made += [Compiled(f, product("float32", order), {"relu": relu}) for relu in (False, True)]
    made += [Compiled(f, product("float32", order), {"relu": True}) for f, order in SIMT]
    made.append(Compiled(matmul_mma, product("bfloat16"), {"relu": True}))
    made.append(Compiled(matmul_mma, product("bfloat16", "F"), {"relu": True}, ("sm_80", "sm_90")))
    made.append(Compiled(matmul_mma, product("float16"), {"epilogue": "gelu"}, ("sm_80",)))
    made.append(Compiled(matmul_mma_ragged, product("bfloat16", "F"), {"relu": True}))
    for order in ("C", "F"):
        made.append(Compiled(matmul_mma_tma, product("bfloat16", order), {"relu": True}, ("sm_90", "sm_100", "sm_120")))
    made.append(Compiled(matmul_mma_tma, product("float16", more=True), {"epilogue": "gelu"}, ("sm_120",)))
    made += [Compiled(f, product("bfloat16"), {"relu": True, **given}, ("sm_90a",)) for f, given in WGMMA]
    made.append(Compiled(matmul_wgmma_wide, product("float16", "F"), {"epilogue": "gelu"}, ("sm_90a",)))
    made.append(Compiled(matmul_epilogue, product("bfloat16", "F", more=True), {"tile": 16}, ("sm_90",)))
    made.append(Compiled(matmul_simt, product("float32", more=True), {}, ("sm_90",)))
    made.append(Compiled(matmul_mma, product("bfloat16", more=True), {"epilogue": "gelu"}, ("sm_80",)))
    # (with a bias, a residual and both scales the widest tile puts away 12 bytes in its epilogue)
    made += [Compiled(f, product("bfloat16", more=True), {"epilogue": "silu"}, ("sm_90a",)) for f in SMALLER]
    for f, precision in ((matmul_split, "bf16x6"), (matmul_split_wide, "bf16x3"), (matmul_split_small, "bf16x3")):
        made.append(Compiled(f, product("float32"), {"precision": precision, "relu": True}, ("sm_90a",)))
    more = {"precision": "bf16x6", "epilogue": "gelu"}
    made.append(Compiled(matmul_split_wide, product("float32", "F", more=True), more, ("sm_90a",)))
    square = {"tile_m": 128, "tile_n": 128, "stages": 5, "split": 2}
    made.append(Compiled(matmul_wgmma_split_tuned, product("bfloat16", "F"), {"relu": True, **square}, ("sm_90a",)))
    flat = {"tile_m": 64, "tile_n": 256, "stages": 4, "cluster": 1, "schedule": "pingpong"}
    made.append(Compiled(matmul_wgmma_tuned, product("bfloat16"), {"relu": True, **flat}, ("sm_90a",)))
    return made


CALLS = [*memory_bound(), *products()]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_nothing_spills_and_registers_do_not_grow(call: Compiled) -> None:
    """For every architecture, against the record; no header is asked for. To record anew: run this file."""
    f, arrays, parameters, archs = call
    allow = {"registers": "25%"}  # compilers of one major version differ by so much
    used = Baseline(RECORD, allow=allow).check(f, *arrays, arch=archs, **parameters)
    assert {r.spill_store_bytes + r.spill_load_bytes for r in used.values()} == {0}  # type: ignore[operator]
    assert "#include" not in f.inspect(*arrays, arch=archs[0], **parameters).source


def test_every_shipped_function_is_recorded() -> None:
    """A new one joins the list above."""
    assert {call.function.__name__ for call in CALLS} == set(kernels.__all__)


if __name__ == "__main__":
    record = Baseline(RECORD, update=True)
    for call in CALLS:
        record.check(call.function, *call.arrays, arch=call.archs, **call.parameters)
    print(record.save())
