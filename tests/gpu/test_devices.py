"""Two GPUs in one process: calls run where the arrays are, and leave the caller's device as it was (B33)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cupy
import pytest

from cuplate import DeviceError, cache, subscribe
from cuplate.kernels import matmul_epilogue
from tests.bindings import first

if cupy.cuda.runtime.getDeviceCount() < 2:
    pytest.skip("one GPU", allow_module_level=True)


def arrays(device: int, n: int = 48) -> tuple[Any, Any, Any]:
    """Inputs of a product on one device."""
    with cupy.cuda.Device(device):
        rng = cupy.random.default_rng(device)
        draw = rng.standard_normal
        return draw((n, n), dtype=cupy.float32), draw((n, n), dtype=cupy.float32), draw(n, dtype=cupy.float32)


def right(a: Any, b: Any, bias: Any, got: Any) -> bool:
    """Whether `got` is relu(a @ b + bias), on the device of the inputs."""
    with cupy.cuda.Device(a.device.id):
        return got.device.id == a.device.id and bool(cupy.allclose(got, cupy.maximum(a @ b + bias, 0), atol=1e-4))


@pytest.mark.parametrize("current", [0, 1])
def test_calls_run_where_the_arrays_are(current: int) -> None:
    """Cold and warm, whatever device is current; which is the same afterwards."""
    inputs = {device: arrays(device) for device in (0, 1)}
    with cupy.cuda.Device(current):
        for _ in range(3):
            for a, b, bias in inputs.values():
                assert right(a, b, bias, matmul_epilogue(a, b, bias, relu=True))
                assert cupy.cuda.runtime.getDevice() == current


def test_an_output_of_the_current_device_is_refused_for_arrays_of_another() -> None:
    """Also warm: the device of ``out=`` is looked at on every call."""
    a, b, bias = arrays(0)
    out = cupy.empty_like(a)
    for _ in range(3):
        matmul_epilogue(a, b, bias, out=out)
    with cupy.cuda.Device(1):
        far = cupy.empty((48, 48), cupy.float32)
    with pytest.raises(DeviceError, match="out on cuda 1"):
        matmul_epilogue(a, b, bias, out=far)
    with pytest.raises(DeviceError, match="different devices"):
        matmul_epilogue(a, arrays(1)[1], bias)


def test_equal_devices_share_one_compile_and_load_once_each() -> None:
    """One content key; the second device loads the same cubin, and nothing is compiled for it."""
    matmul_epilogue.cache_clear()
    loads: list[int] = []
    with subscribe(lambda event: loads.append(int(event.detail["device"])), "load"):
        cache.reset()
        for device in (0, 1, 0, 1):
            matmul_epilogue(*arrays(device), tile=32, epilogue="identity")
        assert cache.stats().compile.compiles <= 1
    assert sorted(loads) == [0, 1]


def test_each_thread_with_its_own_device_and_stream() -> None:
    """Threads that never touched CUDA before, on both devices at once: right results, warm and cold."""
    failures: list[BaseException] = []

    def work(device: int) -> None:
        try:
            with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True) as stream:
                a, b, bias = arrays(device, 33 + device)
                for _ in range(20):
                    got = matmul_epilogue(a, b, bias, relu=True)
                stream.synchronize()
                assert right(a, b, bias, got)
        except BaseException as error:  # told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_a_thread_without_a_context_can_call() -> None:
    """With ``out=`` given CuPy does nothing in the thread before the launch; the context is ours to make."""
    a, b, bias = arrays(1)
    with cupy.cuda.Device(1):
        out = cupy.zeros((48, 48), cupy.float32)
        cupy.cuda.get_current_stream().synchronize()
    thread = threading.Thread(target=matmul_epilogue, args=(a, b, bias), kwargs={"relu": True, "out": out})
    thread.start()
    thread.join()
    assert right(a, b, bias, out)


def test_references_agree_on_both_devices() -> None:
    """An elementwise binding too, in turn on each device."""
    for device in (0, 1, 1, 0):
        with cupy.cuda.Device(device):
            x = cupy.arange(1000, dtype=cupy.float32)
        y = first.saxpy(2.0, x, x)
        with cupy.cuda.Device(device):
            assert bool((y == 3 * x).all())


@pytest.mark.parametrize("device", [0, 1])
def test_a_threads_current_device_is_given_back(device: int) -> None:
    """Also to a thread that never chose one: its current device is 0, and stays so, wherever the arrays are (B33)."""
    a, b, bias = arrays(device)
    matmul_epilogue(a, b, bias, relu=True)
    with cupy.cuda.Device(device):
        out = cupy.zeros((48, 48), cupy.float32)
        cupy.cuda.get_current_stream().synchronize()
    seen: list[int] = []

    def work() -> None:
        for _ in range(3):
            matmul_epilogue(a, b, bias, relu=True, out=out)
            seen.append(cupy.cuda.runtime.getDevice())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 0, 0]
    assert right(a, b, bias, out)


def test_a_stream_of_another_device_is_refused() -> None:
    """Before anything is allocated, zeroed or launched; a default stream is every device's."""
    x = arrays(0)[2]
    with cupy.cuda.Device(1):
        far = cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(DeviceError, match="belongs to another device") as caught:
        first.total(x, stream=far)
    assert caught.value.facts["given"] == "stream= of cuda 1, arrays on cuda 0"
    y = arrays(1)[2]
    total = first.total(y, stream=far)
    far.synchronize()
    with cupy.cuda.Device(1):
        assert abs(float(total) - float(y.sum())) < 1e-3
        assert abs(float(first.total(y, stream=cupy.cuda.Stream.null)) - float(y.sum())) < 1e-3


def test_torch_tensors_run_where_they_are(torch: Any) -> None:
    """On either device, whichever is torch's current one, on that device's current stream."""
    for current in (0, 1):
        with torch.cuda.device(current):
            for device in (1, 0, 1):
                x = torch.full((1000,), float(device + 2), device=f"cuda:{device}")
                for _ in range(2):
                    got = first.saxpy(2.0, x, x)
                    assert got.device == x.device and torch.cuda.current_device() == current
                assert bool((got == 3 * (device + 2)).all())
    with pytest.raises(DeviceError, match="y on cuda 1"):
        first.saxpy(2.0, torch.ones(5, device="cuda:0"), torch.ones(5, device="cuda:1"))


UNUSED = """
import sys
from cuda.bindings import driver
import cuplate
from cuplate.kernels import matmul_epilogue

def touched():
    return [bool(driver.cuDevicePrimaryCtxGetState(d)[2]) for d in (0, 1)]

library, device = sys.argv[1], int(sys.argv[2])
if library == "cupy":
    import cupy
    cupy.cuda.Device(device).use()
    a = cupy.ones((32, 32), cupy.float32)
    side = cupy.cuda.Stream(non_blocking=True)
else:
    import torch
    torch.cuda.set_device(device)
    a = torch.ones(32, 32, device="cuda")
    side = torch.cuda.Stream()
before = touched()
for _ in range(3):
    c = matmul_epilogue(a, a, a[0], relu=True)
c = matmul_epilogue(a, a, a[0], relu=True, stream=side)
side.synchronize()
assert float(c.sum()) == 33 * 32 * 32
cuplate.cache.clear(disk=False)
print(before, touched())
"""


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("device", [0, 1])
def test_an_unused_device_is_not_touched(torch: Any, library: str, device: int) -> None:
    """No context is made on the other device: it costs half a gigabyte, and its owner may be another process."""
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", UNUSED, library, str(device)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own = [d == device for d in (0, 1)]
    assert done.stdout == f"{own} {own}\n"
