"""A call comes back while its kernel runs; with ``CUPLATE_DEBUG=1`` it waits, and raises what the kernel has done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.waiting import LONG, SHORT, Gate, times, wait

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gate(cp: Any) -> Gate:
    """A closed gate."""
    return Gate(cp)


@pytest.mark.parametrize("given", [False, True], ids=["fresh", "out="])
@pytest.mark.parametrize("stream", ["default", "current", "given"])
def test_a_call_returns_while_its_kernel_runs(cp: Any, gate: Gate, stream: str, given: bool) -> None:
    """The kernel ends when the host, behind the call, opens the gate: a call that waited would find it closed.

    On the general path, on the hot one, and when the call has become a repeat.
    """
    side = cp.cuda.Stream(non_blocking=True)
    out = cp.zeros(1, cp.int32) if given else None
    gate.open()
    wait(LONG, gate.array, out=out)
    cp.cuda.Device().synchronize()
    for _ in range(4):
        gate.close()
        if stream == "current":
            with side:
                seen = wait(LONG, gate.array, out=out)
        else:
            seen = wait(LONG, gate.array, out=out, stream=side if stream == "given" else None)
        gate.open()
        cp.cuda.Device().synchronize()
        assert int(seen[0]) == 1


def test_a_new_plan_for_a_loaded_kernel_does_not_wait(cp: Any, gate: Gate) -> None:
    """Limits, parameters and occupancy are asked while other work runs."""
    x = cp.ones(100, cp.float32)
    gate.open()
    wait(LONG, gate.array)
    times(x, factor=3)
    cp.cuda.Device().synchronize()
    gate.close()
    side = cp.cuda.Stream(non_blocking=True)
    with side:
        seen = wait(LONG, gate.array)
        results = [times(x[:n], factor=3) for n in range(50, 60)]
    gate.open()
    side.synchronize()
    assert int(seen[0]) == 1
    assert all(bool((r == 3).all()) for r in results)


def test_a_call_with_torch_returns_while_its_kernel_runs(torch: Any, cp: Any, gate: Gate) -> None:
    """The same through torch's tensors."""
    flag = torch.from_dlpack(gate.array)
    gate.open()
    wait(LONG, flag)
    torch.cuda.synchronize()
    for _ in range(3):
        gate.close()
        seen = wait(LONG, flag)
        gate.open()
        torch.cuda.synchronize()
        assert int(seen[0]) == 1


def test_debug_waits_in_each_call(cp: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable set every call waits: the gate is opened too late. Without it again, none does."""
    gate.open()
    wait(SHORT, gate.array)
    cp.cuda.Device().synchronize()
    gate.close()
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    times(cp.ones(7, cp.float32), factor=11)  # any call that is not hot reads the variable, for all functions
    for _ in range(3):
        seen = wait(SHORT, gate.array)
        gate.open()
        cp.cuda.Device().synchronize()
        assert int(seen[0]) == 0
        gate.close()
    monkeypatch.delenv("CUPLATE_DEBUG")
    for _ in range(3):
        gate.close()
        seen = wait(LONG, gate.array)
        gate.open()
        cp.cuda.Device().synchronize()
        assert int(seen[0]) == 1


FAULT = '''
import sys
import cupy
from jaxtyping import Float32
import cuplate
from cuplate import Array, Inline, KernelError, LaunchError, specialize

@specialize(Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i + (1ll << {{ far }})] = x[i];
}
"""))
def stray(x: Float32[Array, " N"], *, far: int) -> Float32[Array, " N"]:
    return x

x = cupy.ones(1000, cupy.float32)
stray.compile(x, far=40)
try:
    stray(x, far=40)
    print("returned")
    cupy.cuda.Device().synchronize()
except (KernelError, LaunchError) as error:
    print(type(error).__name__, error.facts.get("parameters"), error.facts.get("called_as"), error.kernel)
    print(error)
except Exception as error:
    print(type(error).__name__)
try:
    stray(x, far=0)
except LaunchError as error:
    print("then", type(error).__name__, str(error).splitlines()[0])
except Exception as error:
    print("then", type(error).__name__)
'''


def run(text: str, **environment: str) -> str:
    """What a script prints; faults of the device end a process, so it has its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_debug_raises_a_fault_at_its_own_call() -> None:
    """With kernel and parameters; without the variable it shows at the next synchronisation, as with any launch."""
    told = run(FAULT, CUPLATE_DEBUG="1")
    assert told.startswith("KernelError far=40 stray(x=float32[1000], far=40) stray\n"), told
    assert "ended with CUDA_ERROR_ILLEGAL_ADDRESS" in told and "returned" not in told
    assert "then LaunchError stray: the GPU had failed before this call began." in told
    assert run(FAULT).startswith("returned\n")
