"""What `inspect`, `compile` and `explain` say of a call, with NVRTC and no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float, Float32

import cuplate
from cuplate import ArgumentError, Array, ArraySpec, DtypeError, Inline, Options, ShapeError, f32, specialize
from cuplate.cubin import Cubin
from cuplate.kernels import matmul_epilogue
from cuplate.key import sha256
from tests.doubles import Gpu, install

ARCH = "sm_90"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU."""
    yield install(monkeypatch)
    matmul_epilogue.reload()


@specialize(
    Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = alpha + {{ tile }}; }'), block="tile"
)
def f(alpha: f32, x: Float[Array, " N"], *, tile: int = 32) -> Float[Array, " N"]:
    """What is called below."""
    raise NotImplementedError


def fresh(text: str = "{{ tile }}", **keywords: Any) -> Any:
    """A function that nothing has been stored for."""

    @specialize(
        Inline(f'extern "C" __global__ void {{{{ kernel }}}}({{{{ args }}}}) {{ out[0] = {text}; }}'), **keywords
    )
    def g(x: Float32[Array, " N"], *, tile: int = 1) -> Float32[Array, " N"]:
        raise NotImplementedError

    return g


def test_the_receipt_is_a_page_that_one_can_read() -> None:
    """Every line of it, with sizes, on a miss and on a hit."""
    a, b, bias = ArraySpec((77, 65)), ArraySpec((65, 131)), ArraySpec((131,))
    first = matmul_epilogue.inspect(a, b, bias, relu=True, arch=ARCH)
    again = matmul_epilogue.inspect(a, b, bias, relu=True, arch=ARCH)
    lines = str(again).splitlines()
    assert lines[0] == (
        "matmul_epilogue(a=float32[77, 65], b=float32[65, 131], bias=float32[131], "
        "precision=None, tile=16, epilogue=None, relu=True, expression=None, scale=None, low=None, high=None)"
    )
    assert [line.split()[0] for line in lines[1:]] == [
        "key", "cache", "arch", "options", "kernel", "registers", "shared", "block", "grid",
        *["not"] * len({reason for _, reason in again.passed_over}),
    ]  # fmt: skip
    assert lines[1] == f"  key        {again.key}" and re.fullmatch("[0-9a-f]{64}", again.key)
    assert re.fullmatch(r"  cache      HIT \(disk\), look-up \d+\.\d\d ms", lines[2])
    assert "MISS (compiled now)" in str(first) and "store" in str(first)
    assert re.fullmatch(r"  arch       sm_90, nvrtc \d+\.\d+\.\d+", lines[3])
    assert lines[4] == "  options    std=c++17" and lines[5].startswith("  kernel     matmul_epilogue, ")
    assert re.fullmatch(r"  registers  \d+ a thread, 0 \+ 0 bytes spilled", lines[6])
    assert lines[7] == "  shared     2048 bytes static + 0 bytes dynamic"
    assert lines[8] == "  block      (16, 16, 1) = 256 threads" and lines[9] == "  grid       (9, 5, 1)"
    assert re.fullmatch(r"  not taken  matmul_simt_balanced: '6250000 .* \.\.\.' does not hold: \d+ <= \d+", lines[10])
    assert lines[-1].startswith("  not taken  matmul_split_wide, matmul_split_small, matmul_split: precision = None")


def test_dtypes_and_an_architecture_are_enough() -> None:
    """No arrays, no GPU: dtype names, or nothing where the dtype is fixed; the grid is left open."""
    report = f.inspect(x="float64", arch=ARCH)
    assert "const double* __restrict__ x" in report.source and report.grid is None
    assert str(report).endswith("grid       depends on the sizes, or on the device")
    assert f.inspect(1.0, "float32", arch=ARCH).source.count("float* __restrict__") == 2
    with pytest.raises(ArgumentError, match="argument 'x' is needed: its dtype is open") as caught:
        f.inspect(arch=ARCH)
    assert "float32" in caught.value.facts["allowed"]
    with pytest.raises(ArgumentError, match="arch= is needed"):
        f.inspect(1.0, ArraySpec((4,), "float32"))


def test_described_arrays_are_checked_like_real_ones() -> None:
    """Sizes, dtypes, names; and what is no description."""
    with pytest.raises(ShapeError, match="axis K of 'b' is 5, not 3"):
        matmul_epilogue.inspect(ArraySpec((2, 3)), ArraySpec((5, 4)), ArraySpec((4,)), arch=ARCH)
    with pytest.raises(DtypeError, match="array 'a' is float64"):
        matmul_epilogue.inspect(ArraySpec((2, 3), "float64"), arch=ARCH)
    for spelled, meant in (("bf16", "bfloat16"), ("half", "float16"), ("Float32", "float32"), ("text", None)):
        with pytest.raises(DtypeError, match=f"array 'a' is {spelled}, which a kernel cannot name") as unknown:
            matmul_epilogue.inspect(ArraySpec((2, 3), spelled), arch=ARCH)
        assert unknown.value.try_ == meant
    with pytest.raises(DtypeError, match="flaot32"):
        f.inspect(x="flaot32", arch=ARCH)
    for spec in (ArraySpec(5), ArraySpec((-1,)), ArraySpec((4,), strides=(1, 1))):  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match="'x'"):
            f.inspect(1.0, spec, arch=ARCH)
    assert f.inspect(1.0, ArraySpec((4,), np.float64), arch=ARCH).grid is not None  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no argument or parameter 'tlie'"):
        f.inspect(x="float32", tlie=3, arch=ARCH)
    with pytest.raises(ArgumentError, match="no argument or parameter 'arhc'") as caught:
        f.inspect(x="float32", arhc=ARCH)
    assert (caught.value.allowed.split(", ")[-1], caught.value.try_) == ("arch", "arch=")
    with pytest.raises(ArgumentError, match="'x' is given twice"):
        f.inspect(1.0, "float32", x="float32", arch=ARCH)
    with pytest.raises(ArgumentError, match="3 positional arguments given, 2 taken"):
        f.inspect(1.0, "float32", 32, arch=ARCH)


def test_a_scalar_that_no_call_takes_is_refused_here_too() -> None:
    """What is inspected is a call that could be made; a scalar that is left out is no mistake."""
    with pytest.raises(DtypeError, match="'alpha' is float32"):
        f.inspect("2", "float32", arch=ARCH)
    with pytest.raises(cuplate.ScalarOverflowError, match="does not fit float32"):
        f.compile(1e300, "float32", arch=ARCH)
    assert f.inspect(x="float32", arch=ARCH).key == f.inspect(2, "float32", arch=ARCH).key


@pytest.mark.parametrize("arch", ["90", "sm_12345", "gfx90a", 90])
def test_an_unknown_architecture_is_refused(arch: Any) -> None:
    """With those that are known."""
    with pytest.raises(cuplate.CuplateError, match=str(arch)):
        f.inspect(x="float32", arch=arch)


def test_inspecting_is_what_a_call_then_does(gpu: Gpu) -> None:
    """The key that `inspect` shows is the key that the call loads: nothing is compiled twice."""
    a, b, bias = gpu.array((20, 30)), gpu.array((30, 40)), gpu.array(40)
    report = matmul_epilogue.inspect(a, b, bias)
    before = cuplate.cache.stats().compile.compiles
    assert gpu.log == []
    matmul_epilogue(a, b, bias)
    assert cuplate.cache.stats().compile.compiles == before
    (loaded,) = gpu.loaded
    assert loaded.cubin.code == report.cubin.code and gpu.launches[0].grid == report.grid
    assert report.arch == "sm_90" and matmul_epilogue.explain(a, b, bias).startswith("matmul_epilogue: hit: stored as")


def test_compile_gives_a_cubin_for_any_architecture() -> None:
    """Without a GPU, from the store the second time; the code differs by architecture, the key too."""
    g = fresh()
    cubins = [g.compile(arch=arch) for arch in ("sm_80", "sm_90", "sm_90a")]
    assert all(isinstance(c, Cubin) and c.code[:4] == b"\x7fELF" and c.entry == "g" for c in cubins)
    assert [c.arch for c in cubins] == ["sm_80", "sm_90", "sm_90a"]
    assert g.compile(arch="sm_80").code == cubins[0].code
    assert g.cache_info().compiles == 3 and g.cache_info().disk_hits == 1


def test_ptx_and_source_name_the_kernel() -> None:
    """PTX comes from NVRTC, without a driver."""
    report = f.inspect(x="float32", arch=ARCH)
    assert ".visible .entry f(" in report.ptx and ".target sm_90" in report.ptx
    assert report.source.startswith('extern "C" __global__ void f(float alpha, const float* __restrict__ x')
    assert report.sass is None or "f" in report.sass
    assert dict(report.ingredients)["arch"] == ARCH


def test_explain_says_hit_or_what_differs() -> None:
    """Nothing stored; a hit; another parameter, with both values; another option; another architecture."""
    g = fresh()
    assert g.explain(arch=ARCH) == "g: miss: nothing is stored for this function"
    g.compile(arch=ARCH)
    key = g.inspect(arch=ARCH).key[:16]
    assert g.explain(arch=ARCH) == f"g: hit: stored as {key}"
    assert g.explain(arch=ARCH, tile=2) == (
        f"g: miss: source (tile=1 -> tile=2) differs from the nearest stored entry {key}"
    )
    assert g.explain(arch="sm_80") == f"g: miss: arch (sm_90 -> sm_80) differs from the nearest stored entry {key}"
    other = fresh(options=Options(std="c++20"))
    told = other.explain(arch=ARCH)
    assert "options" in told and told.endswith(f"differs from the nearest stored entry {key}")
    both = other.explain(arch="sm_80", tile=3)
    assert "differ from the nearest" in both and "source" in both and "arch" in both and "options" in both


def test_explain_finds_what_is_not_among_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry older than those looked at, or stored by another function of equal text, is a hit all the same."""
    from cuplate import variants

    monkeypatch.setattr(variants, "NEAREST", 2)
    g = fresh()
    for tile in range(4):
        g.compile(arch=ARCH, tile=tile)
    assert g.explain(arch=ARCH, tile=0).startswith("g: hit: stored as ")

    @specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = 3; }'), entry="g")
    def other(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    assert other.explain(arch=ARCH).startswith("other: hit: stored as ")


def test_explain_names_a_changed_header(tmp_path: Path) -> None:
    """The header's content is an ingredient of its own."""
    (tmp_path / "h.cuh").write_text("#define VALUE 1\n")
    text = '#include "h.cuh"\nextern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = VALUE; }'

    def made() -> Any:
        @specialize(Inline(text), options={"include": [str(tmp_path)]})
        def g(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            raise NotImplementedError

        return g

    made().compile(arch=ARCH)
    assert ": hit: " in made().explain(arch=ARCH)
    (tmp_path / "h.cuh").write_text("#define VALUE 2\n")
    assert "h.cuh" in made().explain(arch=ARCH) or "header" in made().explain(arch=ARCH)


def test_one_line_per_miss_on_request(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CUPLATE_EXPLAIN=1: on stderr, what it cost and why; warm calls print nothing."""
    g = fresh()
    x = gpu.array(4)
    monkeypatch.setenv("CUPLATE_EXPLAIN", "1")
    g(x)
    g(x)
    first = capsys.readouterr()
    assert first.out == ""
    assert re.fullmatch(
        r"cuplate: g: compiled for sm_90 in \d+ ms; miss: nothing is stored for this function\n", first.err
    )
    g(x, tile=2)
    assert re.fullmatch(
        r"cuplate: g: compiled for sm_90 in \d+ ms; miss: source \(tile=1 -> tile=2\) differs from the nearest stored "
        r"entry [0-9a-f]{16}\n",
        capsys.readouterr().err,
    )
    g.cache_clear()
    g(x)
    assert re.fullmatch(
        r"cuplate: g: loaded from disk in \d+\.\d ms; hit: stored as [0-9a-f]{16}\n", capsys.readouterr().err
    )


@pytest.mark.parametrize("line_info", [False, True])
def test_a_stored_kernel_holds_the_text_that_was_compiled(line_info: bool) -> None:
    """A disk hit gives it back; its digest is the key's, with `#line` where line numbers are part of the binary."""
    g = fresh("{{ tile }} + 7", options=Options(line_info=line_info))
    first, again = g.inspect(arch=ARCH), g.inspect(arch=ARCH)
    assert (first.origin, again.origin) == ("compile", "disk")
    assert again.cubin.source == first.cubin.source
    assert sha256(again.cubin.source) == dict(again.ingredients)["source"]
    assert (again.cubin.source == again.source) is not line_info


def test_a_stride_that_nothing_says_is_asked_for() -> None:
    """A template that reads a stride needs the shape, and says so; with it, it is compiled without an array."""

    @specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = x[{{ x.stride(0) }}]; }'))
    def second_row(x: Float32[Array, "R C"]) -> Float32[Array, "R C"]:
        raise NotImplementedError

    for given in ((), (ArraySpec(),)):
        with pytest.raises(ArgumentError, match=r"reads x\.stride") as caught:
            second_row.compile(*given, arch=ARCH)
        assert caught.value.argument == "x" and "ArraySpec((64, 65), 'float32')" in caught.value.try_
    assert "x[70]" in second_row.inspect(ArraySpec((33, 70)), arch=ARCH).source
