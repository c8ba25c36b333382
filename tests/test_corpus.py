"""The corpus: every kernel compiles for the GPU, runs on the CPU as its reference says, and as an H200 ran it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuplate import ToolchainError
from tests.corpus import run
from tests.corpus.case import EXACT, Bound, Case, relative, ulps
from tests.corpus.cases import CASES
from tests.corpus.runner import compare, expected, measure, run_case

H200 = Path(__file__).parent / "corpus" / "h200.npz"
ARCHES = ("sm_80", "sm_90")

# Names of CUDA that some kernel of the corpus has to use.
COVERED = """
threadIdx.x threadIdx.y threadIdx.z blockIdx.x blockIdx.y blockIdx.z blockDim.z gridDim.z warpSize dim3 uint3
__shared__ extern~__shared__ __syncthreads __syncthreads_count __syncthreads_and __syncthreads_or
__shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync __ballot_sync __any_sync __all_sync __activemask
__match_any_sync __match_all_sync __reduce_add_sync __reduce_min_sync __reduce_max_sync __reduce_and_sync
__reduce_or_sync __reduce_xor_sync __syncwarp
atomicAdd atomicSub atomicMin atomicMax atomicAnd atomicOr atomicXor atomicExch atomicCAS atomicInc atomicDec
atomicAdd_block atomicAdd_system __threadfence __threadfence_block __threadfence_system volatile
float2 float3 float4 double2 int2 uint2 uint4 short4 uchar3 uchar4 longlong2 char1 ushort2 make_float4
__half __half2 __hfma2 __hadd hexp __nv_bfloat16 __nv_bfloat162 __float2half_rn __float2bfloat16
expf exp2 sincosf sincospif rsqrt erff tgamma fmaf fmodf remainderf frexpf sqrtf __expf __sinf __powf __fdividef
__fmul_rn __fadd_rd __ddiv_ru __saturatef __fma_rn
__popc __clz __ffs __brev __byte_perm __funnelshift_l __umulhi __dp4a __popcll __mul64hi __vadd4
__float2int_rn __float_as_int __double_as_longlong __ll2float_rn
__constant__ __device__ __noinline__ __forceinline__ __launch_bounds__ __ldg __ldcs __stcs
template if~constexpr virtual goto [&] [=] printf assert __trap static_assert
cooperative_groups.h thread_block tiled_partition<32> tiled_partition<4> cg::reduce shfl_down( meta_group_rank
__pipeline_memcpy_async __pipeline_commit __pipeline_wait_prior
wmma::fragment wmma::mma_sync wmma::load_matrix_sync wmma::store_matrix_sync wmma::fill_fragment col_major
"pieces.cuh" <algebra/dual.cuh> cuda/std/cstdint
""".split()  # noqa: SIM905


@pytest.fixture(scope="module", params=["c++", "zig"])
def compiler(request: pytest.FixtureRequest) -> str:
    """A host compiler."""
    from cuplate.backend.cpu.compilers import find_compiler

    try:
        find_compiler(request.param)
    except ToolchainError as error:
        pytest.skip(f"no {request.param}: {error}")
    return str(request.param)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that the tests of this module share: what they build is built once."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def stored() -> run.Stored | None:
    """What an H200 gave, if it was stored."""
    return run.load(H200) if H200.exists() else None


def test_corpus_is_large() -> None:
    """There are at least 45 kernels, and no two cases share a name."""
    assert len({case.f for case in CASES}) >= 45
    assert len({case.name for case in CASES}) == len(CASES)


def test_corpus_covers_the_language() -> None:
    """Each listed feature of CUDA C++ is in the rendered text of some case, or in a header that one includes."""
    texts = [case.f.inspect.__self__._described((), described(case), "sm_80")[2].source.text for case in CASES]
    texts += [path.read_text() for path in (Path(__file__).parent / "corpus").rglob("*.cuh")]
    text = "\n".join(texts)
    assert [word for word in COVERED if word.replace("~", " ") not in text] == []


def described(case: Case) -> dict[str, Any]:
    """The arguments of a case without its data."""
    return {**run.described(case.inputs()), **case.given}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_compiles_for_gpus(case: Case) -> None:
    """The CUDA compiler accepts each kernel where there is no GPU too, for the two architectures by turns."""
    arch = ARCHES[CASES.index(case) % len(ARCHES)]
    assert case.f.compile(**described(case), arch=arch).code[:4] == b"\x7fELF"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inputs_are_the_same_every_time(case: Case) -> None:
    """Inputs depend on nothing but the case, and a reference leaves them as they are."""
    first, wanted = case.inputs(), expected(case)
    assert expected(case).keys() == wanted.keys()
    for name, value in case.inputs().items():
        assert value.tobytes() == first[name].tobytes()


@pytest.mark.parametrize("check", ["full", "off"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cpu_is_right(
    case: Case, compiler: str, check: str, kept: Path, stored: run.Stored | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU gives what the reference says, and what an H200 gave; the checker has nothing to report."""
    if (compiler, check) == ("zig", "off"):
        pytest.skip("without checks by one compiler: both read the same text, and time is short")
    monkeypatch.setenv("CUPLATE_CACHE_DIR", str(kept))
    monkeypatch.setenv("CUPLATE_CPU_COMPILER", compiler)
    monkeypatch.setenv("CUPLATE_CPU_CHECK", check)
    case.f.cache_clear()
    outputs = run_case(case)
    assert [str(d) for d in compare(case, outputs) if not d.allowed] == []
    wanted = stored.outputs(case) if stored is not None else None
    if wanted is not None:
        assert [str(d) for d in compare(case, outputs, wanted) if not d.allowed] == []


@pytest.mark.skipif(not H200.exists(), reason="nothing was stored yet")
def test_stored_outputs_are_of_this_corpus(stored: run.Stored) -> None:
    """What is stored was made of the kernels and inputs as they are now, and is near the references too."""
    assert [case.name for case in CASES if stored.outputs(case) is None] == []
    for case in CASES:
        outputs = stored.outputs(case)
        assert outputs is not None
        assert [str(d) for d in compare(case, outputs) if not d.allowed] == []
    assert os.path.getsize(H200) < 3 * 2**20


# measuring ------------------------------------------------------------------------------------------------------------


def test_measure_sees_one_bit() -> None:
    """Neighbouring numbers are one ulp apart, across zero too, and exact bounds refuse them."""
    x = np.array([1.0, -2.0, 0.0], np.float32)
    for i, towards in ((0, 2), (1, -9), (2, -1)):
        y = x.copy()
        y[i] = np.nextafter(x[i], np.float32(towards))
        found = measure("out", y, x, EXACT)
        assert (found.identical, found.ulps, found.allowed) == (False, 1, False)
        assert measure("out", y, x, ulps(1, "")).allowed
    assert measure("out", x, x.copy(), EXACT).allowed
    assert not measure("out", np.array([-0.0]), np.array([0.0]), EXACT).allowed


@pytest.mark.parametrize("bound", [ulps(2**40, ""), relative(1e9, "")], ids=str)
def test_measure_refuses_what_is_not_finite(bound: Bound) -> None:
    """A NaN agrees with a NaN and with nothing else; an infinity agrees with itself only."""
    x, nan, infinite = (np.array([1.0, v], np.float32) for v in (2.0, np.nan, np.inf))
    assert measure("out", nan, nan.copy(), EXACT).allowed
    assert measure("out", infinite, infinite.copy(), EXACT).allowed
    for got, wanted in ((nan, x), (x, nan), (infinite, nan)):
        assert not measure("out", got, wanted, relative(1e9, "")).allowed
    assert not measure("out", x, infinite, relative(1e9, "")).allowed
    assert not measure("out", x[:1], x, bound).allowed


def test_measure_compares_integers_and_shapes() -> None:
    """Integers differ by whole numbers, without overflow."""
    a, b = np.array([2**63 - 1], np.int64), np.array([-(2**63)], np.int64)
    assert measure("out", a, b, EXACT).ulps == 2**64 - 1
    assert measure("out", a, a.copy(), EXACT).identical


def test_saving_and_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs come back as they were stored; those of a case that has changed since do not."""
    monkeypatch.setattr(run, "gpu_facts", lambda: {"gpu": "none"})
    monkeypatch.setattr(run, "run_case", lambda case, arrays: exact_outputs(case))  # there is no GPU
    cases = [case for case in CASES if case.name in ("coordinates", "scale_by_four")]
    for name in ("a", "b"):
        assert run.save(tmp_path / name, cases) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    stored = run.load(tmp_path / "a")
    assert stored.facts == {"gpu": "none"}
    for case in cases:
        outputs = stored.outputs(case)
        assert outputs is not None
        assert outputs["out"].tobytes() == exact_outputs(case)["out"].tobytes()
    assert stored.outputs(Case(cases[1].f, cases[1].draw, {"factor": 3.0})) is None
    assert stored.outputs(CASES[3]) is None


def exact_outputs(case: Case) -> dict[str, np.ndarray]:
    """The reference's outputs in the kernel's dtypes, as if a GPU had given them."""
    dtypes = {"coordinates": "int32", "scale_by_four": "float32"}
    return {name: value.astype(dtypes[case.name]) for name, value in expected(case).items()}


def test_table_says_how_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table names each case, says bit-equal or how far apart, and counts what is beyond its bound."""
    near = next(case for case in CASES if case.name == "scale_by_four")

    class Held:
        facts: dict[str, str] = {}  # noqa: RUF012

        def outputs(self, case: Case) -> dict[str, np.ndarray] | None:
            return exact_outputs(case)

    monkeypatch.setattr(run, "run_case", exact_outputs)
    text, beyond = run.table(Held(), [near])
    assert beyond == 0
    assert "| scale_by_four | out | bit-equal |" in text
    monkeypatch.setattr(run, "run_case", lambda case: {"out": exact_outputs(case)["out"] * np.float32(1.5)})
    text, beyond = run.table(Held(), [near])
    assert beyond == 1
    assert "beyond the bound" in text
