"""The example package: built into a wheel, installed where no compiler is, and run from its bundle alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "examples" / "package"
# What an installation without NVRTC and without a C++ compiler looks like from inside.
NO_COMPILER = """
import sys
sys.modules["ziglang"] = None
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("cuda.bindings.") and name.endswith("nvrtc"):
            raise ImportError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
"""
USE = """
import numpy as np
import cuplate
from cuplate.backend.cpu.compilers import find_compiler
from cuplate.backend.cuda import nvrtc
for asked in (nvrtc.toolchain, find_compiler):
    try: asked()
    except cuplate.ToolchainError as error: print("none:", str(error).splitlines()[0])
import blurred
print("installed:", "site-packages" in blurred.__file__)
x = np.random.default_rng(1).random((33, 70)).astype(np.float32)
for radius in (1, 2):
    print("mean", np.allclose(blurred.mean(x, radius=radius), blurred.mean.reference(x, radius=radius), atol=1e-5))
print("shifted", np.array_equal(blurred.shifted(x.astype(np.float64), 0.5), x.astype(np.float64) + 0.5))
for arch in ("sm_80", "sm_90"):
    print(arch, blurred.mean.inspect(arch=arch).origin, blurred.shifted.inspect("float32", arch=arch).origin)
try: blurred.mean(x, radius=3)
except cuplate.FrozenCacheError as error: print(error.entry, error.try_.splitlines()[0], sep="\\n")
"""


def can_build() -> bool:
    """Whether setuptools makes wheels by itself."""
    try:
        return int(version("setuptools").split(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def done(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of a command that must not fail."""
    finished = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.slow
@pytest.mark.skipif(not can_build() and not os.environ.get("CI"), reason="needs setuptools>=77")
def test_a_package_ships_its_kernels_and_runs_without_a_compiler(tmp_path: Path) -> None:
    """From the manifest in the repository to a frozen run without NVRTC and C++ compiler; what is missing is named."""
    pytest.importorskip("cuda.bindings.nvrtc")
    source = tmp_path / "package"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    bundle = source / "src" / "blurred" / "kernels.cuplate"
    paths = os.pathsep.join([str(source / "src"), os.environ["PYTHONPATH"]])
    done(
        *(sys.executable, "-m", "cuplate", "build", "manifest.json", "--arch", "sm_80,sm_90a", "--host", "-o", bundle),
        cwd=source,
        PYTHONPATH=paths,
        CUPLATE_CPU_CHECK="off",
    )
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    done(*pip, "wheel", source, *offline, "--no-build-isolation", "-w", tmp_path, cwd=tmp_path, PYTHONPATH="")
    (wheel,) = tmp_path.glob("blurred-*.whl")
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=False)
    python = fresh / "bin" / "python"
    done(*pip, "--python", python, "install", *offline, wheel, cwd=tmp_path, PYTHONPATH="")
    (packages,) = fresh.glob("lib/python*/site-packages")
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(ROOT / "src")}
    libraries |= {path for path in sys.path if path.endswith("site-packages")}
    (packages / "libraries.pth").write_text("\n".join(sorted(libraries)))
    (packages / "sitecustomize.py").write_text(NO_COMPILER)
    said = done(
        *(python, "-W", "error", "-c", USE),
        cwd=tmp_path,
        PYTHONPATH="",
        PATH=str(fresh / "bin"),
        CUPLATE_FROZEN="1",
        CUPLATE_CACHE_DIR="off",
        CUPLATE_CPU_CHECK="off",
    )
    assert said.splitlines() == [
        "none: the CUDA run-time compiler (NVRTC) cannot be loaded",
        "none: the CPU backend needs a C++ compiler and found none",
        "installed: True",
        "mean True",
        "mean True",
        "shifted True",
        "sm_80 disk disk",
        "sm_90 disk disk",
        '{"function": "blurred:mean", "parameters": {"radius": 3}, "arrays": {"x": "float32"}}',
        "this entry in the manifest, then: cuplate build MANIFEST --host -o BUNDLE",
    ]
