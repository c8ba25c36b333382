"""The reference as a judge, and the memory in which candidates write: on the host, with results that a test makes."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from jaxtyping import Bool, Complex64, Float32, Int32

from cuplate import Array, Inline, f32, specialize, tune
from cuplate.autotune import judge
from cuplate.autotune.agree import Tolerance
from cuplate.autotune.judge import Reference
from cuplate.autotune.workspace import ALIGNMENT, NoRoom, Workspace
from cuplate.backend.cpu.bench import Bench

TEXT = 'extern "C" __global__ void {{ kernel }}({{ args }}) { /* {{ t }} %s */ }'


class Two(NamedTuple):
    """A sum and where it is large."""

    total: Float32[Array, " N"]
    large: Bool[Array, " N"]


@specialize(Inline(TEXT % ""), tiles={"N": 1})
def several(x: Float32[Array, " N"], y: Int32[Array, " N"], factor: f32, *, t: Literal[1, 2] = tune()) -> Two:  # type: ignore[type-arg]
    """factor * x + y."""
    total = factor * x + y
    return Two(total, total > 10)


@specialize(Inline(TEXT % "{{ x.stride(0) }}"), tiles={"N": 1}, mutates="x")
def turned(x: Complex64[Array, " N"], w: Complex64[Array, " N"] | None = None, *, t: Literal[1, 2] = tune()) -> None:
    """X times i, and w."""
    x *= 1j if w is None else 1j * w


def placed(f: Any, *args: Any, **values: Any) -> tuple[Workspace, Reference]:
    """The workspace of a call in host memory, and its judge."""
    walk = f.reload.__self__
    given, more, unknown = walk.inspection.named(args, values)
    call = walk.checked(walk.choice, given, more, unknown)
    outputs = {n: (s, call.solved.dtypes[n]) for n, s in call.solved.output_shapes.items()}
    binding, bench = walk.variants.binding, Bench()
    workspace = Workspace(bench, call, binding.written, outputs)
    return workspace, Reference(f.reference, call, binding, call.solved, bench, workspace, Tolerance())


def raw(array: Any) -> Any:
    """Its bytes."""
    return np.frombuffer(array.tobytes(), np.uint8)


def test_the_reference_finds_the_right_one_of_several_results() -> None:
    """Of each output, scalars and dtypes as they are; a result that is right but for one output is wrong."""
    x, y = np.arange(8, dtype=np.float32), np.arange(8, dtype=np.int32)
    workspace, reference = placed(several, x, y, 2.0)
    total = (2 * x + y).astype(np.float32)
    right = {"total": raw(total), "large": raw(total > 10)}
    wrong = {"total": raw(total), "large": raw(total > 8)}
    assert workspace.dtypes == {"total": "float32", "large": "bool"}
    assert reference([wrong, right]) == (1, "the reference")
    assert reference([wrong]) is None


def test_what_is_changed_in_place_is_judged_with_its_gaps() -> None:
    """A view of every second element: what lies between is as it was, and the arrays of the call are untouched."""
    base = np.arange(16, dtype=np.complex64)
    x = base[::2]
    for w in (None, np.full(8, 2, np.complex64)):
        before = base.copy()
        workspace, reference = placed(turned, x, w)
        expected = base.copy()[:15]
        expected[::2] *= 1j if w is None else 2j
        spoilt = expected.copy()
        spoilt[1] = 0  # between two elements
        assert reference([{"x": raw(spoilt)}, {"x": raw(expected)}]) == (1, "the reference")
        assert np.array_equal(base, before)
        assert workspace.call.arrays["x"] is not None


def test_where_the_reference_cannot_say_nobody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that are too large for it, and a body that raises."""
    x, y = np.arange(8, dtype=np.float32), np.arange(8, dtype=np.int32)
    total = (2 * x + y).astype(np.float32)
    right = {"total": raw(total), "large": raw(total > 10)}
    _, reference = placed(several, x, y, 2.0)
    assert reference([right]) == (0, "the reference")
    monkeypatch.setattr(judge, "_LARGEST", 7)
    assert reference([right]) is None
    monkeypatch.undo()
    reference._reference = lambda *args, **parameters: 1 / 0
    assert reference([right]) is None


def test_copies_lie_as_their_originals_and_find_what_the_call_would_find() -> None:
    """B58: every fact of the alignment holds; a reset brings the values back, and makes outputs unlike any result."""
    room = np.zeros(100, np.complex64)
    x = room[3:11]
    x[:] = np.arange(8)
    workspace, _ = placed(turned, x)
    copy = workspace.call.arrays["x"]
    assert copy is not None and copy.pointer % ALIGNMENT == x.ctypes.data % ALIGNMENT and copy.pointer != x.ctypes.data
    workspace.reset()
    assert np.array_equal(workspace.read()["x"], raw(x))
    workspace._bench.fill(copy.pointer, 7, x.nbytes)
    assert not np.array_equal(workspace.read()["x"], raw(x)) and np.array_equal(x, np.arange(8))
    workspace.restore()
    assert np.array_equal(workspace.read()["x"], raw(x)) and np.array_equal(workspace.originals()["x"], raw(x))
    outputs, _ = placed(several, np.ones(3, np.float32), np.ones(3, np.int32), 1.0)
    outputs.reset()
    assert np.isnan(outputs.read()["total"].view(np.float32)).all()
    total = outputs.call.arrays["total"]
    assert total is not None and total.pointer % ALIGNMENT == 0


def test_no_memory_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library calls it."""

    def nothing(self: Any, size_bytes: int) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Bench, "allocate", nothing)
    with pytest.raises(NoRoom, match="out of memory"):
        placed(turned, np.ones(4, np.complex64))
