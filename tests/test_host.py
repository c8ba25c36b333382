"""Calls with arrays in host memory: the same rooms as on a GPU, the CPU backend at the end."""

from __future__ import annotations

import shutil
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float, Float32

import cuplate
from cuplate import (
    ArgumentError,
    Array,
    BudgetError,
    CompileError,
    DtypeError,
    Inline,
    KernelError,
    KernelNotFoundError,
    LaunchError,
    LayoutError,
    Options,
    ToolchainError,
    cache,
    config,
    f32,
    specialize,
)
from cuplate.backend.cpu.compilers import find_compiler
from cuplate.host import HostBuild
from cuplate.kernels import matmul_epilogue
from tests.bindings import first, more

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { %s }'
BINDINGS = [*first.FIFTEEN, *more.MORE]
CHECKS = ("full", "bounds", "off")


@pytest.fixture(autouse=True)
def a_compiler() -> None:
    """These tests build for this machine."""
    try:
        find_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))


@specialize(
    Inline(
        """extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ float tile[{{ n }}];
    int i = threadIdx.x;
    tile[i] = alpha * x[blockIdx.x * {{ n }} + i];
{% if sync %}
    __syncthreads();
{% endif %}
    out[blockIdx.x * {{ n }} + i + {{ shift }}] = tile[{{ n }} - 1 - i];
}
"""
    ),
    block="n",
    grid=("cdiv(N, n)",),
)
def turned(
    alpha: f32, x: Float32[Array, " N"], *, n: int = 64, sync: bool = True, shift: int = 0
) -> Float32[Array, " N"]:
    """Each run of n elements backwards, scaled."""
    raise NotImplementedError


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 17, 50), (64, 64, 64), (0, 5, 7), (5, 0, 7), (5, 7, 0)], ids=str)
def test_matmul_epilogue_with_numpy_arrays(shape: tuple[int, int, int], check: str) -> None:
    """NumPy in, NumPy out, right; cold, warm and with a given output, in every check mode."""
    m, k, n = shape
    rng = np.random.default_rng(1)
    a, b, bias = (rng.standard_normal(s, dtype=np.float32) for s in ((m, k), (k, n), (n,)))
    wanted = np.maximum(a.astype(np.float64) @ b + bias, 0)
    out = np.full((m, n), np.nan, np.float32)
    with config.scope(cpu_check=check):
        for got in (matmul_epilogue(a, b, bias, relu=True), matmul_epilogue(a, b, bias, tile=32, epilogue="relu")):
            assert type(got) is np.ndarray and got.dtype == np.float32
            np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert matmul_epilogue(a, b, bias, relu=True, out=out) is out
        np.testing.assert_allclose(out, wanted, atol=1e-5)


def test_counts_tiers_and_events_are_those_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A miss compiles and stores, a hit does neither, another process's entry is found on disk; events tell it."""
    x = np.arange(64, dtype=np.float32)
    heard: list[Any] = []
    turned.cache_clear()
    turned(1.0, x)  # the runtime that all kernels share is made here, if it is not there yet
    cache.clear()
    turned.cache_clear()
    before = cache.stats()
    with cuplate.subscribe(heard.append):
        turned(2.0, x)
        turned(2.0, x)
        turned.cache_clear()
        turned(2.0, x)
    kinds = [(e.kind, e.tier) for e in heard]
    assert kinds == [
        ("render", None), ("miss", "memory"), ("compile", None), ("miss", "disk"), ("load", None), ("launch", None),
        ("hit", "memory"), ("launch", None),
        ("evict", "memory"), ("render", None), ("miss", "memory"), ("hit", "disk"), ("load", None), ("launch", None),
    ]  # fmt: skip
    after = cache.stats()
    assert after.compile.compiles - before.compile.compiles == 1
    assert (after.disk.hits - before.disk.hits, after.disk.misses - before.disk.misses) == (1, 1)


def test_check_modes_share_what_they_can() -> None:
    """`full` and `bounds` are one build that runs in two ways; `off` is another."""
    x = np.arange(64, dtype=np.float32)
    turned.cache_clear()
    compiles = turned.cache_info().compiles
    for check in CHECKS:
        with config.scope(cpu_check=check):
            turned(1.0, x)
    assert turned.cache_info().compiles - compiles == 2


def test_a_host_build_is_a_toolchain_of_its_own_in_the_key() -> None:
    """Compiler, flags, CPU and the backend's own sources are ingredients; a GPU's key is another."""
    from cuplate.backend.cpu.device import target

    found = dict(target(config.settings()).ingredients(Options(define={"X": 1})))
    assert list(found) == ["host compiler", "host flags", "host cpu", "cpu backend"]
    assert "-DX=1" in found["host flags"].split() and "/" not in found["host flags"].replace("-Wl,", "")


# what is found --------------------------------------------------------------------------------------------------------


def test_a_race_names_arrays_threads_lines_and_the_call() -> None:
    """Both lines of the template, both threads, the array with its index, the Python call; the output is not given."""
    with pytest.raises(KernelError) as caught:
        turned(2.0, np.zeros(256, np.float32), sync=False)
    told = str(caught.value)
    kinds = {r.kind for r in caught.value.reports}  # type: ignore[attr-defined]
    assert kinds == {"uninitialised read", "data race"}
    assert told.startswith("turned: data race: tile[32]: read by thread (31,0,0) at <inline>:9: out[blockIdx.x * 64 + ")
    assert "and write by thread (32,0,0) at <inline>:5: tile[i] = alpha" in told
    assert "read of tile[63], shared memory that nothing has written yet by thread (0,0,0) of block (0,0,0)" in told
    assert "> 5 |     tile[i] = alpha * x[blockIdx.x * {{ n }} + i];" in told
    assert "called as   turned(x=float32[256], n=64, sync=False, shift=0)" in told
    assert Path(caught.value.facts["rendered_to"]).read_text().count("tile") == 3


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("out[0] += x[i];", "atomicAdd(&out[0], ...) or its kind"),
        ("out[0] = x[i] + out[0];", None),
        ("if (threadIdx.x == 0) out[0] = x[i];", "no barrier orders two blocks"),
    ],
)
def test_a_race_says_what_to_try(body: str, hint: str | None) -> None:
    """Of a plain update the atomic one; between blocks no barrier. Else the sentence says it all."""

    @specialize(Inline(KERNEL % f"const int i = blockIdx.x * 32 + threadIdx.x;\n{body}"), block=32, zeroed="out")
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with pytest.raises(KernelError, match="data race") as caught:
        f(np.arange(64, dtype=np.float32))
    assert (hint or "None") in str(caught.value.try_)


WAIT = "__device__ void wait() { __syncthreads(); }\n"


@pytest.mark.parametrize(
    ("head", "body", "seen"),
    [
        ("", "if (t < 50) { __syncthreads(); }", False),
        ("", "for (int j = 0; j < (t < 32 ? 3 : 1); ++j) __syncthreads();", False),
        ("", "if (t < 50) __syncthreads(); else __syncthreads();", False),
        (WAIT, "if (t < 50)\n wait();\nelse\n wait();", False),
        ("", "if (t < 50)\n __syncthreads();\nelse\n __syncthreads();", True),
        ("", "if (t < 50) __syncthreads();\n__syncthreads();", True),
    ],
)
def test_barriers_are_told_apart_by_their_line(head: str, body: str, seen: bool) -> None:
    """What docs/cpu.md says of those that not all threads reach: threads that have left count as arrived."""

    @specialize(Inline(head + KERNEL % f"const int t = threadIdx.x;\nout[t] = x[t];\n{body}\n"), block=64, grid=1)
    def f(x: Float32[Array, "64"]) -> Float32[Array, "64"]:
        raise NotImplementedError

    x = np.ones(64, np.float32)
    if not seen:
        assert (f(x) == 1).all()
        return
    with pytest.raises(KernelError, match="divergence: threads of one block meet in different barriers"):
        f(x)


@pytest.mark.parametrize("check", CHECKS)
def test_out_of_bounds_never_reaches_memory(check: str) -> None:
    """In every mode the first step outside ends the launch, and names array, index, size, thread and block."""
    around = np.full(3 * 256, 7, np.float32)
    x, out = np.zeros(256, np.float32), around[256:512]
    with config.scope(cpu_check=check), pytest.raises(KernelError, match=r"out\[256\]") as caught:
        turned(1.0, x, shift=1, out=out)
    assert "256 elements" in str(caught.value) and "<inline>:9" in str(caught.value)
    assert (around[512:] == 7).all() and (around[:256] == 7).all()
    assert turned(1.0, x).shape == (256,)  # and the process goes on


def test_an_output_that_is_not_written_is_told() -> None:
    """Elements of the output that no thread writes, of a fresh and of a given array; zeroed ones are."""
    half = KERNEL % "int i = blockIdx.x * {{ block.x }} + threadIdx.x; if (i < N / 2) out[i] = x[i];"

    @specialize(Inline(half))
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    @specialize(Inline(half), zeroed="out")
    def g(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    x = np.ones(10, np.float32)
    for out in (None, np.zeros(10, np.float32)):
        with pytest.raises(
            KernelError, match=r"5 of 10 elements of the output out never written, the first is out\[5\]"
        ) as caught:
            f(x, out=out)
        assert caught.value.try_.startswith("a grid and a block that reach every element (tiles=, grid=, block=)")
    assert g(x).tolist() == [1.0] * 5 + [0.0] * 5


def test_scratch_need_not_be_written_whole() -> None:
    """Scratch memory is the kernel's own: what it leaves is nobody's."""
    text = KERNEL % "if (threadIdx.x == 0) { state[0] = 3u; out[0] = (float)state[0] + x[0]; }"

    @specialize(Inline(text), grid=(1,), block=(32,), scratch={"state": ("uint32", "N + 5")})
    def f(x: Float32[Array, " N"]) -> Float32[Array, "1"]:
        raise NotImplementedError

    assert f(np.ones(4, np.float32)).tolist() == [4.0]


def test_assert_trap_and_budget_stop_a_launch() -> None:
    """An assertion's text, a trap, a loop without end: an error with the line, and the process lives."""

    @specialize(Inline(KERNEL % "{{ what }} out[threadIdx.x] = x[threadIdx.x];"), grid=(1,), block=(32,))
    def f(x: Float32[Array, " N"], *, what: str = "") -> Float32[Array, " N"]:
        raise NotImplementedError

    x = np.ones(32, np.float32)
    with pytest.raises(KernelError, match="assertion: `x\\[3\\] > 2` does not hold by thread"):
        f(x, what="assert(x[3] > 2);")
    with pytest.raises(KernelError, match="__trap"):
        f(x, what="if (threadIdx.x == 5) __trap();")
    with config.scope(cpu_budget_s=0.2), pytest.raises(BudgetError, match=r"after 0\.2 s, with 0 of 1 blocks done"):
        f(x, what="volatile int go = 0; while (!go);")
    assert f(x).tolist() == x.tolist()


# what is refused ------------------------------------------------------------------------------------------------------


def test_a_compile_error_is_at_the_templates_line() -> None:
    """What neither compiler takes is told in the CUDA compiler's words; without NVRTC, in the host compiler's."""

    @specialize(Inline(KERNEL % "\n\n  nonsense(3);\n"))
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with pytest.raises(CompileError, match="nonsense") as caught:
        f(np.ones(4, np.float32))
    assert caught.value.facts["template"] == "<inline>:3"


def test_the_host_compilers_refusal_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no NVRTC, or reads what only this compiler refuses, is told who it was, and gets the same suggestions."""
    from cuplate.backend.cuda import nvrtc

    def missing(**_: object) -> None:
        raise ToolchainError("no NVRTC")

    monkeypatch.setattr(nvrtc, "toolchain", missing)

    @specialize(Inline(KERNEL % "out[0] = INFINITY;"))
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    compiler = find_compiler()
    said = f"the CPU backend's compiler ({compiler.family} {compiler.version}) refused the rendered source"
    with pytest.raises(CompileError) as caught:
        f(np.ones(4, np.float32))
    assert caught.value.summary.startswith(said)
    assert caught.value.try_ == "CUDART_INF_F, of #include <math_constants.h>"


@pytest.mark.parametrize("way", ["call", "inspect", "compile"])
def test_a_compile_error_comes_with_few_frames_and_no_second_text(way: str) -> None:
    """The message is all that a terminal shows: no log of ``/dev/null/cuplate.cu``, no walk through the rooms."""
    pytest.importorskip("cuda.bindings.nvrtc")

    @specialize(Inline(KERNEL % "nonsense(4);"))
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with pytest.raises(CompileError) as caught:
        f(np.ones(4, np.float32)) if way == "call" else getattr(f, way)("float32", arch="sm_90")
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback") == 1 and "/dev/null" not in text
    assert len(caught.traceback) <= 6
    assert text.count("nonsense") <= 6  # this test's line, summary, excerpt, and the compiler's three


def test_what_only_a_host_compiler_takes_is_refused_where_nvrtc_is() -> None:
    """Green on the CPU means that the CUDA compiler accepts the text."""
    pytest.importorskip("cuda.bindings.nvrtc")
    text = KERNEL % "\n#ifdef __CUDA_CPU_SIM__\n out[0] = x[0];\n#else\n out[0] = undefined_there;\n#endif\n"

    @specialize(Inline(text), grid=(1,), block=(1,))
    def f(x: Float32[Array, "1"]) -> Float32[Array, "1"]:
        raise NotImplementedError

    with pytest.raises(CompileError, match="undefined_there") as caught:
        f(np.ones(1, np.float32))
    assert caught.value.facts["template"] == "<inline>:5"


def test_a_kernel_that_is_not_there_lists_what_is() -> None:
    """As on a GPU."""

    @specialize(Inline('extern "C" __global__ void other({{ args }}) { out[0] = x[0]; }'), entry="wanted")
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with pytest.raises(KernelNotFoundError, match="other"):
        f(np.ones(4, np.float32))


def test_an_existing_kernels_types_are_checked() -> None:
    """A parameter list that disagrees with the call is refused by the same static assertions."""

    @specialize(Inline('extern "C" __global__ void f(const double* x, float* out, int N) { out[0] = x[0]; }'))
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with pytest.raises(CompileError, match="parameter 1"):
        f(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("keywords", "told"),
    [({"cooperative": True, "grid": ("1",)}, "cooperative"), ({"cluster": (2,), "grid": ("2",)}, "cluster")],
)
def test_what_blocks_one_after_another_cannot_do_is_refused(keywords: Any, told: str) -> None:
    """Clusters and cooperative grids."""

    @specialize(Inline(KERNEL % "out[0] = x[0];"), **keywords)
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with pytest.raises(LaunchError, match=told):
        f(np.ones(4, np.float32))


def test_wrong_arrays_are_refused_as_on_a_gpu() -> None:
    """Dtype, layout, read-only output, a stream."""
    x = np.ones((4, 6), np.float32)
    a, b, bias = x, x.T.copy(), np.ones(4, np.float32)
    with pytest.raises(DtypeError):
        matmul_epilogue(a.astype(np.float64), b, bias)  # type: ignore[arg-type]
    with pytest.raises(LayoutError):
        matmul_epilogue(x.T, x, np.ones(6, np.float32))
    frozen = np.zeros((4, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(LayoutError):
        matmul_epilogue(a, b, bias, out=frozen)
    with pytest.raises(ArgumentError, match="stream= has no meaning"):
        matmul_epilogue(a, b, bias, stream=3)


# beside ---------------------------------------------------------------------------------------------------------------


def test_strided_and_reversed_arrays() -> None:
    """A template that reads strides gets them, negative ones too, and the checker knows the array's extent."""
    text = KERNEL % ("int i = threadIdx.x; if (i < N) out[i] = x[(long long)i * {{ x.stride(0) }}];")

    @specialize(Inline(text), grid=(1,), block=(32,))
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    base = np.arange(20, dtype=np.float32)
    for check in CHECKS:
        with config.scope(cpu_check=check):
            for view in (base, base[::2], base[::-1], base[15:3:-3]):
                np.testing.assert_array_equal(f(view), view)


def test_fresh_outputs_are_aligned_as_on_a_gpu() -> None:
    """A plan counts on 256 bytes for an output that is yet to be allocated; so it is, for every size and dtype."""

    @specialize(
        Inline(KERNEL % "if (threadIdx.x < N) out[threadIdx.x] = {{ out.aligned(256) }};"), grid=(1,), block=(64,)
    )
    def f(x: Float[Array, " N"]) -> Float[Array, " N"]:
        raise NotImplementedError

    for n in range(1, 40):
        out = f(np.ones(n, ("float32", "float64")[n % 2]))
        assert out.ctypes.data % 256 == 0 and (out == 1).all() and out.flags.c_contiguous


def test_several_threads_and_dtypes() -> None:
    """Eight threads, equal and different specializations: right results, one compile for each key."""

    @specialize(
        Inline(KERNEL % "int i = blockIdx.x * {{ block.x }} + threadIdx.x; if (i < N) out[i] = x[i] + {{ add }};")
    )
    def f(x: Float[Array, " N"], *, add: int = 1) -> Float[Array, " N"]:
        raise NotImplementedError

    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for dtype in ("float32", "float64"):
                x = np.arange(100, dtype=dtype)
                for _ in range(5):
                    np.testing.assert_array_equal(f(x, add=number % 2), x + number % 2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and f.cache_info().compiles == 4


def test_evicted_kernels_are_unloaded() -> None:
    """Sixty values with room for four: no more stay in memory, each comes back from disk."""

    @specialize(Inline(KERNEL % "out[threadIdx.x] = x[threadIdx.x] + {{ value }};"), grid=(1,), block=(4,))
    def f(x: Float32[Array, "4"], *, value: int = 0) -> Float32[Array, "4"]:
        raise NotImplementedError

    x = np.zeros(4, np.float32)
    with cuplate.configure(memory_kernels=4):
        for value in [*range(8), *range(8)]:
            assert f(x, value=value).tolist() == [value] * 4
    assert f.cache_info().compiles == 8 and f.cache_info().disk_hits == 8


def test_the_users_own_headers(tmp_path: Path) -> None:
    """Include directories count by content: an edited header is another kernel."""
    (tmp_path / "step.h").write_text("#pragma once\n__device__ inline float step(float v) { return v + 1; }\n")

    @specialize(
        Inline('#include "step.h"\n' + KERNEL % "out[threadIdx.x] = step(x[threadIdx.x]);"),
        options=Options(include=tmp_path), grid=(1,), block=(4,),
    )  # fmt: skip
    def f(x: Float32[Array, "4"]) -> Float32[Array, "4"]:
        raise NotImplementedError

    x = np.zeros(4, np.float32)
    assert f(x).tolist() == [1.0] * 4
    (tmp_path / "step.h").write_text("#pragma once\n__device__ inline float step(float v) { return v + 2; }\n")
    f.cache_clear()
    assert f(x).tolist() == [2.0] * 4


def test_in_place_and_several_outputs() -> None:
    """`-> None` with `mutates=`; a NamedTuple of outputs."""
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)

    @specialize(Inline(KERNEL % "int i = threadIdx.x; if (i < N) y[i] += x[i];"), grid=(1,), block=(32,), mutates="y")
    def add(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> None:
        raise NotImplementedError

    assert add(x, y) is None and y.tolist() == (x + 1).tolist()


@pytest.mark.parametrize("f", BINDINGS, ids=lambda f: f.__name__)
def test_every_binding_of_the_tests_runs_here(f: Any) -> None:
    """Each against its reference on drawn shapes, with all checks on; a cluster is refused."""
    from cuplate.testing import check

    if f in (more.swap_pairs, more.peak_normalize):
        with config.scope(cpu_arch="sm_90"), pytest.raises(LaunchError, match=r"cluster|cooperative"):
            check(f, arrays=np, examples=6)
        return
    done = check(f, arrays=np, examples=6)
    assert done.examples == 6


JOINED = KERNEL % ("\n  int i = threadIdx.x;\n  {% if twice %}i *= 2;{% endif %}\n  {{ more }}out[i] = x[i] + y;\n")


def test_a_line_joined_with_the_one_before_is_told_apart_by_its_column() -> None:
    """Jinja takes the line break behind a block tag; errors still point at the line that was written."""

    @specialize(Inline(JOINED), grid=(1,), block=(4,))
    def f(x: Float32[Array, "4"], *, twice: bool = True, more: str = "") -> Float32[Array, "4"]:
        raise NotImplementedError

    with pytest.raises(CompileError, match='"y" is undefined') as caught:
        f.compile(arch="sm_90")
    assert caught.value.facts["template"] == "<inline>:4"

    @specialize(Inline(JOINED.replace(" + y", "")), grid=(1,), block=(4,))
    def g(x: Float32[Array, "4"], *, twice: bool = True, more: str = "") -> Float32[Array, "4"]:
        raise NotImplementedError

    with pytest.raises(KernelError, match=r"x\[4\].*<inline>:4") as found:
        g(np.zeros(4, np.float32))
    assert found.value.facts["template"].startswith("<inline>:4\n")


def test_inspect_tells_of_the_host_build() -> None:
    """With arrays in host memory and no arch= the receipt is that of the CPU backend; with one, of that GPU."""
    x = np.zeros(64, np.float32)
    report = turned.inspect(1.0, x)
    told = str(report)
    assert report.arch == "host" and "standing for sm_80" in told and "registers" not in told
    assert "grid       (1, 1, 1)" in told and "__shared__" in report.source
    with pytest.raises(ToolchainError, match="no PTX"):
        _ = report.ptx
    assert turned.explain(1.0, x).startswith("turned: hit")
    assert turned.inspect(1.0, x, arch="sm_90").arch == "sm_90"
    assert turned.compile(1.0, x).code[:4] == b"\x7fELF"


def test_a_kind_that_has_come_before_is_not_checked_from_the_ground_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call of a kind plans and describes nothing, finds what may not be, and follows every setting."""
    from cuplate import walk

    x, out = np.arange(64, dtype=np.float32), np.empty(64, np.float32)
    turned(2.0, x)
    turned(2.0, x, out=out)
    with monkeypatch.context() as patched:
        patched.setattr(walk, "check_call", lambda *_, **__: pytest.fail("the call was checked from the ground up"))
        assert (turned(3.0, x) == 3 * x[::-1]).all()
        assert turned(4.0, x, out=out) is out and (out == 4 * x[::-1]).all()
    with pytest.raises(LayoutError, match="shares memory"):
        turned(2.0, x, out=x)
    both = np.empty(100, np.float32)
    with pytest.raises(LayoutError, match="shares memory"):
        turned(2.0, both[:64], out=both[20:84])
    with pytest.raises(cuplate.ScalarOverflowError):
        turned(1e39, x)
    with pytest.raises(DtypeError):
        turned(2.0, x.astype(np.float64))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="nothing"):
        turned(2.0, x, nothing=1)  # type: ignore[call-arg]
    monkeypatch.setenv("CUPLATE_CPU_BUDGET", "none")
    with pytest.raises(cuplate.CuplateError, match="CUPLATE_CPU_BUDGET"):
        turned(2.0, x)
    monkeypatch.delenv("CUPLATE_CPU_BUDGET")
    monkeypatch.setenv("CUPLATE_CPU_CHECK", "off")
    compiles = turned.cache_info().compiles
    turned(2.0, x)
    assert turned.cache_info().compiles + turned.cache_info().disk_hits > compiles
    turned.cache_clear()
    assert (turned(2.0, x) == 2 * x[::-1]).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")
def test_what_another_compiler_makes_never_gets_the_key_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is replaced between two variants; what the next one stores has its own key."""
    command = tmp_path / "mycxx"

    def install(version: int) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(
            f'#!/bin/sh\n[ "$*" = --version ] && {{ echo "g++ (Toy) {version}.1.0"; exit; }}\n'
            f'exec g++ -DCOMPILER={version} "$@"\n'
        )
        fresh.chmod(0o755)
        fresh.replace(command)

    def made_by(p: int) -> tuple[int, str]:
        @specialize(Inline(KERNEL % "\n#ifdef COMPILER\nout[0] = 0 * {{ p }} + COMPILER;\n#endif\n"), grid="1", block=1)
        def which(x: Float32[Array, "1"], *, p: int) -> Float32[Array, "1"]:
            raise NotImplementedError

        found = int(which(np.zeros(1, np.float32), p=p)[0])
        return found, dict(which.inspect(np.zeros(1, np.float32), p=p).ingredients)["host compiler"]

    monkeypatch.setenv("CUPLATE_CPU_COMPILER", str(command))
    install(13)
    assert made_by(1) == (13, "gcc g++ (Toy) 13.1.0 " + made_by(1)[1].split()[-1])
    install(14)
    assert made_by(2)[0] == 14
    assert "14.1.0" in made_by(2)[1]
    cache.memory_tier().clear()
    install(13)
    assert made_by(2)[0] == 13  # and not what 14 stored


def test_ctrl_c_during_a_build_does_not_wait_for_the_cuda_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on by itself; the call is over."""
    gate, over = threading.Event(), threading.Event()

    def ask(build: Any) -> None:
        gate.wait(30)
        over.set()

    def interrupted(build: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(HostBuild, "_ask_cuda_compiler", ask)
    monkeypatch.setattr(HostBuild, "_compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turned(1.0, np.zeros(64, np.float32), n=64, shift=0, sync=False)
    assert not over.is_set()
    gate.set()
    assert over.wait(30)


@pytest.mark.parametrize("size", [32, 128, 1024])
@pytest.mark.parametrize("check", CHECKS)
def test_a_kernel_gets_arrays_aligned_as_it_was_told(monkeypatch: pytest.MonkeyPatch, check: str, size: int) -> None:
    """Unchecked it runs on copies, which have the alignment that the template asked for; a call later, too."""
    monkeypatch.setenv("CUPLATE_CPU_CHECK", check)

    @specialize(
        Inline(
            KERNEL
            % f"""
{{% if x.aligned({size}) and out.aligned({size}) %}}
    assert((unsigned long long)x % {size} == 0 && (unsigned long long)out % {size} == 0);
    out[threadIdx.x] = 2 * x[threadIdx.x];
{{% else %}}
    out[threadIdx.x] = -1;
{{% endif %}}"""
        ),
        grid="1",
        block="N",
    )
    def doubled(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    raw = np.zeros(4 * size + 48, np.uint8)
    start = -raw.ctypes.data % size
    x = raw[start : start + 48].view(np.float32)
    out = raw[start + 2 * size : start + 2 * size + 48].view(np.float32)
    for value in (1, 2):
        x[:] = value
        assert doubled(x, out=out).tolist() == [2 * value] * 12
