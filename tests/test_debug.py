"""``CUPLATE_DEBUG=1`` on a recording GPU: each call waits, compiled with line info; without it nothing is done."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from jaxtyping import Float32

import cuplate
from cuplate import Array, Inline, KernelError, LaunchError, config, specialize
from cuplate.events import listeners
from tests.doubles import Gpu, install

ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"


@specialize(
    Inline("""
{% for step in range(steps) %}
{% endfor %}
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + {{ steps }};
}
""")
)
def step(x: Float32[Array, " N"], *, steps: int = 9) -> Float32[Array, " N"]:
    """x + steps."""
    raise NotImplementedError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU, and no variable set."""
    monkeypatch.delenv("CUPLATE_DEBUG", raising=False)
    gpu = install(monkeypatch)
    yield gpu
    monkeypatch.delenv("CUPLATE_DEBUG", raising=False)
    step.reload()
    step(gpu.array(1))  # leaves the hot paths open
    step.reload()
    assert not listeners


def kinds(gpu: Gpu, call: Any) -> list[str]:
    """What the device is asked for by one call."""
    gpu.log.clear()
    call()
    return [note.what for note in gpu.log]


def test_without_it_no_call_waits(gpu: Gpu) -> None:
    """Neither a cold call nor a warm one, and nobody listens: the generated code is as it always was."""
    x, out = gpu.array(5), gpu.array(5)
    step(x, out=out)
    for _ in range(4):
        assert kinds(gpu, lambda: step(x, out=out)) == ["launch"]
    assert listeners == []


def test_each_call_waits_before_and_after_its_launch(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls of all functions from the first one on that is not hot; and none once the variable is gone."""
    x, out = gpu.array(5), gpu.array(5)
    for _ in range(4):
        step(x, out=out)  # hot by now
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    assert kinds(gpu, lambda: step(x, out=out)) == ["launch"], "a hot call reads no variable"
    assert kinds(gpu, lambda: step(x, out=out, steps=3))[-3:] == ["load", "launch", "wait"]
    with gpu.on_stream(7):
        assert kinds(gpu, lambda: step(x, out=out)) == ["wait", "load", "launch", "wait"]
        assert {n.stream for n in gpu.log if n.what != "load"} == {7}
        for _ in range(3):
            assert kinds(gpu, lambda: step(x, out=out)) == ["wait", "launch", "wait"]
    monkeypatch.setenv("CUPLATE_DEBUG", "0")
    step(x, out=out)
    for _ in range(3):
        assert kinds(gpu, lambda: step(x, out=out)) == ["launch"]


def test_a_scope_counts_as_the_variable(gpu: Gpu) -> None:
    """As for every setting."""
    x, out = gpu.array(5), gpu.array(5)
    with config.scope(debug=True):
        assert "wait" in kinds(gpu, lambda: step(x, out=out))
    assert kinds(gpu, lambda: step(x, out=out)) == ["load", "launch"]


def test_a_fault_is_raised_at_its_own_call(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernel, parameters, grid and key; and it pickles."""
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    gpu.faults = [None, ILLEGAL]
    with pytest.raises(KernelError) as caught:
        step(gpu.array(1000), steps=4)
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error).startswith(f"step: the kernel step ended with {ILLEGAL}.")
    assert error.called_as == "step(x=float32[1000], steps=4)" and error.parameters == "steps=4"
    assert (error.kernel, error.grid, error.block, error.reports) == ("step", (4, 1, 1), (256, 1, 1), ())
    assert "compute-sanitizer" in error.try_ and error.rendered_to.endswith(".cu")
    assert error.key in step.inspect(gpu.array(1000), steps=4).key


def test_an_earlier_fault_is_not_this_calls(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before anything is loaded, allocated or launched."""
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    gpu.faults = [ILLEGAL]
    with pytest.raises(LaunchError, match="the GPU had failed before this call began") as caught:
        step(gpu.array(5))
    assert caught.value.given == ILLEGAL
    assert [note.what for note in gpu.log] == ["wait"]


def test_a_captured_call_does_not_wait(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is forbidden in a capture, and nothing has run there yet."""
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    x, out = gpu.array(5), gpu.array(5)
    step(x, out=out)
    gpu.capturing.add(9)
    with gpu.on_stream(9):
        assert kinds(gpu, lambda: step(x, out=out)) == ["launch"]


def test_it_is_a_part_of_the_key_and_compiles_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line info is an option like any other: another key, and the template's lines in the cubin."""
    spec = cuplate.ArraySpec((5,))
    plain = step.inspect(spec, arch="sm_90")
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    debug = step.inspect(spec, arch="sm_90")
    assert plain.key != debug.key and plain.options == ("std=c++17",) and debug.options == ("std=c++17", "line_info")
    assert b".debug_line" in debug.cubin.code and b".debug_line" not in plain.cubin.code
    assert step.compile(spec, arch="sm_90").code == debug.cubin.code
    assert step.__wrapped__ is not None and step.cache_info().variants >= 2
    monkeypatch.delenv("CUPLATE_DEBUG")
    assert step.inspect(spec, arch="sm_90").key == plain.key


def test_arrays_in_host_memory_are_not_compiled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU backend checks each call anyway, and always has the template's lines."""
    import numpy as np

    x = np.ones(5, np.float32)
    plain = step.inspect(x)
    monkeypatch.setenv("CUPLATE_DEBUG", "1")
    assert step.inspect(x).key == plain.key
