"""The pytest plugin, in sessions of their own: what a user's CI sees. Kernels are compiled, none needs a GPU."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis.strategies  # noqa: F401 - loaded before sessions in this process, which drop what they load
import numpy as np
import pytest

import cuplate.baseline  # noqa: F401
from cuplate import ToolchainError
from tests.bindings import first

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
INSTALLED = any(point.value == "cuplate.pytest_plugin" for point in entry_points(group="pytest11"))
# A checkout that is not installed has no entry point.
PLUGIN = () if INSTALLED else ("-p", "cuplate.pytest_plugin")

KERNELS = '''
"""A user's kernels."""

from cuplate import Array, f32, specialize
from jaxtyping import Float32


@specialize("saxpy.cu.j2", block="threads")
def saxpy(alpha: f32, x: Float32[Array, " N"], y: Float32[Array, " N"], *, threads: int = 256) -> Float32[Array, " N"]:
    """alpha * x + y."""
    return alpha * x + y
'''
TEMPLATE = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < {{ N }}) out[i] = alpha * x[i] + y[i];
}
"""
# Through shared memory, and an array that is indexed at run time: registers, stack and shared memory grow.
HEAVY = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    __shared__ float moved[512];
    float local[64];
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll 1
    for (int k = 0; k < 64; ++k) local[k] = i + k < {{ N }} ? x[i + k] : 0.0f;
    moved[threadIdx.x % 512] = local[{{ N }} % 64];
    __syncthreads();
    if (i < {{ N }}) out[i] = alpha * moved[(threadIdx.x + 1) % 512] + y[i];
}
"""
TEST = """
from kernels import saxpy

def test_resources(cuplate_resources):
    cuplate_resources.check(saxpy, arch=["sm_80", "sm_90"])
"""
# As strict as a project can be.
SETTINGS = """
[tool.pytest.ini_options]
addopts = ["--strict-config", "--strict-markers", "-p", "no:cacheprovider"]
filterwarnings = ["error"]
pythonpath = ["."]
"""


@pytest.fixture(autouse=True)
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's project with one kernel and one test."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    first.saxpy.compile(arch="sm_90")  # loads what a compile loads, before a session in this process would
    pytester.makefile(".toml", pyproject=SETTINGS)
    pytester.makepyfile(kernels=KERNELS, test_kernels=TEST)
    (pytester.path / "saxpy.cu.j2").write_text(TEMPLATE)
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    """A session in this process."""
    return project.runpytest_inprocess(*PLUGIN, *options)


def content(project: pytest.Pytester, name: str = "cuplate-baseline.json") -> Any:
    """The kernels of the record."""
    return json.loads((project.path / name).read_text())["kernels"]


def setting(project: pytest.Pytester, line: str) -> None:
    """Add a line to the project's settings."""
    project.makefile(".toml", pyproject=SETTINGS + line + "\n")


def test_the_entry_point_is_the_plugin() -> None:
    """pyproject names a module that can be imported; installing cuplate is all that a user does."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert points["pytest11"] == {"cuplate": "cuplate.pytest_plugin"}
    assert hasattr(importlib.import_module(points["pytest11"]["cuplate"]), "cuplate_check")


# the record -----------------------------------------------------------------------------------------------------------


def test_update_records_and_the_next_session_passes(project: pytest.Pytester) -> None:
    """`--cuplate-update` writes the file and says so; without it the same kernels pass, and nothing is written."""
    result = run(project, "--cuplate-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*= cuplate =*", "cuplate-baseline.json: 2 recorded for the first time, 0 as before, 0 changed"]
    )
    ((name, targets),) = content(project).items()
    assert name == "kernels.saxpy(x=float32, y=float32, threads=256)"
    assert [target.split(",")[0] for target in targets] == ["sm_80", "sm_90"]
    assert all(set(t) == {"registers", "spill_bytes", "stack_bytes", "shared_bytes", "build"} for t in targets.values())
    before = (project.path / "cuplate-baseline.json").stat().st_mtime_ns
    result = run(project)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*= cuplate =*")
    assert (project.path / "cuplate-baseline.json").stat().st_mtime_ns == before
    assert [p.name for p in project.path.iterdir() if "cuplate" in p.name] == ["cuplate-baseline.json"]


def test_growth_fails_the_test(project: pytest.Pytester) -> None:
    """A kernel that came to take more fails with a table, at the user's own line, and passes once recorded."""
    run(project, "--cuplate-update")
    (project.path / "saxpy.cu.j2").write_text(HEAVY)
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            '>       cuplate_resources.check(saxpy, arch=[[]"sm_80", "sm_90"])',
            "E       cuplate.baseline.GrowthError: saxpy: the kernel takes more than cuplate-baseline.json records.",
            "E         given      target * figure * was * now * allowed",
            "E * sm_80, nvrtc * stack_bytes  * 0 * 256 * 0",
            "E * sm_80, nvrtc * shared_bytes * 0 * 2048 * 0",
            "E * sm_90, nvrtc * shared_bytes * 0 * 2048 * 0",
            "E         called as  kernels.saxpy(x=float32, y=float32, threads=256)",
            "E         try        pytest --cuplate-update, if it is meant to",
        ]
    )
    assert "baseline.py" not in result.stdout.str()
    result = run(project, "--cuplate-update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "cuplate-baseline.json: 0 recorded for the first time, 0 as before, 2 changed:",
            "target * figure * was * now * kernel",
            "sm_80, nvrtc * shared_bytes * 0 * 2048  kernels.saxpy(x=float32, y=float32, threads=256)",
        ]
    )
    run(project).assert_outcomes(passed=1)


def test_smaller_figures_are_told(project: pytest.Pytester) -> None:
    """A kernel that came to take less passes, and the end of the session says what could be recorded."""
    (project.path / "saxpy.cu.j2").write_text(HEAVY)
    run(project, "--cuplate-update")
    (project.path / "saxpy.cu.j2").write_text(TEMPLATE)
    result = run(project)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "less than cuplate-baseline.json records, pytest --cuplate-update keeps it:",
            "sm_90, nvrtc * shared_bytes * 2048 * 0  kernels.saxpy(*",
        ]
    )


def test_kernel_without_record_fails(project: pytest.Pytester) -> None:
    """A kernel that nobody recorded fails, so that CI finds a file that was forgotten."""
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *.BaselineError: saxpy: cuplate-baseline.json does not record this kernel."])
    assert not (project.path / "cuplate-baseline.json").exists()


@pytest.mark.parametrize("options", [(), ("--cuplate-update",)], ids=["compare", "update"])
def test_damaged_record_fails(project: pytest.Pytester, options: tuple[str, ...]) -> None:
    """A record that cannot be read fails the session with its line, an update too, and stays as it is."""
    path = project.path / "cuplate-baseline.json"
    path.write_text('{\n<<<<<<< HEAD\n  "format"')
    result = run(project, *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*cuplate-baseline.json has an unresolved merge.", "*given * <<<<<<< HEAD"])
    assert path.read_text() == '{\n<<<<<<< HEAD\n  "format"'


def test_record_that_cannot_be_written_fails_the_session(project: pytest.Pytester) -> None:
    """Where the file cannot be written, the session says why and fails, though all tests passed."""
    setting(project, 'cuplate_baseline = "/proc/nowhere/record.json"')
    result = run(project, "--cuplate-update")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["record.json was not written: *"])


def test_settings(project: pytest.Pytester) -> None:
    """The file, the architectures and the allowed growth are settings of the project."""
    lines = ["sm_90"], ["registers=100", "stack_bytes=256", "shared_bytes=2048"]
    setting(
        project,
        'cuplate_baseline = "records/kernels.json"\n'
        f"cuplate_arch = {json.dumps(lines[0])}\ncuplate_allow = {json.dumps(lines[1])}",
    )
    project.makepyfile(
        test_kernels=TEST.replace('saxpy, arch=["sm_80", "sm_90"]', "saxpy")
        + "    assert cuplate_resources.path.exists"
    )
    run(project, "--cuplate-update").assert_outcomes(passed=1)
    ((target, *others),) = content(project, "records/kernels.json").values()
    assert target.startswith("sm_90, ") and not others
    (project.path / "saxpy.cu.j2").write_text(HEAVY)
    run(project).assert_outcomes(passed=1)
    run(project, "-o", "cuplate_allow=registers=100 stack_bytes=256 shared_bytes=2047").assert_outcomes(failed=1)


def test_wrong_setting_is_an_error(project: pytest.Pytester) -> None:
    """A misspelt figure in `cuplate_allow` is an error of the fixture, with the names that there are."""
    setting(project, 'cuplate_allow = ["register=4"]')
    result = run(project)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*SettingError: allowed growth is a figure and a number.", "*given * register=4"])


def test_each_set_of_parameters_is_a_kernel(project: pytest.Pytester) -> None:
    """Parametrized tests record each choice of parameters; a run of some tests keeps the records of the others."""
    project.makepyfile(
        test_kernels="""
        import pytest
        from kernels import saxpy

        @pytest.mark.parametrize("threads", [128, 256])
        def test_resources(cuplate_resources, threads):
            used = cuplate_resources.check(saxpy, arch="sm_90", threads=threads)
            assert used["sm_90"].registers <= 32
        """
    )
    run(project, "--cuplate-update").assert_outcomes(passed=2)
    before = content(project)
    assert [name.split(", ")[-1] for name in before] == ["threads=128)", "threads=256)"]
    run(project, "--cuplate-update", "-k", "128").assert_outcomes(passed=1, deselected=1)
    assert content(project) == before


def test_compile_errors_say_for_what(project: pytest.Pytester) -> None:
    """A kernel that one architecture refuses fails with the compiler's message and the architecture."""
    (project.path / "saxpy.cu.j2").write_text(TEMPLATE.replace("{\n", "{\n    static_assert({{ arch }} >= 90);\n", 1))
    result = run(project, "--cuplate-update")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *.CompileError: saxpy: *", "E * template * saxpy.cu.j2:4", "E * compiling for sm_80"]
    )
    assert not (project.path / "cuplate-baseline.json").exists()


# under pytest-xdist ---------------------------------------------------------------------------------------------------

needs_xdist = pytest.mark.skipif(find_spec("xdist") is None, reason="needs pytest-xdist: pip install -e '.[test]'")


@needs_xdist
@pytest.mark.slow
def test_workers_write_one_record(project: pytest.Pytester) -> None:
    """With several processes one of them writes, and the record holds what each of them found."""
    project.makepyfile(
        test_kernels="""
        import pytest
        from kernels import saxpy

        @pytest.mark.parametrize("threads", [32, 64, 96, 128])
        def test_resources(cuplate_resources, threads):
            cuplate_resources.check(saxpy, arch="sm_90", threads=threads)
        """
    )
    result = project.runpytest_subprocess(*PLUGIN, "-n", "2", "--cuplate-update")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["cuplate-baseline.json: 4 recorded for the first time, 0 as before, 0 changed"])
    assert len(content(project)) == 4


@pytest.mark.parametrize("update", [True, False], ids=["update", "compare"])
def test_a_worker_hands_over_and_writes_nothing(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    """A session that is a worker's puts plain values where the main process finds them, and writes no file."""
    if not update:
        run(project, "--cuplate-update")
        (project.path / "cuplate-baseline.json").write_text(
            (project.path / "cuplate-baseline.json").read_text().replace('"stack_bytes": 0', '"stack_bytes": 8')
        )

    class Worker:
        output: dict[str, Any] = {}  # noqa: RUF012

        @staticmethod
        def pytest_configure(config: Any) -> None:
            config.workeroutput = Worker.output

    options = ["--cuplate-update"] if update else []
    project.inline_run(*PLUGIN, *options, plugins=[Worker()])
    found = Worker.output["cuplate"]
    assert json.loads(json.dumps(found)) == found
    assert (len(found["made"]), len(found["smaller"])) == ((2, 0) if update else (0, 2))
    if update:
        assert not (project.path / "cuplate-baseline.json").exists()


# the check on the CPU backend -----------------------------------------------------------------------------------------


def test_check_runs_with_every_check_on(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cuplate_check` draws NumPy arrays whatever GPU is there, with the checker on in the test and not after it."""
    monkeypatch.setenv("CUPLATE_CPU_CHECK", "off")
    project.makepyfile(
        test_kernels="""
        import os
        import numpy as np
        from kernels import saxpy

        def test_check(cuplate_check):
            def launch(alpha, x, y, threads):
                assert type(x) is np.ndarray and os.environ["CUPLATE_CPU_CHECK"] == "full"
                return (alpha * x + y).astype(np.float32)

            checked = cuplate_check(saxpy, launch=launch, examples=7)
            assert (checked.device, checked.examples) == ("cpu", 7)

        def test_after():
            assert os.environ["CUPLATE_CPU_CHECK"] == "off"
        """
    )
    run(project).assert_outcomes(passed=2)


def test_check_fails_at_the_line_of_the_user(project: pytest.Pytester) -> None:
    """A wrong kernel fails with the simplest call and how to repeat it; no line of ours is shown."""
    project.makepyfile(
        test_kernels="""
        from kernels import saxpy

        def test_check(cuplate_check):
            cuplate_check(saxpy, launch=lambda alpha, x, y, threads: (alpha * x + (x.size < 33) * y).astype("f4"))
        """
    )
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       cuplate_check(saxpy, launch=*",
            "E       cuplate.testing.CheckError: saxpy: out[[]0] is *, the reference says *",
            "E         axes       N = 33",
            "E         repeat     check(saxpy, seed=0, example='33.0')",
            "E       the simplest of * calls that failed",
            "test_kernels.py:4: CheckError",
        ]
    )
    assert re.findall(r"^\S+\.py:\d+", result.stdout.str(), re.M) == ["test_kernels.py:4"]


def test_check_runs_the_kernel_on_the_cpu_backend(project: pytest.Pytester) -> None:
    """A right kernel passes; one that leaves the last element out fails."""
    from cuplate.backend.cpu.compilers import find_compiler

    try:
        find_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))
    first.saxpy(1.0, np.ones(3, np.float32), np.ones(3, np.float32))  # loads what a launch loads
    project.makepyfile(
        test_kernels="""
        import numpy as np
        from kernels import saxpy

        def test_check(cuplate_check):
            assert cuplate_check(saxpy, examples=5, minimum=1).device == "cpu"

        def test_by_hand(cuplate_check):
            x = np.arange(300, dtype=np.float32)
            assert (saxpy(2.0, x, x) == 3 * x).all()
        """
    )
    run(project).assert_outcomes(passed=2)
    (project.path / "saxpy.cu.j2").write_text(TEMPLATE.replace("i < {{ N }}", "i < {{ N }} - 1"))
    result = run(project)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *.KernelError: saxpy: *",
            "E * check(saxpy, seed=0, example='1.0', minimum=1): x=float32[[]1], y=*",
            "test_kernels.py:5: *",
        ]
    )
    result.stdout.fnmatch_lines([">       assert (saxpy(2.0, x, x) == 3 * x).all()"])


# where it is not used -------------------------------------------------------------------------------------------------


def test_the_plugin_loads_next_to_nothing() -> None:
    """Beside pytest, the plugin brings `cuplate`'s front door and itself into a session, and no library."""
    code = "import pytest, sys; before = {*sys.modules}; import cuplate.pytest_plugin; print({*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == {"cuplate", "cuplate.pytest_plugin"}


def test_a_session_without_the_fixtures_is_as_without_the_plugin(project: pytest.Pytester) -> None:
    """Where no test asks for it, nothing of cuplate is loaded, said or written."""
    project.makepyfile(
        test_kernels="""
        import sys

        def test_modules():
            assert [name for name in sys.modules if name.startswith("cuplate")] == ["cuplate", "cuplate.pytest_plugin"]
        """
    )
    result = project.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*= cuplate =*")
    assert sorted(p.name for p in project.path.iterdir() if "cuplate" in p.name) == []


def test_pytest_may_start_after_cuplate_was_imported() -> None:
    """A program that imports cuplate and then runs pytest gets no warning that cuplate cannot be rewritten."""
    assert "cuplate" in sys.modules
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pytest.register_assert_rewrite("cuplate")  # as pytest does for the package of each installed plugin


def test_update_without_kernels_writes_nothing(project: pytest.Pytester) -> None:
    """`--cuplate-update` in a session that checks no kernel leaves no file."""
    project.makepyfile(test_kernels="def test_nothing(cuplate_resources): pass")
    run(project, "--cuplate-update").assert_outcomes(passed=1)
    assert not (project.path / "cuplate-baseline.json").exists()


def test_help_names_option_settings_and_fixtures(project: pytest.Pytester) -> None:
    """`pytest --help` and `pytest --fixtures` tell what there is."""
    run(project, "--help").stdout.fnmatch_lines(
        ["*--cuplate-update*", "*cuplate_baseline (string)*", "*cuplate_arch (args)*", "*cuplate_allow (args)*"]
    )
    run(project, "--fixtures").stdout.fnmatch_lines(["cuplate_check*", "cuplate_resources [[]session scope[]]*"])
