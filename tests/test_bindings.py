"""The bindings of `tests.bindings` without a GPU: grids, parameter lists, keys, references, messages of mistakes."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import (
    ArgumentError,
    Array,
    ArraySpec,
    CompileError,
    DtypeError,
    LaunchError,
    LayoutError,
    ParameterError,
    ShapeError,
    f32,
    specialize,
)
from cuplate.plan import make_recipes
from tests.bindings import first, more

ARCHES = ("sm_80", "sm_90")


def spec(*shape: int, dtype: str = "float32", **facts: Any) -> ArraySpec:
    """An array that is only described."""
    return ArraySpec(shape, dtype, **facts)


@dataclass(frozen=True, slots=True)
class Case:
    """A call, and what has to come of it.

    Attributes
    ----------
    arguments : str
        The kernel's own parameter list; integers with their values.
    grid : tuple of int or None
        None where it depends on the device.
    """

    f: Any
    given: dict[str, Any]
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int]
    arguments: str
    arches: tuple[str, ...] = ARCHES
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parameters = [f"{n}={v}" for n, v in self.given.items() if not isinstance(v, ArraySpec)]
        return "-".join([self.f.__name__, *parameters])


CASES = [
    Case(first.saxpy, {"x": spec(1000), "y": spec(1000)}, (4, 1, 1), (256, 1, 1), "alpha x y out N=1000"),
    Case(first.softmax, {"x": spec(7, 100)}, (7, 1, 1), (64, 1, 1), "x out R=7 C=100"),
    Case(first.softmax, {"x": spec(7, 0), "threads": 256}, (7, 1, 1), (256, 1, 1), "x out R=7 C=0"),
    Case(first.total, {"x": spec(1000)}, (4, 1, 1), (256, 1, 1), "x out N=1000"),
    Case(first.total, {"x": spec(0)}, (1, 1, 1), (256, 1, 1), "x out N=0"),
    Case(first.total, {"x": spec(10**7), "threads": 64}, (512, 1, 1), (64, 1, 1), "x out N=10000000"),
    Case(first.transpose, {"a": spec(70, 33)}, (2, 3, 1), (32, 8, 1), "a out M=70 N=33"),
    Case(
        first.transpose,
        {"a": spec(70, 33, strides=(1, 70)), "tile": 16, "rows": 4},
        (3, 5, 1),
        (16, 4, 1),
        "a out M=70 N=33",
    ),
    Case(first.histogram, {"x": spec(600, dtype="int32"), "bins": 5}, (3, 1, 1), (256, 1, 1), "x out N=600"),
    Case(
        first.batched_matmul,
        {"a": spec(2, 3, 20, 9), "b": spec(2, 3, 9, 40)},
        (3, 2, 6),
        (16, 16, 1),
        "a b out batch=6 M=20 K=9 N=40",
    ),
    Case(
        first.batched_matmul,
        {"a": spec(20, 9), "b": spec(9, 40), "tile": 8},
        (5, 3, 1),
        (8, 8, 1),
        "a b out batch=1 M=20 K=9 N=40",
    ),
    Case(first.stencil, {"x": spec(50, 65)}, (5, 4, 1), (16, 16, 1), "x out H=50 W=65"),
    Case(first.row_max, {"x": spec(9, 5)}, (3, 1, 1), (32, 4, 1), "x value place R=9 C=5"),
    Case(first.scale, {"x": spec(257)}, (2, 1, 1), (256, 1, 1), "x factor N=257"),
    Case(first.convolve, {"x": spec(300), "w": spec(45)}, (1, 1, 1), (256, 1, 1), "x w out N=300 K=45"),
    Case(first.convolve, {"x": spec(300), "w": spec(44)}, (2, 1, 1), (256, 1, 1), "x w out N=300 K=44"),
    Case(
        first.sgemm,
        {"a": spec(20, 9, strides=(12, 1)), "b": spec(9, 40)},
        (3, 2, 1),
        (16, 16, 1),
        "M=20 N=40 K=9 alpha a a.stride(0)=12 b b.stride(0)=40 out out.stride(0)=40",
    ),
    Case(first.cumsum, {"x": spec(3, 5000)}, (3, 1, 1), (256, 1, 1), "x out R=3 C=5000", facts={"shared": 4096}),
    Case(
        first.cumsum, {"x": spec(3, 9), "tile": 12544}, (3, 1, 1), (256, 1, 1), "x out R=3 C=9", facts={"shared": 50176}
    ),
    Case(first.cast, {"x": spec(10)}, (1, 1, 1), (256, 1, 1), "x out N=10"),
    Case(first.cast, {"x": spec(10), "out_dtype": "float64"}, (1, 1, 1), (256, 1, 1), "x out N=10"),
    Case(
        first.linear,
        {"x": spec(17, 3), "w": spec(3, 16), "bias": spec(16)},
        (1, 2, 1),
        (16, 16, 1),
        "x w bias out M=17 K=3 N=16",
    ),
    Case(first.linear, {"x": spec(17, 3), "w": spec(3, 16)}, (1, 2, 1), (16, 16, 1), "x w out M=17 K=3 N=16"),
    Case(
        first.matmul,
        {"a": spec(33, 3), "b": spec(3, 16), "tile": 32},
        (1, 2, 1),
        (32, 32, 1),
        "out a b M=33 N=16 K=3",
    ),
    Case(more.project, {"x": spec(300, 8), "w": spec(8)}, (3, 1, 1), (128, 1, 1), "x w out R=300"),
    Case(more.negate, {"x": spec(300, dtype="float64")}, (3, 1, 1), (128, 1, 1), "x out N=300"),
    Case(more.square, {"x": spec(300)}, None, (256, 1, 1), "x out N=300"),
    Case(more.total_ordered, {"x": spec(300)}, (5, 1, 1), (32, 1, 1), "x out partial finished N=300"),
    Case(more.cross, {"a": spec(300, 3), "b": spec(300, 3)}, (2, 1, 1), (256, 1, 1), "a b out N=300 xyz=3"),
    Case(more.add, {"x": spec(9, dtype="float16"), "y": "float16"}, None, (256, 1, 1), "x y out N"),
    Case(
        more.add,
        {"x": spec(9, dtype="bfloat16"), "y": spec(9, dtype="bfloat16")},
        (1, 1, 1),
        (256, 1, 1),
        "x y out N=9",
    ),
    Case(more.activate, {"x": spec(9), "kind": more.Activation.ABS}, (1, 1, 1), (256, 1, 1), "x out N=9"),
    Case(more.swap_pairs, {"x": spec(300)}, (4, 1, 1), (128, 1, 1), "x out N=300", ("sm_90",), {"cluster": (2, 1, 1)}),
    Case(more.peak_normalize, {"x": spec(300)}, None, (256, 1, 1), "x out peak arrived N=300"),
    Case(more.scale_vectors, {"x": spec(1025)}, (2, 1, 1), (256, 1, 1), "x factor out N=1025"),
    Case(more.scale_rows, {"x": spec(5, 65), "s": spec(5)}, (2, 5, 1), (64, 1, 1), "x s out R=5 C=65"),
    Case(more.scale_rows_unfoldable, {"x": spec(5, 65), "s": spec(5)}, (2, 5, 1), (64, 1, 1), "x s out R=5 C=65"),
    Case(more.copy_bytes, {"x": spec(300, dtype="int8")}, (2, 1, 1), (256, 1, 1), "x out N=300"),
    Case(more.fill, {"out": spec(300)}, (2, 1, 1), (256, 1, 1), "value out N=300"),
    Case(more.hungry, {"x": spec(300), "threads": 1024}, (1, 1, 1), (1024, 1, 1), "x out N=300"),
]


def passed(f: Any, given: dict[str, Any], arch: str) -> str:
    """What a call passes to the kernel, in its order; integers with their values where sizes are known."""
    _, plan, content, *_ = f.inspect.__self__._described((), given, arch)
    if not plan.integers:
        return " ".join(slot.name for slot in content.slots)
    recipes = make_recipes(content.slots, plan.integers)
    return " ".join(f"{r.name}={r.value}" if r.kind == "int" else r.name for r in recipes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiles_for_every_arch(case: Case) -> None:
    """Each binding compiles for sm_80 and sm_90, and its grid, block and parameter list are as its sizes say."""
    for arch in case.arches:
        report = case.f.inspect(**case.given, arch=arch)
        assert report.cubin.code[:4] == b"\x7fELF"
        assert report.block == case.block
        assert (report.grid and report.grid.grid) == case.grid
        assert passed(case.f, case.given, arch) == case.arguments
        if report.grid is not None:
            assert report.grid.shared_memory_bytes == case.facts.get("shared", 0)
            assert report.grid.cluster == case.facts.get("cluster")


def test_every_binding_has_a_case() -> None:
    """No binding of the folder is left out."""
    assert {case.f for case in CASES} == {*first.FIFTEEN, *more.MORE, more.fill, more.hungry}
    assert len(first.FIFTEEN) == 15


@pytest.mark.parametrize("arch", ARCHES)
def test_no_sizes_are_needed(arch: str) -> None:
    """Where dtypes are fixed and no axis is static, a kernel compiles without arguments; the grid is left open."""
    for f in (first.saxpy, first.total, first.batched_matmul, first.row_max, first.linear, first.matmul, more.square):
        report = f.inspect(arch=arch)
        assert report.grid is None and report.cubin.code


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_family_compiles_for_each_dtype(dtype: str) -> None:
    """`Float` takes each floating dtype that CUDA has, and the template includes the header that it needs."""
    assert more.add.compile(x=dtype, y=dtype, arch="sm_90").entry == "add"


def test_binding_survives_as_a_function() -> None:
    """Name, doc and signature are the function's own, with string annotations and without; pickling is by reference."""
    for f in (first.saxpy, more.negate):
        assert pickle.loads(pickle.dumps(f)) is f
        assert f.__doc__ and f.__module__.startswith("tests.bindings")
    assert list(inspect.signature(first.linear).parameters) == ["x", "w", "bias", "tile"]
    assert inspect.signature(more.negate).parameters["threads"].default == 128


# keys -----------------------------------------------------------------------------------------------------------------


def key(f: Any, **given: Any) -> str:
    """The content key of a call."""
    return str(f.inspect(**given, arch="sm_90").key)


SAME = {
    "sizes": lambda: [key(first.saxpy, x=spec(n), y=spec(n)) for n in (0, 10, 10**6)],
    "no sizes": lambda: [key(first.total), key(first.total, x=spec(10))],
    "scalars": lambda: [key(first.scale, x=spec(10), factor=factor) for factor in (1.0, 2.0)],
    "batch axes": lambda: [key(first.batched_matmul, a=spec(*s, 2, 3), b=spec(*s, 3, 4)) for s in ((), (5,), (5, 6))],
    "default": lambda: [key(first.transpose), key(first.transpose, tile=32, rows=8)],
    "strides in args=": lambda: [
        key(first.sgemm, a=spec(4, 4, strides=(n, 1)), b=spec(4, 4)) for n in (4, 5, 8)
    ],
    "alignments that no fact reads": lambda: [key(more.scale_vectors, x=spec(8, alignment=n)) for n in (4, 8)],
    "enum by name or member": lambda: [key(more.activate), key(more.activate, kind=more.Activation.RELU)],
    "dtype of its own": lambda: [key(first.cast), key(first.cast, out_dtype=np.str_("float16"))],
    "sizes of axes that are not static": lambda: [key(more.project, x=spec(r, 8), w=spec(8)) for r in (1, 999)],
}  # fmt: skip

DIFFERENT = {
    "parameters": lambda: [key(first.softmax, threads=n) for n in (32, 64, 256)],
    "name expressions": lambda: [key(first.matmul, tile=n) for n in (8, 16, 32)],
    "optional arrays": lambda: [key(first.linear, x=spec(2, 3), w=spec(3, 4), bias=b) for b in (None, spec(4))],
    "dtypes": lambda: [key(more.negate, x=d) for d in ("float32", "float64")],
    "output dtypes": lambda: [key(first.cast, out_dtype=d) for d in ("float16", "float32", "float64")],
    "orders": lambda: [key(first.transpose, a=spec(4, 8, strides=s)) for s in ((8, 1), (1, 4))],
    "alignments": lambda: [key(more.scale_vectors, x=spec(8, alignment=n)) for n in (8, 16)],
    "static sizes": lambda: [key(more.project, x=spec(5, d), w=spec(d)) for d in (0, 8, 9)],
    "index widths": lambda: [key(more.copy_bytes, x=spec(n, dtype="int8")) for n in (9, 2**31)],
    "folding": lambda: [key(more.scale_rows, x=spec(r, 9), s=spec(r)) for r in (65535, 65536)],
    "enum members": lambda: [key(more.activate, kind=k) for k in more.Activation],
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_equal_renders_share_a_key(what: str) -> None:
    """What the text does not show is not in the key."""
    assert len(set(SAME[what]())) == 1


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_renders_have_different_keys(what: str) -> None:
    """What the text shows, or the kernel's name says, is in the key."""
    keys = DIFFERENT[what]()
    assert len(set(keys)) == len(keys)


def test_arches_have_different_keys() -> None:
    """A cubin is for one architecture."""
    assert first.saxpy.inspect(arch="sm_80").key != first.saxpy.inspect(arch="sm_90").key


# what the sizes decide ------------------------------------------------------------------------------------------------


def test_long_arrays_get_64_bit_indices() -> None:
    """An array near 2 GiB makes `index_t` and the sizes 64 bits wide, a smaller one leaves them at 32."""
    small = more.copy_bytes.inspect(x=spec(2**30, dtype="int8"), arch="sm_90").source
    large = more.copy_bytes.inspect(x=spec(2**31, dtype="int8"), arch="sm_90").source
    assert "int N)" in small and "long long" not in small
    assert "long long N)" in large and "const long long i = (long long)blockIdx.x" in large


def test_many_rows_are_folded() -> None:
    """More than 65535 rows are counted on x where the template asks for its tile only, and refused with blockIdx."""
    given = {"x": spec(65536, 65), "s": spec(65536)}
    grid = more.scale_rows.inspect(**given, arch="sm_90").grid
    assert grid.grid == (2 * 65536, 1, 1) and grid.folded
    with pytest.raises(LaunchError) as caught:
        more.scale_rows_unfoldable.inspect(**given, arch="sm_90")
    text = str(caught.value)
    assert "R = 65536 needs 65536 blocks in y, the device allows 65535" in text
    assert "{{ R.tile_index }} instead of blockIdx" in text


def test_hungry_kernel_needs_more_registers_than_the_block_allows() -> None:
    """The kernel that the GPU test launches too large really needs more than 64 registers a thread."""
    assert more.hungry.inspect(arch="sm_90").cubin.resources.registers > 64


def test_vectors_are_used_where_they_may_be() -> None:
    """float4 is in the text for arrays at multiples of 16 bytes only."""
    assert "float4" in more.scale_vectors.inspect(x=spec(8), arch="sm_90").source
    assert "float4" not in more.scale_vectors.inspect(x=spec(8, alignment=4), arch="sm_90").source


# references -----------------------------------------------------------------------------------------------------------

f = np.float32  # as in f([1, 2])
REFERENCES = [
    (first.saxpy, (2.0, f([1, 2]), f([3, 4])), {}, [5, 8]),
    (first.softmax, (f([[0, 0], [0, np.log(3)]]),), {}, [[0.5, 0.5], [0.25, 0.75]]),
    (first.total, (f([1, 2, 4]),), {}, 7),
    (first.total, (f([]),), {}, 0),
    (first.transpose, (f([[1, 2, 3]]),), {}, [[1], [2], [3]]),
    (first.histogram, (np.int32([0, 1, 1, 5, -1]),), {"bins": 3}, [1, 2, 0]),
    (first.batched_matmul, (f([[[1, 2]], [[3, 4]]]), f([[[1], [1]], [[1], [2]]])), {}, [[[3]], [[11]]]),
    (first.stencil, (f([[5, 0], [0, 10]]),), {}, [[1, 3], [3, 2]]),
    (first.convolve, (f([1, 2, 3]), f([1, 10])), {}, [12, 23]),
    (first.convolve, (f([1, 2]), f([])), {}, [0, 0, 0]),
    (first.sgemm, (2.0, f([[1, 2]]), f([[3], [4]])), {}, [[22]]),
    (first.cumsum, (f([[1, 2, 3], [1, 1, 1]]),), {}, [[1, 3, 6], [1, 2, 3]]),
    (first.cast, (f([1.5]),), {"out_dtype": "float64"}, [1.5]),
    (first.linear, (f([[1, 2]]), f([[1], [1]])), {}, [[3]]),
    (first.linear, (f([[1, 2]]), f([[1], [1]]), f([10])), {}, [[13]]),
    (first.matmul, (f([[1, 2]]), f([[3], [4]])), {}, [[11]]),
    (more.project, (f([[1, 2]]), f([3, 4])), {}, [11]),
    (more.negate, (f([1, -2]),), {}, [-1, 2]),
    (more.square, (f([1, -2]),), {}, [1, 4]),
    (more.total_ordered, (f([1, 2]),), {}, 3),
    (more.cross, (f([[1, 0, 0]]), f([[0, 1, 0]])), {}, [[0, 0, 1]]),
    (more.add, (f([1]), f([2])), {}, [3]),
    (more.activate, (f([-1, 2]),), {"kind": more.Activation.RELU}, [0, 2]),
    (more.activate, (f([-1, 2]),), {"kind": more.Activation.ABS}, [1, 2]),
    (more.swap_pairs, (f([1, 2, 3]),), {"tile": 2}, [3, 0, 1]),
    (more.peak_normalize, (f([1, -4]),), {}, [0.25, -1]),
    (more.scale_vectors, (f([1, 2]), 3.0), {}, [3, 6]),
    (more.scale_rows, (f([[1, 2], [3, 4]]), f([1, 10])), {}, [[1, 2], [30, 40]]),
    (more.copy_bytes, (np.int8([3, -3]),), {}, [3, -3]),
]


@pytest.mark.parametrize(("f", "arguments", "parameters", "wanted"), REFERENCES)
def test_reference_runs_on_numpy(f: Any, arguments: Any, parameters: Any, wanted: Any) -> None:
    """Each body is plain array code that says what its kernel does."""
    np.testing.assert_allclose(f.reference(*arguments, **parameters), wanted, rtol=1e-6)


def test_references_with_other_results() -> None:
    """A reference returns what the call returns: several arrays by name, or nothing but a changed array."""
    extreme = first.row_max.reference(f([[1, 5, 5], [3, 2, 1]]))
    assert extreme.value.tolist() == [5, 3] and extreme.place.tolist() == [1, 0]
    x = f([1, 2])
    assert first.scale.reference(x, 3.0) is None
    assert x.tolist() == [3, 6]


# mistakes -------------------------------------------------------------------------------------------------------------

MISTAKES = [
    (first.saxpy, {"x": spec(5), "y": spec(6)}, ShapeError, "axis N of 'y' is 6, not 5"),
    (first.saxpy, {"x": spec(5, dtype="float64")}, DtypeError, "array 'x' is float64"),
    (first.saxpy, {"x": spec(5), "z": spec(5)}, ArgumentError, "there is no argument or parameter 'z'"),
    (first.softmax, {"x": spec(5)}, ShapeError, "array 'x' has 1 axes, not 2"),
    (first.softmax, {"threads": 100}, ParameterError, "threads = 100 (int) is not allowed"),
    (first.softmax, {"threads": True}, ParameterError, "threads = True (bool) is not allowed"),
    (first.total, {"x": spec(5, strides=(2,))}, LayoutError, "array 'x' is not row-major without gaps"),
    (first.transpose, {"tile": 16, "rows": 32}, ParameterError, "the condition 'tile % rows == 0' does not hold"),
    (first.transpose, {"a": spec(4, 4, strides=(8, 1))}, LayoutError, "a template that reads a.stride(0)"),
    (first.histogram, {"x": "int64"}, DtypeError, "array 'x' is int64"),
    (first.histogram, {"bins": 2.0}, ParameterError, "bins = 2.0 (float) is not allowed"),
    (first.histogram, {"x": spec(5, dtype="int32"), "bins": -1}, ShapeError, "axis (bins) of 'out' would be -1"),
    (
        first.batched_matmul,
        {"a": spec(2, 3, 4), "b": spec(3, 4, 5)},
        ShapeError,
        "axis *batch of 'b' is (3,), not (2,)",
    ),
    (first.batched_matmul, {"a": spec(3)}, ShapeError, "array 'a' has 1 axes, not at least 2"),
    (first.stencil, {"x": spec(4, 4, strides=(1, 4))}, LayoutError, "not row-major without gaps"),
    (first.row_max, {"rows": 2}, ParameterError, "rows = 2 (int) is not allowed"),
    (first.scale, {"x": spec(9), "out": spec(9)}, ArgumentError, "the function has no output, so out= has no meaning"),
    (first.convolve, {"x": spec(3), "w": spec(5)}, ShapeError, "axis N-K+1 of 'out' would be -1"),
    (first.sgemm, {"a": spec(4, 4, strides=(4, 2))}, LayoutError, "array 'a' is not row-major without gaps"),
    (first.cumsum, {"tile": 1000}, ParameterError, "the condition 'tile % 256 == 0' does not hold"),
    (first.cumsum, {"x": spec(3, 9), "tile": 2**17}, LaunchError, "needs 525312 bytes of shared memory, the device"),
    (first.cast, {"out_dtype": "int32"}, ParameterError, "out_dtype = 'int32' (str) is not allowed"),
    (first.cast, {"out_dtype": "float23"}, ParameterError, "out_dtype='float32'"),
    (first.linear, {"x": spec(2, 3), "w": spec(3, 4), "bias": spec(5)}, ShapeError, "axis N of 'bias' is 5, not 4"),
    (first.matmul, {"tile": "16"}, ParameterError, "tile = '16' (str) is not allowed"),
    (first.matmul, {"tile": 16, "tiles": 16}, ArgumentError, "tile="),
    (more.cross, {"a": spec(5, 4)}, ShapeError, "axis xyz=3 of 'a' is 4, not 3"),
    (
        more.add,
        {"x": "float32", "y": "float64"},
        DtypeError,
        "array 'y' is float64, but 'x' is float32: one dtype a call",
    ),
    (more.add, {"x": "int32", "y": "int32"}, DtypeError, "array 'x' is int32"),
    (more.add, {}, ArgumentError, "argument 'x' is needed: its dtype is open"),
    (more.activate, {"kind": "relu"}, ParameterError, "kind = 'relu' (str) is not allowed"),
    (more.copy_bytes, {"x": spec(9, dtype="uint8")}, DtypeError, "array 'x' is uint8"),
    (more.fill, {"out": spec(9, 9)}, ShapeError, "array 'out' has 2 axes, not 1"),
]


@pytest.mark.parametrize(
    ("f", "given", "error", "message"), MISTAKES, ids=lambda v: getattr(v, "__name__", v if isinstance(v, str) else "")
)
def test_mistakes_are_told(f: Any, given: dict[str, Any], error: type[Exception], message: str) -> None:
    """A call that cannot be right is refused before anything is compiled, with the function, and what is wrong."""
    with pytest.raises(error) as caught:
        f.inspect(**given, arch="sm_90")
    text = str(caught.value)
    assert text.startswith(f"{f.__name__}: ")
    assert message in text


def test_clusters_need_their_arch() -> None:
    """A condition on `arch` refuses an older device, with its number."""
    with pytest.raises(ParameterError, match="the condition 'arch >= 90' does not hold") as caught:
        more.swap_pairs.inspect(arch="sm_80")
    assert "arch = 80" in str(caught.value)


def test_argument_order_at_odds_with_the_kernel_is_a_compile_error() -> None:
    """An `args=` that puts a pointer where the kernel has a float is refused by the compiler, not launched."""

    @specialize(
        Path(first.__file__).parent / "sgemm.cu",
        entry="sgemm_nn",
        args="M N K a alpha a.stride(0) b b.stride(0) out out.stride(0)",
        tiles={"N": 16, "M": 16},
        block=(16, 16),
    )
    def swapped(alpha: f32, a: Float32[Array, "M K"], b: Float32[Array, "K N"]) -> Float32[Array, "M N"]:
        """alpha * a @ b."""
        raise NotImplementedError

    with pytest.raises(CompileError, match="sgemm_nn") as caught:
        swapped.compile(arch="sm_90")
    assert "swapped" in str(caught.value)
