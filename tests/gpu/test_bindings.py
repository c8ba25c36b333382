"""The bindings of `tests.bindings`, launched: right on drawn shapes and on every route; mistakes refused in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32

import cuplate
from cuplate import (
    ArgumentError,
    Array,
    CuplateError,
    DeviceError,
    DtypeError,
    Inline,
    LaunchError,
    LayoutError,
    ParameterError,
    ScalarOverflowError,
    ShapeError,
    specialize,
)
from cuplate.testing import check
from tests.bindings import first, more

BINDINGS = [*first.FIFTEEN, *more.MORE]
WRITES_OUTPUTS = [f for f in BINDINGS if f is not first.scale]
CLUSTERS_SINCE = 90


def skip_without_clusters(cp: Any, f: Any) -> None:
    """Skip what an older device cannot run."""
    if f is more.swap_pairs and int(cp.cuda.Device().compute_capability) < CLUSTERS_SINCE:
        pytest.skip("thread block clusters need compute capability 9.0")


def given_out(cp: Any, f: Any) -> Callable[..., Any]:
    """`f` with ``out=`` arrays full of 77, so that an element which nobody writes is seen."""

    def launch(*values: Any, **parameters: Any) -> Any:
        result = f(*values, **parameters)
        if isinstance(result, tuple):
            out = type(result)(*(cp.full_like(array, 77) for array in result))
            again = f(*values, **parameters, out=out)
            assert all(a is b for a, b in zip(again, out, strict=True))
        else:
            out = cp.full_like(result, 77)
            again = f(*values, **parameters, out=out)
            assert again is out
        return again

    return launch


# right on drawn shapes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", BINDINGS, ids=lambda f: f.__name__)
def test_kernel_agrees_with_its_reference(cp: Any, f: Any) -> None:
    """Every binding keeps what its body says: on first calls, and again on the hot path that they opened."""
    skip_without_clusters(cp, f)
    for _ in range(2):
        assert check(f).examples == 20


@pytest.mark.parametrize("f", WRITES_OUTPUTS, ids=lambda f: f.__name__)
def test_given_output_is_written_whole(cp: Any, f: Any) -> None:
    """`out=` comes back as the result, with every element written, zeroed outputs included."""
    skip_without_clusters(cp, f)
    assert check(f, seed=1, examples=8, launch=given_out(cp, f)).examples == 8


@pytest.mark.parametrize(
    ("f", "sizes"),
    [
        (first.total, {"N": 0}),
        (first.histogram, {"N": 0}),
        (first.softmax, {"R": 0}),
        (first.softmax, {"C": 0}),
        (first.row_max, {"C": 0}),
        (first.transpose, {"M": 0}),
        (first.batched_matmul, {"K": 0}),
        (first.batched_matmul, {"batch": [(0,), (3, 0)]}),
        (first.batched_matmul, {"M": 0, "K": 0}),
        (first.sgemm, {"K": 0}),
        (first.linear, {"K": 0}),
        (first.linear, {"K": 0, "N": 1, "M": 1}),
        (first.matmul, {"K": 0}),
        (first.convolve, {"N": 9, "K": 10}),
        (first.convolve, {"N": 9, "K": 0}),
        (more.project, {"D": 0}),
        (more.total_ordered, {"N": 0}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_nothing_to_read_is_still_right(cp: Any, f: Any, sizes: dict[str, Any]) -> None:
    """Sizes of 0 give empty outputs, and full ones where only what is summed over is empty."""
    check(f, examples=4, sizes=sizes, launch=given_out(cp, f))


def test_empty_output_launches_nothing(cp: Any, launches: list[Any]) -> None:
    """A call whose outputs are all empty makes them and launches nothing; a scalar output is never empty."""
    empty = cp.empty(0, cp.float32)
    out = first.saxpy(2.0, empty, empty)
    assert (out.shape, out.dtype) == ((0,), cp.float32)
    assert not launches
    assert float(first.total(empty)) == 0
    assert [event.function for event in launches] == ["total"]


@pytest.mark.parametrize("tile", [12032, 12288, 12544, 57088], ids=lambda tile: f"{tile // 256} kB")
def test_dynamic_shared_memory_below_and_above_48_kilobytes(tile: int) -> None:
    """47, 48, 49 and 223 kB a block run, with the kilobyte that the kernel declares itself on top."""
    lengths = [0, 1, tile - 1, tile, tile + 1, 2 * tile + 5]
    check(first.cumsum, examples=12, parameters={"tile": tile}, sizes={"R": [1, 5], "C": lengths})


def test_more_rows_than_the_grid_has_in_y(cp: Any) -> None:
    """65539 rows, one block each, are folded onto x, and each block finds its row."""
    assert check(more.scale_rows, examples=1, sizes={"R": 65539, "C": 65}).examples == 1
    x, s = cp.ones((65536, 2), cp.float32), cp.arange(65536, dtype=cp.float32)
    assert bool((more.scale_rows(x, s) == s[:, None]).all())
    assert bool((more.scale_rows(x[:65535], s[:65535]) == s[:65535, None]).all())


def test_past_the_32_bit_index(cp: Any, device_memory: Any) -> None:
    """An int8 array of more than 2**31 elements is copied to its last element, and nothing else is touched."""
    n = 2**31 + 77
    places = [0, 1, 2**31 - 1, 2**31, n - 1]
    x = cp.zeros(n, cp.int8)
    for place in places:
        x[place] = 5
    out = cp.full(n, 9, cp.int8)
    for _ in range(2):
        assert more.copy_bytes(x, out=out) is out
        assert [int(out[place]) for place in places] == [5] * len(places)
        chunks = [out[start : start + 2**29] for start in range(0, n, 2**29)]
        assert sum(int(cp.count_nonzero(chunk)) for chunk in chunks) == len(places)
        out.fill(9)


def test_sum_in_a_fixed_order_has_the_same_bits(cp: Any) -> None:
    """Scratch memory is each call's own: the ordered sum has the same bits every time."""
    x = cp.asarray(np.random.default_rng(0).standard_normal(50_000), dtype=cp.float32)
    assert len({float(more.total_ordered(x)) for _ in range(20)}) == 1


def test_given_output_alone_gives_the_sizes(cp: Any) -> None:
    """A function without array arguments fills what `out=` gives, and says that it needs it."""
    for n in (1, 300, 300):
        out = cp.zeros(n, cp.float32)
        assert more.fill(2.5, out=out) is out
        assert bool((out == 2.5).all())
    with pytest.raises(ArgumentError, match="fill: there is no array to launch on"):
        more.fill(2.5)


# routes into the call -------------------------------------------------------------------------------------------------


def test_layouts_that_the_kernel_reads_are_right(cp: Any) -> None:
    """Column-major input where `order` is read, rows with gaps where the stride is passed, in and out."""
    a = cp.asarray(np.random.default_rng(1).standard_normal((37, 70)), dtype=cp.float32)
    column_major = cp.asfortranarray(a)
    assert bool((first.transpose(column_major) == a.T).all())
    wide = cp.full((37, 80), 77, cp.float32)
    wide[:, :70] = a
    b = cp.eye(70, dtype=cp.float32)
    room = cp.full((37, 90), 77, cp.float32)
    out = first.sgemm(2.0, wide[:, :70], b, out=room[:, :70])
    assert bool((out == 2 * a).all())
    assert bool((room[:, 70:] == 77).all())


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_alignment_decides_the_path(cp: Any, offset: int) -> None:
    """A slice that starts off a multiple of 16 bytes takes the scalar path and is right, an unaligned output too."""
    x = cp.arange(1003 + offset, dtype=cp.float32)[offset:]
    for out in (None, cp.empty(1003, cp.float32), cp.empty(1004, cp.float32)[1:]):
        for _ in range(2):
            assert bool((more.scale_vectors(x, 2.0, out=out) == 2 * x).all())


def delayed(cp: Any, stream: Any) -> Any:
    """Ones, written on `stream` behind milliseconds of other work; zeros to whoever does not wait."""
    work, x = cp.ones((4096, 4096), cp.float32), cp.zeros(1 << 20, cp.float32)
    cp.sin(work[:1])
    x += 0
    cp.cuda.Device().synchronize()
    with stream:
        for _ in range(100):
            cp.sin(work, out=work)
        x += 1
    return x


def test_given_stream_is_used(cp: Any) -> None:
    """`stream=` runs behind what that stream does already, though it is not the current one."""
    for _ in range(2):
        side = cp.cuda.Stream(non_blocking=True)
        x = delayed(cp, side)
        out = first.saxpy(2.0, x, x, stream=side)
        side.synchronize()
        assert bool((out == 3).all())


def test_current_stream_is_used(cp: Any) -> None:
    """Without `stream=` a call runs on CuPy's current stream, on the first call and on the hot path."""
    for _ in range(3):
        side = cp.cuda.Stream(non_blocking=True)
        x = delayed(cp, side)
        with side:
            out = first.saxpy(2.0, x, x)
            total = first.total(x)
        side.synchronize()
        assert bool((out == 3).all())
        assert float(total) == 1 << 20  # zeroed on that stream too


def test_stream_of_another_library(cp: Any, torch: Any) -> None:
    """`stream=` takes torch's stream for CuPy's arrays."""
    side = torch.cuda.Stream()
    x = delayed(cp, cp.cuda.Stream.from_external(side))
    out = first.saxpy(2.0, x, x, stream=side)
    side.synchronize()
    assert bool((out == 3).all())


@pytest.mark.parametrize("f", [first.saxpy, first.linear, first.row_max, first.scale], ids=lambda f: f.__name__)
def test_torch_tensors_are_right(torch: Any, f: Any) -> None:
    """The same bindings take torch's tensors."""
    assert torch.cuda.is_available()
    for _ in range(2):
        assert check(f, arrays="torch").examples == 20


def test_torch_in_torch_out(torch: Any) -> None:
    """Torch tensors give torch tensors on their device, from torch's allocator and on torch's current stream."""
    x = torch.ones(5, 7, device="cuda")
    w = torch.ones(7, 3, device="cuda")
    out = first.linear(x, w)
    assert isinstance(out, torch.Tensor) and out.is_cuda and out.dtype == torch.float32
    assert out.tolist() == [[7.0] * 3] * 5
    assert first.linear(x, w, out=out) is out
    extreme = first.row_max(x)
    assert isinstance(extreme, first.Extreme) and extreme.place.dtype == torch.int32
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = torch.full((1 << 20,), 2.0, device="cuda")
        out = first.saxpy(2.0, y, y)
        assert bool((out == 6).all())


def test_torch_mistakes_are_told(torch: Any) -> None:
    """Torch's own states are refused: a gradient that a kernel does not compute, a view with gaps, another device."""
    x = torch.ones(8, device="cuda")
    with pytest.raises(ArgumentError, match="tensor 'x' requires a gradient"):
        first.saxpy(2.0, x.clone().requires_grad_(), x)
    with pytest.raises(LayoutError, match="array 'x' is not row-major"):
        first.saxpy(2.0, torch.ones(16, device="cuda")[::2], x)
    with pytest.raises(DeviceError, match="different devices"):
        first.saxpy(2.0, x, x.cpu())
    with pytest.raises(DtypeError, match="array 'x' is float64"):
        first.saxpy(2.0, x.double(), x)


# refused in time ------------------------------------------------------------------------------------------------------


class Arrays:
    """What the calls of `MISTAKES` are made of."""

    def __init__(self, cp: Any) -> None:
        self.x = cp.arange(8, dtype=cp.float32)
        self.y = cp.ones(8, cp.float32)
        self.doubles = cp.ones(8, cp.float64)
        self.short = cp.ones(5, cp.float32)
        self.gaps = cp.ones(16, cp.float32)[::2]
        self.backwards = cp.ones(8, cp.float32)[::-1]
        self.host = np.ones(8, np.float32)
        self.scalar = cp.ones((), cp.float32)
        self.square = cp.ones((8, 8), cp.float32)
        self.broadcast = cp.broadcast_to(cp.ones(1, cp.float32), (8,))
        self.integers = cp.arange(8, dtype=cp.int64)
        self.tall = cp.ones((65536, 1), cp.float32)
        self.tall_factors = cp.ones(65536, cp.float32)


MISTAKES: dict[str, tuple[Callable[[Arrays], Any], type[CuplateError], str]] = {
    "dtype": (lambda a: first.saxpy(2.0, a.x, a.doubles), DtypeError, "array 'y' is float64"),
    "dtype of integers": (lambda a: first.histogram(a.integers), DtypeError, "array 'x' is int64"),
    "dtype family": (lambda a: more.add(a.x, a.doubles), DtypeError, "'x' is float32: one dtype a call"),
    "rank": (lambda a: first.saxpy(2.0, a.square, a.y), ShapeError, "array 'x' has 2 axes, not 1"),
    "rank of none": (lambda a: first.total(a.scalar), ShapeError, "array 'x' has 0 axes, not 1"),
    "size": (lambda a: first.saxpy(2.0, a.x, a.short), ShapeError, "axis N of 'y' is 5, not 8"),
    "inner size": (lambda a: first.matmul(a.square, a.square[:5]), ShapeError, "axis K of 'b' is 5, not 8"),
    "fixed size": (lambda a: more.cross(a.square, a.square), ShapeError, "axis xyz=3 of 'a' is 8, not 3"),
    "negative output": (lambda a: first.convolve(a.short[:1], a.x), ShapeError, "would be -6"),
    "gaps": (lambda a: first.saxpy(2.0, a.x, a.gaps), LayoutError, "array 'y' is not row-major without gaps"),
    "backwards": (lambda a: first.saxpy(2.0, a.backwards, a.y), LayoutError, "strides [-1]"),
    "column-major": (lambda a: first.softmax(a.square[:, :4].T), LayoutError, "array 'x' is not row-major"),
    "order read, strides not": (lambda a: first.transpose(a.square[:, :4]), LayoutError, "a.stride(0)"),
    "host array": (lambda a: first.saxpy(2.0, a.x, a.host), DeviceError, "y on cpu 0"),
    "host output": (lambda a: first.saxpy(2.0, a.x, a.y, out=a.host), DeviceError, "out on cpu 0"),
    "no array": (lambda a: first.saxpy(2.0, [1.0] * 8, a.y), ArgumentError, "argument 'x' is no array"),
    "None": (lambda a: first.saxpy(2.0, a.x, None), ArgumentError, "argument 'y' is no array"),
    "missing": (lambda a: first.saxpy(2.0, a.x), ArgumentError, "argument 'y' is missing"),
    "extra": (lambda a: first.saxpy(2.0, a.x, a.y, a.y), ArgumentError, "4 positional arguments given, 3 taken"),
    "misspelt": (lambda a: first.saxpy(2.0, a.x, a.y, uot=a.y), ArgumentError, "out="),
    "misspelt parameter": (lambda a: first.softmax(a.square, thread=32), ArgumentError, "threads="),
    "parameter": (lambda a: first.softmax(a.square, threads=33), ParameterError, "threads = 33 (int) is not allowed"),
    "parameter's type": (lambda a: first.histogram(a.x, bins=True), ParameterError, "bins = True (bool)"),
    "require": (lambda a: first.cumsum(a.square, tile=1000), ParameterError, "tile % 256 == 0"),
    "overlap with out": (lambda a: first.saxpy(2.0, a.x, a.y, out=a.x), LayoutError, "shares memory with 'x'"),
    "overlap of views": (
        lambda a: first.saxpy(2.0, a.square[0], a.square[2], out=a.square.reshape(-1)[4:12]),
        LayoutError,
        "'out' is written by the kernel and shares memory with 'x'",
    ),
    "out's dtype": (lambda a: first.saxpy(2.0, a.x, a.y, out=a.doubles), DtypeError, "array 'out' is float64"),
    "out's shape": (lambda a: first.saxpy(2.0, a.x, a.y, out=a.short), ShapeError, "out has shape (5,), not (8,)"),
    "out's layout": (lambda a: first.saxpy(2.0, a.x, a.y, out=a.gaps), LayoutError, "array 'out' is not row-major"),
    "out of a function without": (lambda a: first.scale(a.x, 2.0, out=a.y), ArgumentError, "out= has no meaning"),
    "one out for two": (lambda a: first.row_max(a.square, out=a.x), ArgumentError, "value, place"),
    "broadcast and written": (lambda a: first.scale(a.broadcast, 2.0), LayoutError, "is a broadcast view"),
    "stream": (lambda a: first.saxpy(2.0, a.x, a.y, stream="side"), ArgumentError, "stream= is no stream"),
    "scalar's kind": (lambda a: first.saxpy("2", a.x, a.y), DtypeError, "scalar argument 'alpha' is float32"),
    "bool for a number": (lambda a: first.saxpy(True, a.x, a.y), DtypeError, "True (bool) is of another kind"),
    "array for a scalar": (lambda a: first.saxpy(a.scalar, a.x, a.y), DtypeError, "scalar argument 'alpha' is float32"),
    "overflow": (lambda a: first.saxpy(1e39, a.x, a.y), ScalarOverflowError, "1e+39 does not fit float32"),
    "inexact": (lambda a: first.saxpy(2**24 + 1, a.x, a.y), ScalarOverflowError, "cannot hold exactly"),
    "shared memory": (lambda a: first.cumsum(a.square, tile=2**17), LaunchError, "bytes of shared memory, the device"),
    "registers": (
        lambda a: more.hungry(a.x, threads=1024),
        LaunchError,
        "a block of 1024 threads is too large for the kernel hungry",
    ),
    "grid": (lambda a: more.scale_rows_unfoldable(a.tall, a.tall_factors), LaunchError, "the device allows 65535"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_refused_before_the_launch(cp: Any, what: str) -> None:
    """Each mistake is a CuplateError that names the function, also after right calls, and launches nothing."""
    call, error, message = MISTAKES[what]
    arrays = Arrays(cp)
    for _ in range(2):  # so that the hot path has its plans
        first.saxpy(2.0, arrays.x, arrays.y)
        first.softmax(arrays.square)
        first.matmul(arrays.square, arrays.square)
        first.scale(arrays.y, 1.0)
    with pytest.raises(error) as caught:
        call(arrays)
    assert isinstance(caught.value, CuplateError)
    assert caught.value.function
    assert message in str(caught.value)
    launched: list[Any] = []
    with cuplate.subscribe(launched.append, "launch"), pytest.raises(error):
        call(arrays)
    assert not launched
    assert bool((arrays.x == cp.arange(8)).all())


def test_the_largest_block_of_a_hungry_kernel_runs(cp: Any) -> None:
    """What is refused at 1024 threads runs at 128, and the message gives the largest block and the registers."""
    x = cp.ones(300, cp.float32)
    assert more.hungry(x, threads=128).shape == (300,)
    with pytest.raises(LaunchError) as caught:
        more.hungry(x, threads=1024)
    error = caught.value
    assert error.kernel == "hungry"
    assert error.registers > 64
    assert 128 <= error.largest_block < 1024


def test_cooperative_grid_that_is_not_resident_is_refused(cp: Any) -> None:
    """A cooperative launch of more blocks than can be resident at once is a LaunchError, and leaves no sticky error."""

    @specialize(
        Inline("""
extern "C" __global__ void {{ kernel }}({{ args }}) { if (blockIdx.x == 0 && threadIdx.x < N) out[threadIdx.x] = 1; }
"""),
        grid="1000000",
        cooperative=True,
    )
    def everywhere(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """Ones."""
        raise NotImplementedError

    x = cp.ones(8, cp.float32)
    with pytest.raises(LaunchError) as caught:
        everywhere(x)
    assert caught.value.function == "everywhere"
    assert bool((first.saxpy(2.0, x, x) == 3).all())


def test_arrays_of_two_devices_are_refused(cp: Any) -> None:
    """Arrays on different GPUs are refused with the device of each."""
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    with cp.cuda.Device(1):
        far = cp.ones(8, cp.float32)
    near = cp.ones(8, cp.float32)
    with pytest.raises(DeviceError, match="y on cuda 1"):
        first.saxpy(2.0, near, far)
    assert bool((first.saxpy(2.0, near, near) == 3).all())
    out = first.saxpy(2.0, far, far)
    with cp.cuda.Device(1):
        assert bool((out == 3).all())


def test_check_finds_a_wrong_kernel(cp: Any) -> None:
    """`cuplate.testing.check` fails on a kernel that forgets the last element."""

    @specialize(
        Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = i + 1 < N ? x[i] + 1 : 0;
}
""")
    )
    def forgetful(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """x + 1."""
        return x + 1

    with pytest.raises(cuplate.testing.CheckError) as caught:
        check(forgetful, sizes={"N": 100})
    assert caught.value.index == (99,)
    assert caught.value.got == 0
