"""The shipped functions, as far as no GPU is needed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from cuplate import ArraySpec, ParameterError, config, kernels
from cuplate.kernels import matmul_epilogue
from tests.doubles import install


def key(**parameters: Any) -> str:
    """Content key of a specialization."""
    return matmul_epilogue.inspect("float32", arch="sm_90", **parameters).key


def test_relu_is_the_short_spelling_of_an_epilogue() -> None:
    """``relu=True`` and ``epilogue="relu"`` render alike, so they share a cubin; so do the spellings of identity."""
    assert key(relu=True) == key(epilogue="relu") == key(relu=True, epilogue="relu")
    assert key() == key(relu=False) == key(epilogue="identity") == key(relu=False, epilogue="identity")
    assert len({key(), key(relu=True), key(tile=32), key(tile=32, relu=True)}) == 4


@pytest.mark.parametrize(("relu", "epilogue"), [(True, "identity"), (False, "relu"), (False, "gelu")])
def test_both_spellings_at_odds_are_an_error(relu: bool, epilogue: str) -> None:
    """Neither wins silently."""
    with pytest.raises(ParameterError, match="does not hold") as caught:
        key(relu=relu, epilogue=epilogue)
    assert "relu" in str(caught.value) and "epilogue" in str(caught.value)


def test_equal_spellings_share_one_loaded_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second spelling loads nothing."""
    gpu = install(monkeypatch)
    a, b, bias = gpu.array((40, 30)), gpu.array((30, 50)), gpu.array((50,))
    for spelling in ({"relu": True}, {"epilogue": "relu"}, {"relu": True, "epilogue": "relu"}):
        matmul_epilogue(a, b, bias, **spelling)
    assert len(gpu.notes("load")) == 1 and len(gpu.launches) == 3
    matmul_epilogue.reload()


@pytest.mark.parametrize(("tile", "grid"), [(16, (32, 63, 1)), (32, (16, 32, 1))])
def test_the_grid_covers_ragged_sizes(tile: Any, grid: tuple[int, int, int]) -> None:
    """x covers N and y covers M, rounded up; a block is one tile."""
    report = matmul_epilogue.inspect(
        ArraySpec((1000, 300)), ArraySpec((300, 500)), ArraySpec((500,)), tile=tile, arch="sm_80"
    )
    assert report.grid is not None and report.grid.grid == grid
    assert report.block == (tile, tile, 1)
    assert report.cubin.resources.static_shared_bytes == 2 * tile * tile * 4
    assert (report.cubin.resources.spill_store_bytes, report.cubin.resources.spill_load_bytes) == (0, 0)


@pytest.mark.parametrize("tile", [17, 16.0, True, "16"])
def test_a_tile_outside_its_literal_is_refused(tile: Any) -> None:
    """By type as well as by value."""
    with pytest.raises(ParameterError, match="tile") as caught:
        key(tile=tile)
    assert "16, 32" in str(caught.value)


def test_the_reference_is_the_definition() -> None:
    """The body computes what the kernel does, on NumPy arrays; a call never runs it."""
    rng = np.random.default_rng(0)
    a, b, bias = rng.standard_normal((3, 4)), rng.standard_normal((4, 5)), rng.standard_normal(5)
    assert np.allclose(matmul_epilogue.reference(a, b, bias), a @ b + bias)
    assert np.allclose(matmul_epilogue.reference(a, b, bias, relu=True), np.maximum(a @ b + bias, 0))
    assert np.allclose(matmul_epilogue.reference(a, b, bias, epilogue="relu"), np.maximum(a @ b + bias, 0))


# every epilogue ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "order", "given"),
    [
        ("float32", "C", {"epilogue": "gelu", "scale": 0.5}),
        ("float32", "F", {"expression": "row < column ? x : 0.5 * residual", "low": -1.0, "high": 2.0}),
        ("float16", "F", {"epilogue": "gelu_tanh", "scale": 2.0, "high": 3.0}),
        ("bfloat16", "C", {"epilogue": "silu", "low": 0.0}),
    ],
    ids=str,
)
def test_every_operand_enters_where_it_should(dtype: str, order: Any, given: dict[str, Any]) -> None:
    """On the CPU backend with all checks on, in each dtype and order of `b`, against the reference in float64."""
    kind: Any = dtype if dtype != "bfloat16" else pytest.importorskip("ml_dtypes").bfloat16
    rng = np.random.default_rng(3)
    shapes = {"a": (33, 21), "b": (21, 18), "bias": (18,), "residual": (33, 18)}
    arrays: dict[str, Any] = {n: rng.standard_normal(s).astype(kind) for n, s in shapes.items()}
    arrays["b"] = np.asarray(arrays["b"], order=order)
    arrays |= {n: rng.random(s, dtype=np.float32) for n, s in (("row_scale", 33), ("column_scale", 18))}
    with config.scope(cpu_check="full"):
        got = matmul_epilogue(**arrays, **given)
    wanted = matmul_epilogue.reference(**{n: x.astype(np.float64) for n, x in arrays.items()}, **given)
    step = {"float32": 2.0**-21, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert got.dtype == kind and (np.abs(got.astype(np.float64) - wanted) <= step * (np.abs(wanted) + 1)).all()


def test_the_order_of_an_epilogue_is_the_one_that_is_documented() -> None:
    """``clip(f(scale * row_scale * column_scale * (a @ b) + bias) + residual, low, high)``, by hand."""
    a, b = np.array([[2.0]]), np.array([[3.0]])
    call = {"bias": np.array([-30.0]), "residual": np.array([[5.0]])}
    scales = {"row_scale": np.array([2.0]), "column_scale": np.array([0.5])}
    assert matmul_epilogue.reference(a, b, **call, **scales, scale=10.0).item() == 60 - 30 + 5
    assert matmul_epilogue.reference(a, b, **call, **scales, scale=-10.0, relu=True).item() == 0 + 5
    assert matmul_epilogue.reference(a, b, **call, **scales, scale=10.0, high=4.0, low=3.0).item() == 4
    product = {"expression": "x * residual"}  # where a text names the residual, it is not added
    assert matmul_epilogue.reference(a, b, **call, **product).item() == (6 - 30) * 5
    assert matmul_epilogue.reference(a, b, **call, expression="fmaxf(x + residual, 0.0f)").item() == 0
    assert matmul_epilogue.reference(a, b, **call, expression="x - 1.0f").item() == 6 - 30 - 1 + 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"expression": "x * residual"}, "'residual' not in expression"),
        ({"expression": "x", "relu": True}, "relu == None"),
        ({"expression": "x", "epilogue": "silu"}, "epilogue == None"),
        ({"expression": "x; y"}, "';' is not part of one"),
        ({"low": float("nan")}, "'low == None or low == low' does not hold"),
        ({"expression": 3}, "expression = 3 (int) is not allowed"),
        ({"epilogue": "gleu"}, "'gelu'"),
    ],
    ids=str,
)
def test_an_epilogue_that_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    """Before anything is rendered."""
    with pytest.raises(ParameterError) as caught:
        key(**given)
    assert said in str(caught.value)


def test_none_is_no_choice_of_a_kernel() -> None:
    """A caller that hands its own ``precision=None`` on gets the kernel of a call without it."""
    arrays = (ArraySpec((4096, 4096), "bfloat16"), ArraySpec((4096, 4096), "bfloat16"))
    assert matmul_epilogue.inspect(*arrays, precision=None, arch="sm_90").variant == "matmul_wgmma"


@pytest.mark.parametrize("sizes", [(2**31, 8, 8), (16, 2**31, 8), (16, 8, 2**31)], ids=str)
def test_sizes_beyond_an_int_are_not_for_kernels_that_count_in_ints(sizes: tuple[int, int, int]) -> None:
    """The coordinates of TMA are ints: a size that is none of these would be a product without a tile or a step."""
    m, k, n = sizes
    arrays = (ArraySpec((m, k), "bfloat16"), ArraySpec((k, n), "bfloat16"))
    assert matmul_epilogue.inspect(*arrays, arch="sm_90").variant == "matmul_mma"
    with pytest.raises(ParameterError, match="no variant that takes precision"):
        matmul_epilogue.inspect(ArraySpec((m, k)), ArraySpec((k, n)), precision="bf16x3", arch="sm_90")


def test_what_is_not_given_is_not_in_the_kernel() -> None:
    """Neither its name nor an instruction: a bare product is the same text whichever way it is said."""
    spec = ArraySpec((64, 64))
    bare = matmul_epilogue.inspect(spec, spec, arch="sm_90", tile=16)
    for name in ("bias[", "residual[", "at_least", "at_most", "x *=", "x +="):
        assert name not in bare.source
    same = matmul_epilogue.inspect(spec, spec, None, None, None, None, arch="sm_90", tile=16, epilogue="identity")
    assert same.key == bare.key
    rows = ArraySpec((64,))
    every = matmul_epilogue.inspect(spec, spec, rows, spec, rows, rows, arch="sm_90", tile=16, scale=2.0, high=1.0)
    wanted = [
        "x *= (float)2.0;",
        "x *= row_scale;",
        "x *= column_scale;",
        "x += bias;",
        "x += residual;",
        "x = at_most(",
    ]
    places = [every.source.index(text) for text in wanted]
    assert places == sorted(places)


def test_every_kernel_is_known_by_its_own_name() -> None:
    """A manifest has nothing else of it."""
    for name in kernels.__all__:
        function = getattr(kernels, name)
        assert function.__qualname__ == function.reference.__qualname__ == name
        assert getattr(importlib.import_module(function.__module__), name) is function


def test_16_bit_floats_before_sm_80_are_refused() -> None:
    """Their conversion is an instruction of sm_80; float32 runs there."""
    half = ArraySpec((64, 64), "float16")
    with pytest.raises(ParameterError, match="arch >= 80"):
        matmul_epilogue.inspect(half, half, arch="sm_75")
    assert matmul_epilogue.inspect(ArraySpec((64, 64)), ArraySpec((64, 64)), arch="sm_75").variant == "matmul_epilogue"
