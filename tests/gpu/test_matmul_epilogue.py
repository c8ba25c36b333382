"""`matmul_epilogue` as users call it, on a GPU: which kernel runs, and every epilogue against float64."""

from __future__ import annotations

from typing import Any

import cupy
import pytest

import cuplate
from cuplate import ArraySpec, LayoutError, ParameterError
from cuplate.events import Event
from cuplate.kernels import matmul_epilogue

CAPABILITY = int(cupy.cuda.Device().compute_capability)
pytestmark = [
    pytest.mark.skipif(CAPABILITY != 90, reason="the kernels that are named here are those of sm_90"),
    pytest.mark.filterwarnings("ignore:cuplate. .* has been rendered in"),
]

# dtype, order of b, M, K, N, and what runs it
CASES = [
    ("float32", "C", (1536, 72, 1540), "matmul_simt_medium"),
    ("float32", "C", (1537, 65, 1535), "matmul_simt_ragged_medium"),
    ("float32", "F", (1537, 65, 1535), "matmul_simt_ragged_medium"),
    ("float32", "C", (256, 2048, 256), "matmul_simt_split_small"),
    ("float32", "F", (70, 1000, 300), "matmul_simt_ragged_split_small"),
    ("float32", "C", (77, 65, 131), "matmul_epilogue"),
    ("float32", "F", (77, 65, 131), "matmul_epilogue"),
    ("bfloat16", "C", (200, 136, 264), "matmul_wgmma_single"),
    ("bfloat16", "F", (64, 1000, 136), "matmul_wgmma_split"),
    ("bfloat16", "C", (1500, 72, 1032), "matmul_wgmma_small"),
    ("bfloat16", "F", (2041, 72, 2040), "matmul_wgmma"),
    ("bfloat16", "C", (2056, 264, 1032), "matmul_wgmma_flat"),
    ("bfloat16", "F", (1000, 72, 1034), "matmul_mma_tma"),
    ("bfloat16", "C", (37, 29, 53), "matmul_mma_ragged"),
    ("float16", "C", (3000, 1000, 3072), "matmul_wgmma_wide"),
    ("float16", "F", (129, 65, 131), "matmul_mma_ragged"),
]
ALL = {"bias": True, "residual": True, "row_scale": True, "column_scale": True}
EPILOGUES: list[dict[str, Any]] = [
    {},
    {**ALL, "epilogue": "silu", "scale": 0.5, "low": -1.0, "high": 2.5},
    {"residual": True, "relu": True},
    {"residual": True, "bias": True, "expression": "row % 3 == 0 && x < residual ? 0.5 * x : residual - x"},
    {"row_scale": True, "column_scale": True},
]
ARRAYS = ("bias", "residual", "row_scale", "column_scale")
BIAS: dict[str, Any] = {"bias": True}
SIMT = ((1536, 72, 1540), (77, 65, 131))
ACTIVATIONS = ("relu", "gelu", "silu")
BITS = {"float32": 24, "bfloat16": 8, "float16": 11}
GUARD = 64


def parameters(given: dict[str, Any]) -> dict[str, Any]:
    """What of an epilogue is a compile-time value."""
    return {name: value for name, value in given.items() if name not in ARRAYS}


def wanted(dtype: str, order: str, shape: tuple[int, int, int], given: dict[str, Any]) -> Any:
    """What one call of a test will compile."""
    m, k, n = shape
    kinds = {"bias": ((n,), dtype), "residual": ((m, n), dtype), "row_scale": ((m,),), "column_scale": ((n,),)}
    b = ArraySpec((k, n), dtype, strides=(1, k) if order == "F" else None)
    more: list[Any] = [ArraySpec(*kinds[name]) if name in given else None for name in ARRAYS]  # type: ignore[arg-type]
    return matmul_epilogue.wanted(ArraySpec((m, k), dtype), b, *more, **parameters(given))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache directory of this module, with all that its tests run, compiled side by side."""
    path = str(tmp_path_factory.mktemp("compiled"))
    calls = [wanted(*case[:3], given) for case in CASES for given in EPILOGUES]
    calls += [wanted("float32", "C", shape, {**BIAS, "epilogue": e}) for shape in SIMT for e in ACTIVATIONS]
    calls += [wanted(d, o, (520, 72, 520), {**ALL, "tile": 32}) for d in BITS for o in "CF"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUPLATE_CACHE_DIR", path)
        cuplate.warmup(calls).check()
    return path


@pytest.fixture(autouse=True)
def compiled(own_settings: None, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test finds there what was compiled."""
    monkeypatch.setenv("CUPLATE_CACHE_DIR", folder)


def drawn(torch: Any, dtype: str, order: str, shape: tuple[int, int, int], given: dict[str, Any]) -> dict[str, Any]:
    """Fresh arrays of one call by name; scales are positive, so that nothing cancels."""
    m, k, n = shape
    kind = getattr(torch, dtype)

    def normal(*size: int) -> Any:
        return torch.randn(*size, device="cuda").to(kind)

    made = {"a": normal(m, k), "b": normal(n, k).T if order == "F" else normal(k, n)}
    more = {"bias": lambda: normal(n), "residual": lambda: normal(m, n)}
    more["row_scale"] = lambda: torch.rand(m, device="cuda") + 0.5
    more["column_scale"] = lambda: torch.rand(n, device="cuda") + 0.5
    return made | {name: make() for name, make in more.items() if name in given}


def finished(torch: Any, arrays: dict[str, Any], given: dict[str, Any]) -> tuple[Any, Any]:
    """The result in float64, and how large what is summed for each element is."""
    wide = {name: array.double() for name, array in arrays.items()}
    x, sizes = wide["a"] @ wide["b"], wide["a"].abs() @ wide["b"].abs()
    factor = given.get("scale", 1.0)
    if "row_scale" in wide:
        factor = factor * wide["row_scale"][:, None]
    if "column_scale" in wide:
        factor = factor * wide["column_scale"]
    x, sizes = x * factor, sizes * factor
    x = x + wide.get("bias", 0)
    residual = wide.get("residual", 0)
    if "expression" in given:
        row = torch.arange(x.shape[0], device="cuda")[:, None]
        x = torch.where((row % 3 == 0) & (x < residual), 0.5 * x, residual - x)
    else:
        f = given.get("epilogue") or ("relu" if given.get("relu") else "identity")
        nn = torch.nn.functional
        x = {"identity": lambda v: v, "relu": torch.relu, "silu": nn.silu, "gelu": nn.gelu}[f](x) + residual
    return x.clamp(given.get("low"), given.get("high")) if "low" in given or "high" in given else x, sizes


def assert_right(torch: Any, got: Any, arrays: dict[str, Any], given: dict[str, Any]) -> None:
    """Within what float32 sums and tensor cores lose, and one rounding."""
    wanted, sizes = finished(torch, arrays, given)
    k, dtype = arrays["a"].shape[1], str(got.dtype).removeprefix("torch.")
    step = 2.0 ** -BITS[dtype]
    summed = (k + 16) * 2.0**-24 if dtype == "float32" else (k / 8 + 8) * 2.0**-22
    bound = step * wanted.abs() * 1.01 + summed * (sizes + 4) + 2.0**-20
    error = (got.double() - wanted).abs()
    if "expression" in given:  # a sum next to where it jumps may be on the other side
        x, _ = finished(torch, {n: a for n, a in arrays.items() if n != "residual"}, {})
        error = torch.where((x - arrays["residual"].double()).abs() < 4 * bound, 0.0, error)
    assert not bool(torch.isnan(got).any()), "an element was not written"
    assert bool((error <= bound).all()), f"an error of {float((error / bound).max())} times the bound"


def poisoned(torch: Any, m: int, n: int, dtype: str) -> tuple[Any, Any]:
    """An output full of NaN within memory full of NaN, which nobody may write."""
    memory = torch.full((m * n + 2 * GUARD,), float("nan"), device="cuda", dtype=getattr(torch, dtype))
    return memory[GUARD : GUARD + m * n].view(m, n), memory


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[3]}")
def test_every_kernel_has_every_epilogue(torch: Any, launches: list[Event], case: Any) -> None:
    """Cold and from its plan, over poisoned memory, by the kernel that the call is for."""
    dtype, order, shape, variant = case
    for given in EPILOGUES:
        for _ in range(2):
            arrays = drawn(torch, dtype, order, shape, given)
            out, memory = poisoned(torch, shape[0], shape[2], dtype)
            launches.clear()
            assert matmul_epilogue(**arrays, **parameters(given), out=out) is out
            assert [event.detail["variant"] for event in launches] == [variant], given
            assert_right(torch, out, arrays, given)
            assert bool(torch.isnan(memory[:GUARD]).all()) and bool(torch.isnan(memory[-GUARD:]).all())


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[-2]], ids=lambda case: f"{case[0]}-{case[3]}")
def test_cupys_arrays_take_it_too(torch: Any, launches: list[Event], case: Any) -> None:
    """The same memory, seen by the other library; the output is its own."""
    dtype, order, shape, variant = case
    given = EPILOGUES[1]
    for _ in range(3):
        arrays = drawn(torch, dtype, order, shape, given)
        got = matmul_epilogue(**{name: cupy.asarray(x) for name, x in arrays.items()}, **parameters(given))
        assert isinstance(got, cupy.ndarray)
        assert_right(torch, torch.as_tensor(got, device="cuda"), arrays, given)
    assert {event.detail["variant"] for event in launches} == {variant}


@pytest.mark.parametrize("epilogue", ACTIVATIONS)
def test_activations_in_float32(torch: Any, epilogue: str) -> None:
    """Of the kernels on the FMA units; those on tensor cores have their own test."""
    for shape in SIMT:
        arrays = drawn(torch, "float32", "C", shape, BIAS)
        got = matmul_epilogue(**arrays, epilogue=epilogue)
        assert_right(torch, got, arrays, {"epilogue": epilogue})


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("shape", [(0, 64, 64), (64, 64, 0), (64, 0, 72), (0, 0, 0)], ids=str)
def test_without_elements(torch: Any, dtype: str, shape: tuple[int, int, int]) -> None:
    """An empty output is one, and an empty product is the epilogue of nothing but its operands."""
    given = EPILOGUES[1]
    for _ in range(2):
        arrays = drawn(torch, dtype, "C", shape, given)
        got = matmul_epilogue(**arrays, **parameters(given))
        assert got.shape == (shape[0], shape[2])
        assert_right(torch, got, arrays, given)


def test_a_given_tile_means_the_tiled_kernel(torch: Any, launches: list[Event]) -> None:
    """In every dtype and order of `b`, where a faster one would have run."""
    for dtype in BITS:
        for order in ("C", "F"):
            arrays = drawn(torch, dtype, order, (520, 72, 520), ALL)
            assert_right(torch, matmul_epilogue(**arrays, tile=32), arrays, ALL)
    assert {event.detail["variant"] for event in launches} == {"matmul_epilogue"}


def test_an_output_that_is_the_residual_is_refused(torch: Any) -> None:
    """Cold and warm, wholly and in part: a kernel may read an element after another thread wrote it."""
    arrays = drawn(torch, "bfloat16", "C", (256, 64, 256), {"residual": True})
    memory = torch.randn(257 * 256, device="cuda").bfloat16()
    arrays["residual"] = memory[: 256 * 256].view(256, 256)
    for _ in range(3):
        assert_right(torch, matmul_epilogue(**arrays), arrays, {})
        for out in (arrays["residual"], memory[256:].view(256, 256)):
            with pytest.raises(LayoutError, match="shares memory with 'residual'"):
                matmul_epilogue(**arrays, out=out)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_transposed_b_is_hot(torch: Any, library: str) -> None:
    """What a layer of torch multiplies by: found by its key like any other, and never taken for the other order."""
    arrays = {order: drawn(torch, "float16", order, (200, 136, 136), {}) for order in "CF"}
    of = (lambda x: x) if library == "torch" else cupy.asarray

    def run() -> None:
        for each in arrays.values():
            got = matmul_epilogue(of(each["a"]), of(each["b"]))
            assert_right(torch, torch.as_tensor(got, device="cuda"), each, {})

    run()
    before = matmul_epilogue.cache_info()
    for _ in range(4):
        run()
    after = matmul_epilogue.cache_info()
    assert after.hits - before.hits == 8 and len(matmul_epilogue.__globals__["_plans"]) >= 2


def test_an_output_may_begin_anywhere(torch: Any, launches: list[Event]) -> None:
    """Aligned ones and others by turns: each has its kernel."""
    arrays = drawn(torch, "bfloat16", "C", (520, 72, 2056), {})
    memory = torch.empty(520 * 2056 + 64, device="cuda", dtype=torch.bfloat16)
    for offset, variant in ((0, "matmul_wgmma_flat"), (2, "matmul_mma_tma"), (1, "matmul_mma_ragged")) * 2:
        out = memory[offset : offset + 520 * 2056].view(520, 2056)
        out.fill_(float("nan"))
        assert matmul_epilogue(**arrays, out=out) is out
        assert_right(torch, out, arrays, {})
        assert launches[-1].detail["variant"] == variant


def test_nan_stays_and_does_not_spread(torch: Any) -> None:
    """Through relu and limits, from a residual and from a scale, to their own elements alone."""
    arrays = drawn(torch, "bfloat16", "C", (200, 64, 136), ALL)
    arrays["residual"][3, 7] = float("nan")
    arrays["column_scale"][11] = float("nan")
    got = torch.isnan(matmul_epilogue(**arrays, relu=True, low=0.0, high=1.0))
    wanted = torch.zeros_like(got)
    wanted[3, 7] = True
    wanted[:, 11] = True
    assert torch.equal(got, wanted)


def test_residuals_of_other_layouts(torch: Any, launches: list[Event]) -> None:
    """Padded rows take the tensor map; rows that begin anywhere take another kernel; transposed ones none."""
    arrays = drawn(torch, "bfloat16", "C", (520, 72, 2056), {})
    whole = torch.randn(520, 2064, device="cuda").bfloat16()
    arrays["residual"] = whole[:, :2056]
    assert_right(torch, matmul_epilogue(**arrays), arrays, {})
    assert launches[-1].detail["variant"].startswith("matmul_wgmma")
    arrays["residual"] = whole.view(-1)[1 : 520 * 2056 + 1].view(520, 2056)
    assert_right(torch, matmul_epilogue(**arrays), arrays, {})
    assert launches[-1].detail["variant"] == "matmul_mma_tma"
    arrays["residual"] = torch.randn(2056, 520, device="cuda").bfloat16().T
    with pytest.raises(LayoutError, match="residual"):
        matmul_epilogue(**arrays)


def test_what_is_refused_names_what_to_write() -> None:
    """Before anything is compiled: a residual that is not there, an unknown function."""
    a = cupy.ones((64, 64), cupy.float32)
    with pytest.raises(ParameterError, match="residual"):
        matmul_epilogue(a, a, expression="x * residual")
    with pytest.raises(ParameterError, match="unknown name 'tanh'") as caught:
        matmul_epilogue(a, a, expression="tanh(x)")
    assert caught.value.facts["try_"] == "tanhf"


def test_it_repeats_to_the_bit(torch: Any) -> None:
    """Sixty times with all operands: a residual that is read before it has come would differ."""
    given = EPILOGUES[1]
    for dtype, order, shape, _ in CASES[9:13]:
        arrays = drawn(torch, dtype, order, (1000, 520, 1096 if shape[2] % 8 == 0 else 1098), given)
        first = matmul_epilogue(**arrays, **parameters(given))
        assert_right(torch, first, arrays, given)
        for _ in range(60):
            out, _ = poisoned(torch, *first.shape, dtype)
            matmul_epilogue(**arrays, **parameters(given), out=out)
            assert torch.equal(out, first)
