"""The products on tensor cores, on a GPU: against float64 over poisoned memory, with fresh data in every call."""

from __future__ import annotations

from typing import Any

import cupy
import pytest

from cuplate import LayoutError, ParameterError
from cuplate.kernels import (
    matmul_epilogue,
    matmul_mma,
    matmul_mma_ragged,
    matmul_mma_tma,
    matmul_wgmma,
    matmul_wgmma_flat,
    matmul_wgmma_small,
    matmul_wgmma_split,
    matmul_wgmma_split_tuned,
    matmul_wgmma_tuned,
    matmul_wgmma_wide,
)

CAPABILITY = int(cupy.cuda.Device().compute_capability)
hopper = pytest.mark.skipif(CAPABILITY != 90, reason="wgmma is of sm_90 alone")
pytestmark = [
    pytest.mark.skipif(CAPABILITY < 80, reason="mma.sync of 16-bit floats needs sm_80 or later"),
    pytest.mark.filterwarnings("ignore:cuplate. .* has been rendered in"),
]

COOPERATIVE = {"tile_n": 256, "stages": 4, "cluster": 2, "schedule": "cooperative"}
TALL = {"tile_m": 256, "stages": 4, "cluster": 2, "schedule": "cooperative"}
WGMMA: list[tuple[Any, dict[str, Any]]] = [
    (matmul_wgmma, {}), (matmul_wgmma_wide, {"cluster": 2}), (matmul_wgmma_small, {}), (matmul_wgmma, COOPERATIVE),
    (matmul_wgmma, TALL), (matmul_wgmma_flat, {}),
    (matmul_wgmma, {"tile_n": 64, "stages": 2, "cluster": 2, "group_m": 4}),
]  # fmt: skip
SPLIT: list[tuple[Any, dict[str, Any]]] = [
    (matmul_wgmma_split, {}), (matmul_wgmma_split, {"split": 8}),
    (matmul_wgmma_split, {"split": 1, "tile_n": 128, "stages": 4}),
    (matmul_wgmma_split, {"tile_m": 128, "tile_n": 128, "stages": 5, "split": 4}),
    (matmul_wgmma_split, {"tile_m": 256, "tile_n": 128, "stages": 3}),
]  # fmt: skip
MMA: list[tuple[Any, dict[str, Any]]] = [
    (matmul_mma, {}), (matmul_mma, {"tile_n": 256, "tile_k": 32, "stages": 3}),
    (matmul_mma, {"tile_m": 64, "tile_n": 64, "warp_m": 32, "warp_n": 32, "tile_k": 64, "stages": 2}),
]  # fmt: skip
TMA: list[tuple[Any, dict[str, Any]]] = [
    (matmul_mma_tma, {}), (matmul_mma_tma, {"tile_n": 256, "stages": 4, "group_m": 4}),
    (matmul_mma_tma, {"tile_m": 64, "tile_n": 64, "warp_m": 32, "stages": 2}),
]  # fmt: skip
MAPPED = [(matmul_mma_tma, {})] if CAPABILITY >= 90 else []
# M, K, N: both sides of a tile's edges, one row, K below and above the ring and no multiple of its depth.
SHAPES = [
    (128, 64, 128), (256, 256, 256), (1, 8, 8), (129, 72, 520), (200, 136, 264), (127, 8, 192), (1000, 1000, 1000),
    (64, 2056, 200), (2049, 1056, 1032), (640, 4096, 3000), (65, 520, 16),
]  # fmt: skip
RAGGED = [(1, 1, 1), (37, 29, 53), (129, 65, 131), (300, 0, 77), (200, 1001, 263)]
BITS = {"bfloat16": 8, "float16": 11}
GUARD = 64


def ids(case: Any) -> str:
    """A function and what it is given."""
    return (
        f"{case[0].__name__}-{'-'.join(f'{k}={v}' for k, v in case[1].items())}"
        if isinstance(case, tuple)
        else str(case)
    )


def inputs(
    torch: Any, shape: Any, *, order: str = "C", dtype: str = "bfloat16", offset: int = 0
) -> tuple[Any, Any, Any]:
    """Fresh normal data, `offset` elements into their memory; `b` by rows or by columns."""
    m, k, n = shape
    kind = getattr(torch, dtype)

    def view(rows: int, columns: int) -> Any:
        memory = torch.randn(rows * columns + offset, device="cuda").to(kind)
        return memory[offset:].view(rows, columns)

    b = view(n, k).T if order == "F" else view(k, n)
    return view(m, k), b, torch.randn(n, device="cuda").to(kind)


def poisoned(torch: Any, m: int, n: int, dtype: str = "bfloat16", offset: int = 0) -> tuple[Any, Any]:
    """An output full of NaN within memory full of NaN, which nobody may write."""
    memory = torch.full((m * n + 2 * GUARD + offset,), float("nan"), device="cuda", dtype=getattr(torch, dtype))
    return memory[GUARD + offset : GUARD + offset + m * n].view(m, n), memory


def untouched(torch: Any, memory: Any, out: Any) -> bool:
    """Whether nothing was written but `out`."""
    start = (out.data_ptr() - memory.data_ptr()) // out.element_size()
    around = torch.cat([memory[:start], memory[start + out.numel() :]])
    return bool(torch.isnan(around).all())


def activated(torch: Any, x: Any, epilogue: str) -> Any:
    """In float64."""
    nn = torch.nn.functional
    return {
        "identity": lambda: x, "relu": lambda: torch.relu(x), "gelu": lambda: nn.gelu(x),
        "gelu_tanh": lambda: nn.gelu(x, approximate="tanh"), "silu": lambda: nn.silu(x),
    }[epilogue]()  # fmt: skip


def assert_right(torch: Any, got: Any, a: Any, b: Any, bias: Any = None, epilogue: str = "identity") -> None:
    """One rounding of the result, and what tensor cores lose of each sum: 2**-22 of its terms for 8 of them.

    The Frobenius norm of the error is that of one rounding: a tail of K that is left out is far beyond it.
    """
    k = a.shape[1]
    a, b = a.double(), b.double()
    wanted = a @ b + (0 if bias is None else bias.double())
    sizes = a.abs() @ b.abs() + (0 if bias is None else bias.double().abs())
    wanted = activated(torch, wanted, epilogue)
    step = 2.0 ** -BITS[str(got.dtype).removeprefix("torch.")]
    error = (got.double() - wanted).abs()
    bound = step * wanted.abs() * 1.01 + (k / 8 + 4) * 2.0**-22 * sizes + 2.0**-20
    assert not bool(torch.isnan(got).any()), "an element was not written"
    assert bool((error <= bound).all()), f"an error of {float((error / bound).max())} times the bound"
    norm = float(wanted.norm())
    assert float(error.norm()) <= step * norm + 1e-6 * norm + 1e-6


def run(
    torch: Any,
    case: Any,
    shape: Any,
    order: str,
    dtype: str = "bfloat16",
    epilogue: str = "identity",
    biases: tuple[bool, ...] = (True, False),
) -> None:
    """One call over poisoned memory, with a bias and without."""
    function, given = case
    m, _, n = shape
    for with_bias in biases:
        a, b, bias = inputs(torch, shape, order=order, dtype=dtype)
        bias = bias if with_bias else None
        out, memory = poisoned(torch, m, n, dtype)
        assert function(a, b, bias, epilogue=epilogue, out=out, **given) is out
        torch.cuda.synchronize()
        assert_right(torch, out, a, b, bias, epilogue)
        assert untouched(torch, memory, out)


@hopper
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("case", [*WGMMA, *SPLIT], ids=ids)
def test_wgmma_is_right(torch: Any, case: Any, order: str, shape: tuple[int, int, int]) -> None:
    """Every tile, both orders of `b`, both schedules."""
    run(torch, case, shape, order)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("case", [*MMA, *(TMA if CAPABILITY >= 90 else [])], ids=ids)
def test_mma_is_right(torch: Any, case: Any, order: str, shape: tuple[int, int, int]) -> None:
    """Every tile, both orders of `b`."""
    run(torch, case, shape, order)


@pytest.mark.parametrize("shape", [*RAGGED, *SHAPES[:5]], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_shape_is_right(torch: Any, order: str, shape: tuple[int, int, int]) -> None:
    """What no other function takes, K = 0 too, which is the bias."""
    for dtype in BITS:
        run(torch, (matmul_mma_ragged, {}), shape, order, dtype)


def families() -> list[Any]:
    """One of each text."""
    return [(matmul_mma, {}), (matmul_mma_ragged, {}), *MAPPED] + (
        [(matmul_wgmma, {}), (matmul_wgmma_wide, {}), (matmul_wgmma_split, {})] if CAPABILITY == 90 else []
    )


@pytest.mark.parametrize("epilogue", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", BITS)
def test_epilogues(torch: Any, dtype: str, epilogue: str) -> None:
    """Each activation, in both dtypes."""
    for case in families():
        run(torch, case, (200, 136, 264), "C", dtype, epilogue, biases=(True,))


def test_limits_and_nan(torch: Any) -> None:
    """What is clipped is clipped; a NaN stays one, through relu and limits."""
    for function, _ in families():
        a, b, bias = inputs(torch, (200, 64, 136))
        got = function(a, b, bias, low=-1.5, high=2.0)
        wanted = (a.double() @ b.double() + bias.double()).clamp(-1.5, 2.0)
        assert float((got.double() - wanted).abs().max()) <= 2.0**-6
        a[3, 5] = float("nan")
        for given in ({"relu": True}, {"low": 0.0, "high": 1.0}):
            got = function(a, b, **given)
            assert bool(torch.isnan(got[3]).all()) and not bool(
                torch.isnan(got[:3]).any() or torch.isnan(got[4:]).any()
            )


def test_arrays_within_others(torch: Any) -> None:
    """Views that are aligned, and rows with gaps, run; what is not aligned is refused where it cannot."""
    whole = torch.randn(300, 256, device="cuda").bfloat16()
    b = torch.randn(128, 264, device="cuda").bfloat16()
    for function, _ in families():
        a, wide, _ = inputs(torch, (200, 64, 136), offset=8)
        assert_right(torch, function(a, wide), a, wide)
        if function in (matmul_wgmma, matmul_wgmma_wide, matmul_wgmma_split, matmul_mma_tma):
            padded = whole[7:207, 16:144]
            assert_right(torch, function(padded, b), padded, b)
            with pytest.raises(LayoutError, match="no multiple of 16"):
                function(*inputs(torch, (200, 64, 136), offset=1))
            out, _ = poisoned(torch, 200, 136, offset=1)
            mapped = function not in (matmul_wgmma_split, matmul_mma_tma)
            error = LayoutError if mapped else ParameterError
            with pytest.raises(error, match="'out' is read through a tensor map" if mapped else "aligned"):
                function(a, wide, out=out)
        elif function is matmul_mma:
            with pytest.raises(ParameterError, match="aligned"):
                function(*inputs(torch, (200, 64, 136), offset=1))
        else:
            for offset in (1, 2, 3):
                a, wide, bias = inputs(torch, (200, 64, 136), offset=offset)
                out, memory = poisoned(torch, 200, 136, offset=offset)
                function(a, wide, bias, out=out)
                assert_right(torch, out, a, wide, bias)
                assert untouched(torch, memory, out)


def test_without_elements(torch: Any) -> None:
    """K = 0 is the bias where a kernel takes it, and refused where no tensor map can; no rows are no launch."""
    bias = torch.randn(64, device="cuda").bfloat16()
    a, b = torch.empty(32, 0, device="cuda").bfloat16(), torch.empty(0, 64, device="cuda").bfloat16()
    assert bool((matmul_mma(a, b, bias) == bias).all())
    for function in [matmul_wgmma] * (CAPABILITY == 90) + [matmul_mma_tma] * (CAPABILITY >= 90):
        with pytest.raises(LayoutError, match="without elements"):
            function(a, b, bias)
    for function, _ in families():
        assert function(a[:0].new_empty(0, 64), b.new_empty(64, 64)).shape == (0, 64)


@pytest.mark.parametrize("order", ["C", "F"])
def test_it_repeats_to_the_bit(torch: Any, order: str) -> None:
    """A hundred times over poisoned memory: a tile that is read before it has come, or written over, would differ."""
    cases = [*MMA[:2], (matmul_mma_ragged, {}), *(TMA[:2] if CAPABILITY >= 90 else [])]
    cases += [*WGMMA, *SPLIT] if CAPABILITY == 90 else []
    for function, given in cases:
        a, b, bias = inputs(torch, (1000, 1032, 1096), order=order)
        first = function(a, b, bias, **given)
        assert_right(torch, first, a, b, bias)
        for _ in range(100):
            out, _ = poisoned(torch, 1000, 1096)
            function(a, b, bias, out=out, **given)
            assert torch.equal(out, first)


@pytest.mark.skipif(CAPABILITY < 90, reason="tensor maps are of sm_90 and later")
@pytest.mark.parametrize("case", TMA, ids=ids)
def test_no_copy_overtakes_a_fetch(torch: Any, case: Any) -> None:
    """Many blocks and a deep K, where fetches wait in a queue: a copy that does not wait for them shows here."""
    function, given = case
    a, b, bias = inputs(torch, (4096, 4096, 4096))
    first = function(a, b, bias, **given)
    wanted = a.float() @ b.float() + bias.float()
    assert float((first.float() - wanted).norm() / wanted.norm()) < 2.5e-3
    for _ in range(60):
        assert torch.equal(function(a, b, bias, **given), first)


def test_streams_side_by_side(torch: Any) -> None:
    """Two products at once, each on part of the device."""
    for case in families():
        function, given = case
        sets = [inputs(torch, (520, 1032, 776)) for _ in range(4)]
        streams = [torch.cuda.Stream() for _ in sets]
        torch.cuda.synchronize()
        got = []
        for _ in range(10):
            for stream, arrays in zip(streams, sets, strict=True):
                with torch.cuda.stream(stream):
                    got.append((function(*arrays, **given), arrays))
        torch.cuda.synchronize()
        for out, arrays in got:
            assert_right(torch, out, *arrays)


def test_a_graph_captures_it_and_replays(torch: Any) -> None:
    """New inputs in the same memory give new outputs."""
    for function, given in families():
        a, b, bias = inputs(torch, (520, 136, 776))
        out, _ = poisoned(torch, 520, 776)
        function(a, b, bias, out=out, **given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function(a, b, bias, out=out, **given)
        a.mul_(-2)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_right(torch, out, a, b, bias)


def test_cupys_arrays_take_it_too(torch: Any) -> None:
    """float16, which CuPy has of its own."""
    for function, given in families():
        a, b, bias = inputs(torch, (200, 136, 264), dtype="float16")
        got = function(*(cupy.asarray(x) for x in (a, b, bias)), **given)
        assert isinstance(got, cupy.ndarray)
        assert_right(torch, torch.from_dlpack(got), a, b, bias)


def test_indices_pass_32_bits(torch: Any) -> None:
    """An output, and inputs, of more than 2**31 bytes: the far corners are right."""
    cases = [(matmul_mma, {}), (matmul_mma_ragged, {}), *MAPPED]
    cases += (
        [(matmul_wgmma_wide, {}), (matmul_wgmma, COOPERATIVE), (matmul_wgmma_split, {})] if CAPABILITY == 90 else []
    )
    for function, given in cases:
        for m, k, n in ((150_008, 64, 8192), (264, 4_200_000, 264)):
            a, b, _ = inputs(torch, (m, k, n))
            out = function(a, b, **given)
            for rows in (slice(0, 40), slice(m - 40, m)):
                part = a[rows]
                if k < 1000:
                    assert_right(torch, out[rows], part, b)
                else:
                    wanted = part.float() @ b.float()
                    assert float((out[rows].float() - wanted).norm() / wanted.norm()) < 2e-2
            del a, b, out
            torch.cuda.empty_cache()


@hopper
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("m", [1, 5, 64, 100, 128, 500])
def test_what_is_chosen_is_right(torch: Any, m: int, order: str) -> None:
    """Few rows and many columns, few tiles and a deep K: `matmul_epilogue` picks each of the forms somewhere."""
    for k, n in ((4096, 4096), (16_384, 1024), (768, 2304), (520, 520)):
        run(torch, (matmul_epilogue, {}), (m, k, n), order, biases=(True,))


@hopper
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (matmul_wgmma_tuned, (1000, 520, 1032)),
        (matmul_wgmma_tuned, (4096, 512, 4096)),
        (matmul_wgmma_split_tuned, (200, 1032, 520)),
    ],
    ids=str,
)
def test_a_tile_that_is_measured_is_right_and_the_fastest(
    torch: Any, function: Any, shape: tuple[int, int, int]
) -> None:
    """The first call measures every tile; none that ran as often took less."""
    m, _, n = shape
    a, b, bias = inputs(torch, shape)
    out, memory = poisoned(torch, m, n)
    function(a, b, bias, epilogue="relu", out=out)
    assert_right(torch, out, a, b, bias, "relu")
    assert untouched(torch, memory, out)
    table = function.tuning(a, b, bias, epilogue="relu", out=out)
    winner = table.tried[table.winner]
    assert table.origin in ("measured", "stored") and {t.state for t in table.tried} <= {"measured", "slow"}
    again = [t.median_s for t in table.tried if t.samples >= winner.samples]
    assert winner.median_s <= min(again) * 1.011  # within 1 % the first one wins
    assert function.tune(a, b, bias, epilogue="relu", out=out).origin == "measured"
