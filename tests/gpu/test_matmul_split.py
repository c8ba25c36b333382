"""float32 by sums of bfloat16 on a GPU: against float64 over poisoned memory, with fresh data in every call."""

from __future__ import annotations

from typing import Any

import cupy
import pytest

from cuplate.kernels import matmul_epilogue, matmul_split, matmul_split_small, matmul_split_wide
from tests.gpu.test_matmul_tensor import activated, poisoned, untouched

pytestmark = [
    pytest.mark.skipif(int(cupy.cuda.Device().compute_capability) != 90, reason="wgmma is of sm_90 alone"),
    pytest.mark.filterwarnings("ignore:cuplate. .* has been rendered in"),
]

STATED = {"bf16x3": 8e-6, "bf16x6": 2e-6}
# M, K, N: both sides of a tile's edges, one element, rows that are no multiple of 16 bytes, K = 0; bands
# of rows that are split behind the products of others.
SHAPES = [
    (128, 64, 192), (256, 256, 256), (1, 1, 1), (37, 29, 53), (129, 72, 520), (127, 8, 193), (1000, 1000, 1000),
    (64, 2056, 200), (2049, 1057, 1033), (640, 4096, 3000), (300, 0, 77), (3, 5000, 5), (2301, 203, 3301),
]  # fmt: skip
# What the planes lack, as a share of the product of absolute values.
LOST = {"bf16x3": 2.0**-15, "bf16x6": 2.0**-22}


def inputs(torch: Any, shape: Any, order: str = "C", offset: int = 0, spread: int = 0) -> tuple[Any, Any, Any]:
    """Fresh normal data times powers of two up to `spread`, `offset` elements into their memory."""
    m, k, n = shape

    def view(rows: int, columns: int) -> Any:
        memory = torch.randn(rows * columns + offset, device="cuda")
        memory *= torch.exp2(torch.randint(-spread, spread + 1, memory.shape, device="cuda").float())
        return memory[offset:].view(rows, columns)

    b = view(n, k).T if order == "F" else view(k, n)
    return view(m, k), b, torch.randn(n, device="cuda")


def assert_right(torch: Any, got: Any, a: Any, b: Any, bias: Any, precision: str) -> None:
    """Each element within what the arithmetic may lose."""
    a, b = a.double(), b.double()
    wanted = a @ b + (0 if bias is None else bias.double())
    sizes = a.abs() @ b.abs() + (0 if bias is None else bias.double().abs())
    error = (got.double() - wanted).abs()
    assert not bool(torch.isnan(got).any()), "an element was not written"
    assert bool((error <= sizes * (LOST[precision] + (40 + a.shape[1] / 256) * 2.0**-23)).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("precision", STATED)
def test_any_shape_is_right(torch: Any, precision: Any, order: str, shape: tuple[int, int, int]) -> None:
    """Both orders of `b`, with a bias and without; nothing is written but the output."""
    m, _, n = shape
    a, b, bias = inputs(torch, shape, order)
    bias = bias if order == "C" else None
    out, memory = poisoned(torch, m, n, "float32")
    assert matmul_split(a, b, bias, precision=precision, out=out) is out
    torch.cuda.synchronize()
    assert_right(torch, out, a, b, bias, precision)
    assert untouched(torch, memory, out)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("function", "precision"), [(matmul_split_wide, "bf16x3"), (matmul_split_small, "bf16x6")])
def test_other_tiles_are_right(torch: Any, function: Any, precision: Any, order: str) -> None:
    """At edges, and with bands of rows that are split behind the products of others."""
    for shape in ((37, 29, 53), (129, 72, 520), (2301, 203, 3301), (4096, 520, 4096)):
        a, b, _ = inputs(torch, shape, order)
        out, memory = poisoned(torch, shape[0], shape[2], "float32")
        function(a, b, precision=precision, out=out)
        assert_right(torch, out, a, b, None, precision)
        assert untouched(torch, memory, out)


@pytest.mark.parametrize("spread", [0, 20])
@pytest.mark.parametrize("k", [64, 4096, 16384])
@pytest.mark.parametrize("precision", STATED)
def test_the_error_is_what_is_stated(torch: Any, precision: Any, k: int, spread: int) -> None:
    """Relative Frobenius norm, with normal data and with mixed magnitudes; TF32 would be at 3e-4."""
    a, b, _ = inputs(torch, (1024, k, 768), spread=spread)
    wanted = a.double() @ b.double()
    error = (matmul_split(a, b, precision=precision).double() - wanted).norm() / wanted.norm()
    assert float(error) < STATED[precision]


@pytest.mark.parametrize("precision", STATED)
def test_unaligned_arrays_are_taken(torch: Any, precision: Any) -> None:
    """At any multiple of 4 bytes: the planes are aligned."""
    for offset in (1, 2, 3):
        for order in ("C", "F"):
            a, b, bias = inputs(torch, (200, 264, 132), order, offset)
            bias = bias if order == "C" else None
            out, memory = poisoned(torch, 200, 132, "float32", offset)
            matmul_split(a, b, bias, precision=precision, out=out)
            assert_right(torch, out, a, b, bias, precision)
            assert untouched(torch, memory, out)


@pytest.mark.parametrize(("epilogue", "precision"), [("gelu", "bf16x3"), ("x * 0.5f + residual", "bf16x6")])
def test_epilogues(torch: Any, epilogue: Any, precision: Any) -> None:
    """By `matmul_epilogue`: everything that enters, around an activation and an expression."""
    a, b, bias = inputs(torch, (200, 136, 263))
    residual, rows, columns = (torch.randn(s, device="cuda") for s in ((200, 263), (200,), (263,)))
    given = {"expression": epilogue} if "residual" in epilogue else {"epilogue": epilogue}
    got = matmul_epilogue(
        a, b, bias, residual, rows, columns, precision=precision, scale=0.25, low=-3.0, high=4.0, **given
    )
    x = 0.25 * rows[:, None].double() * columns.double() * (a.double() @ b.double()) + bias.double()
    x = x * 0.5 if "residual" in epilogue else activated(torch, x, epilogue)
    wanted = (x + residual.double()).clamp(-3, 4)
    assert float((got.double() - wanted).abs().max()) < 5e-4
    assert bool((got == 4).any()) and bool((got == -3).any())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("precision", STATED)
def test_what_is_not_finite_is_what_float32_says(torch: Any, precision: Any, order: str) -> None:
    """Infinities times numbers without a second plane, NaN, and finite values that bfloat16 rounds to infinity."""
    a, b, _ = inputs(torch, (200, 96, 136), order)
    b.round_()
    b[b == 0] = 1
    a[3, 5], a[7, 2], a[11, 1], a[12, 0], a[12, 1] = float("inf"), -float("inf"), float("nan"), 3e38, 3e38
    a[21] = 0
    a[21, 0], b[0], b[1] = 3.402e38, 0.5, 8.0
    got, wanted = matmul_split(a, b, precision=precision), (a.double() @ b.double())
    assert bool((got[[3, 7]] == wanted[[3, 7]].float()).all()) and bool(torch.isnan(got[11]).all())
    assert bool(torch.isinf(got[12]).all())  # as float32 overflows
    others = [i for i in range(200) if i not in (3, 7, 11, 12)]
    assert_right(torch, got[others], a[others], b, None, precision)
    assert bool(torch.isfinite(got[21]).all())


def test_streams_and_graphs(torch: Any) -> None:
    """Grids that wait for all their blocks side by side, and a replay, which zeroes the count of them again."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    data = [inputs(torch, (1500, 700, 900)) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(10):
        results = []
        for stream, (a, b, bias) in zip(streams, data, strict=True):
            with torch.cuda.stream(stream):
                results.append(matmul_split(a, b, bias, precision="bf16x3"))
    torch.cuda.synchronize()
    for got, (a, b, bias) in zip(results, data, strict=True):
        assert_right(torch, got, a, b, bias, "bf16x3")
    a, b, bias = data[0]
    out = torch.empty_like(results[0])
    matmul_split(a, b, bias, precision="bf16x3", out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul_split(a, b, bias, precision="bf16x3", out=out)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_right(torch, out, a, b, bias, "bf16x3")


def test_it_is_the_same_every_time(torch: Any) -> None:
    """A race would show."""
    a, b, _ = inputs(torch, (2100, 1100, 3300))
    for precision in STATED:
        first = matmul_split(a, b, precision=precision)
        assert all(torch.equal(first, matmul_split(a, b, precision=precision)) for _ in range(40))


def test_cupys_arrays(cp: Any) -> None:
    """Warm, so through the generated code: pointer and descriptor of scratch are of the same memory."""
    for _ in range(4):
        a, b = (cp.random.standard_normal(s, dtype=cp.float32) for s in ((300, 200), (200, 100)))
        wanted = a.astype("f8") @ b.astype("f8")
        got = matmul_split(a, b, precision="bf16x6")
        assert float(cp.linalg.norm(got - wanted) / cp.linalg.norm(wanted)) < STATED["bf16x6"]
