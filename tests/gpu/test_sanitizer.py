"""What ``CUPLATE_DEBUG=1`` compiles lets compute-sanitizer name the template's own line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import sanitize

ROOT = Path(__file__).parents[2]
TEMPLATE = """{# kernel  stray: writes far behind its output #}
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    {% for step in range(2) %}
    if (i < N) out[i + {{ step }} * (1ll << 40)] = x[i];
    {% endfor %}
}
"""
SCRIPT = """
import cupy
from jaxtyping import Float32
from cuplate import Array, specialize

@specialize("stray.cu.j2")
def stray(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    return x

try:
    stray(cupy.ones(64, cupy.float32))
    cupy.cuda.Device().synchronize()
except Exception as error:
    print(type(error).__name__)
"""


def test_the_sanitizer_names_the_templates_line(cp: Any, tmp_path: Path) -> None:
    """The fault stands in line 6 of the template, which is another one of the rendered text."""
    if sanitize.find() is None:
        pytest.skip("no compute-sanitizer")
    (tmp_path / "stray.cu.j2").write_text(TEMPLATE)
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    log = tmp_path / "log"
    done = subprocess.run(
        sanitize.command("memcheck", log, sys.executable, str(tmp_path / "script.py")),
        env={**os.environ, "PYTHONPATH": path, "CUPLATE_DEBUG": "1", "CUPLATE_CACHE_DIR": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    text = log.read_text() if log.exists() else ""
    if "not supported" in text + done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not work on this device")
    assert "KernelError" in done.stdout, done.stdout + done.stderr + text
    assert "Invalid __global__ write" in text and "stray.cu.j2:6" in text, text[:3000]
