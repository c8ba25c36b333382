"""One call through all rooms on a recording GPU: devices, streams, captures, and what each kernel argument holds."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32, Int32

import cuplate
from cuplate import (
    ArgumentError,
    Array,
    CaptureError,
    DeviceError,
    Inline,
    LaunchError,
    cache,
    f32,
    i8,
    specialize,
    u64,
)
from cuplate.backend import owners
from tests.doubles import Gpu, install

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { %s }'


def forget() -> None:
    """Read every template again, and with that forget the GPU."""
    for function in [v for v in globals().values() if hasattr(v, "reload")]:
        function.reload()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU; the functions of this module forget it again."""
    yield install(monkeypatch)
    forget()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Two of them."""
    yield install(monkeypatch, devices=2)
    forget()


@specialize(Inline(KERNEL % ""))
def copy(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """One array in, one out."""
    raise NotImplementedError


@specialize(Inline(KERNEL % "out[0] = {{ tile }};"))
def tiled(x: Float32[Array, " N"], *, tile: int = 1) -> Float32[Array, " N"]:
    """A parameter of many values."""
    raise NotImplementedError


@specialize(
    Inline(KERNEL % ""),
    tiles={"N": 64, "M": 8},
    block=(64, 2),
    scratch={"state": ("uint64", "cdiv(N, 64) * M")},
    shared_bytes="4 * tile",
)
def everything(
    flag: bool, a: Float32[Array, "M N"], small: i8, big: u64, x: Int32[Array, " N"], *, tile: int = 100
) -> Float32[Array, "M N"]:
    """Scalars of several widths, arrays, scratch and shared memory."""
    raise NotImplementedError


def test_each_argument_is_what_the_kernel_declares_b36(gpu: Gpu) -> None:
    """B36: pointers, exact scalars, scratch, sizes: in the order of `{{ args }}`, cold and warm."""
    a, x, out = gpu.array((5, 130)), gpu.array(130, "int32"), gpu.array((5, 130))
    for _ in range(2):
        everything(True, a, -3, 2**64 - 1, x, out=out)
        launch = gpu.launches[-1]
        assert launch.values[0] == 1 and launch.values[1] == a.data.ptr
        assert struct.pack("<q", launch.values[2])[:1] == struct.pack("b", -3)
        assert struct.pack("<q", launch.values[3]) == b"\xff" * 8
        assert launch.values[4:6] == (x.data.ptr, out.data.ptr) and launch.values[-2:] == (5, 130)
        assert gpu.notes("empty")[-1].shape == (3 * 5,)
        assert launch.grid is not None
        assert (launch.grid.grid, launch.grid.block, launch.grid.shared_memory_bytes) == ((3, 1, 1), (64, 2, 1), 400)


# streams --------------------------------------------------------------------------------------------------------------


class Protocol:
    """A stream of a foreign library."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 42


@pytest.mark.parametrize(
    "stream",
    [Protocol(), SimpleNamespace(ptr=42), SimpleNamespace(cuda_stream=42)],
    ids=["protocol", "ptr", "cuda_stream"],
)
def test_a_given_stream_is_used_for_all_of_the_call_b41(gpu: Gpu, stream: Any) -> None:
    """B41: launch, zeroing, and the allocation of output and scratch; the current stream is the caller's afterwards."""
    a, x = gpu.array((5, 130)), gpu.array(130, "int32")
    for _ in range(2):
        gpu.log.clear()
        with gpu.on_stream(7):
            everything(True, a, 1, 1, x, stream=stream)
            assert gpu.stream == 7
        assert {n.stream for n in gpu.log if n.what != "load"} == {42}


def test_the_current_stream_of_the_library_is_used_b41(gpu: Gpu) -> None:
    """B41: read at every call, warm ones too."""
    x = gpu.array(4)
    for pointer in (0, 5, 6, 0, 2):
        with gpu.on_stream(pointer):
            copy(x)
        assert gpu.launches[-1].stream == pointer and gpu.notes("empty")[-1].stream == pointer


def test_the_legacy_stream_has_two_names_b41(gpu: Gpu) -> None:
    """B41: pointer 1 is the default stream for everything, torch's allocator and captures too."""
    copy(gpu.array(4), stream=SimpleNamespace(ptr=1))
    assert gpu.launches[-1].stream == 0 and gpu.notes("empty")[-1].stream == 0


def test_given_arrays_are_recorded_on_a_given_stream(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their library must not give their memory to others before that stream is done; its current stream it knows."""
    told: list[tuple[Any, Any]] = []
    x, out, stream = gpu.array(4), gpu.array(4), SimpleNamespace(ptr=42)
    copy(x)
    owner = owners.find_owner("x", x, "copy")
    monkeypatch.setattr(owner, "record", lambda *facts: told.append(facts), raising=False)
    for given in (None, out):
        told.clear()
        copy(x, out=given, stream=stream)
        assert told == [(x, stream)] + [(out, stream)] * (given is not None)
        told.clear()
        with gpu.on_stream(42):
            copy(x, out=given, stream=stream)
            copy(x, out=given)
        assert told == []


def test_a_stream_of_another_device_is_refused_b41(gpus: Gpu) -> None:
    """B41: before anything is allocated; a default stream is every device's."""
    x = gpus.array(4, device=1)
    copy(x)
    gpus.log.clear()
    with pytest.raises(DeviceError, match="the stream belongs to another device than the arrays") as caught:
        copy(x, stream=SimpleNamespace(ptr=7))
    assert caught.value.facts["given"] == "stream= of cuda 0, arrays on cuda 1" and gpus.log == []
    for pointer in (0, 1, 2, 107):
        copy(x, stream=SimpleNamespace(ptr=pointer))
        assert gpus.launches[-1].device == 1


def test_what_is_no_stream_is_refused(gpu: Gpu) -> None:
    """Named, with what is one."""
    with pytest.raises(ArgumentError, match="stream= is no stream") as caught:
        copy(gpu.array(4), stream="default")
    assert "__cuda_stream__" in str(caught.value) and caught.value.function == "copy"


# captures -------------------------------------------------------------------------------------------------------------


def test_a_cold_call_in_a_capture_is_refused_b43(gpu: Gpu) -> None:
    """B43: before anything is compiled, loaded or allocated; afterwards the function works."""
    x = gpu.array(4)
    gpu.capturing.add(9)
    before = cache.stats().compile.compiles
    with gpu.on_stream(9), pytest.raises(CaptureError) as caught:
        tiled(x, tile=4321)
    assert gpu.log == [] and cache.stats().compile.compiles == before
    assert str(caught.value).startswith("tiled: the first call of a specialization came inside a graph capture")
    assert caught.value.facts["called_as"] == "tiled(x=float32[4], tile=4321)"
    gpu.capturing.clear()
    tiled(x, tile=4321)
    assert len(gpu.launches) == 1


def test_a_warm_call_in_a_capture_keeps_its_kernel_b43(gpu: Gpu) -> None:
    """B43: a graph may run it at any time, so it is never unloaded; on the hot path and on the cold one."""
    x, out = gpu.array(4), gpu.array(4)
    for value, stream in [(1, None), (2, SimpleNamespace(ptr=9))]:
        tiled(x, tile=value, out=out)
        gpu.log.clear()
        assert not any(k.kept for k in gpu.loaded if f"tile={value}" in k.cubin.parameters_text)
        gpu.capturing.add(9)
        with gpu.on_stream(9):
            tiled(x, tile=value, out=out, stream=stream)
        gpu.capturing.clear()
        assert [n.what for n in gpu.log] == ["launch"]
        assert all(k.kept for k in gpu.loaded if f"tile={value}" in k.cubin.parameters_text)


def test_a_cold_call_on_the_default_stream_beside_a_capture_is_refused_b43(gpu: Gpu) -> None:
    """B43: where the legacy stream would wait for the captured one, anything on it breaks the capture."""
    gpu.joining.add(0)
    with pytest.raises(CaptureError, match="default stream while another stream that waits for it is captured"):
        tiled(gpu.array(4), tile=4322)
    assert gpu.log == []
    gpu.joining.clear()
    tiled(gpu.array(4), tile=4322)
    assert len(gpu.launches) == 1


@pytest.mark.parametrize("stream", [None, SimpleNamespace(ptr=9)], ids=["hot", "general"])
def test_scratch_of_a_captured_call_is_held_b43(gpu: Gpu, stream: Any) -> None:
    """B43: each replay writes it, and nobody else knows of it: in the pool it would be the next array's memory."""
    a, x, out = gpu.array((5, 130)), gpu.array(130, "int32"), gpu.array((5, 130))
    for _ in range(2):
        everything(True, a, 1, 1, x, out=out)
    assert not any(k.held for k in gpu.loaded)
    gpu.capturing.add(9)
    for captures in (1, 2):
        with gpu.on_stream(9):
            everything(True, a, 1, 1, x, out=out, stream=stream)
        (loaded,) = gpu.loaded
        assert len(loaded.held) == captures
        assert loaded.held[-1].data.ptr == gpu.launches[-1].values[6] and loaded.held[-1].shape == (15,)


def test_another_streams_capture_is_of_no_matter(gpu: Gpu) -> None:
    """A cold call on a stream that does not capture may compile."""
    gpu.capturing.add(9)
    copy(gpu.array(4))
    assert len(gpu.launches) == 1 and not any(k.kept for k in gpu.loaded)


# devices --------------------------------------------------------------------------------------------------------------


def test_a_call_runs_where_its_arrays_are_b33(gpus: Gpu) -> None:
    """B33: on device 1 while 0 is current, and back; the output is there too, and the current device is untouched."""
    here, there = gpus.array(4), gpus.array(4, device=1)
    for _ in range(3):
        for current in (0, 1):
            for x in (here, there):
                with gpus.on(current):
                    out = copy(x)
                    assert gpus.current == current
                assert out.data.device_id == x.data.device_id == gpus.launches[-1].device
    assert sorted(n.device for n in gpus.notes("load")) == [0, 1]
    assert cache.stats().disk.hits >= 0 and copy.cache_info().variants == 1


def test_mixed_devices_are_refused_with_names_b33(gpus: Gpu) -> None:
    """B33: each array with its place."""

    @specialize(Inline(KERNEL % ""))
    def add(a: Float32[Array, " N"], b: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    a, b = gpus.array(4), gpus.array(4, device=1)
    add(a, a)
    add(b, b)
    with pytest.raises(DeviceError) as caught:
        add(a, b)
    assert caught.value.facts["given"] == "a on cuda 0; b on cuda 1"


def test_out_on_another_device_is_refused_on_warm_calls_too(gpus: Gpu) -> None:
    """The plan knows where the inputs are; `out` is looked at in each call."""
    x = gpus.array(4)
    copy(x, out=gpus.array(4))
    for _ in range(2):
        copy(x, out=gpus.array(4))
        with pytest.raises(DeviceError, match="on different devices"):
            copy(x, out=gpus.array(4, device=1))
    assert len(gpus.launches) == 3


def test_an_error_leaves_the_current_device(gpus: Gpu) -> None:
    """A refused launch on another device gives the caller's back."""
    x = gpus.array(4, device=1)
    gpus.refuse = RuntimeError("no")
    with pytest.raises(LaunchError):
        copy(x)
    assert gpus.current == 0


# what only the loaded kernel knows ------------------------------------------------------------------------------------


def test_a_block_beyond_the_kernel_is_refused_b47(gpu: Gpu) -> None:
    """B47: registers may allow less than the device does: both numbers, before the launch."""
    gpu.threads_per_block = 128
    with pytest.raises(LaunchError, match="a block of 256 threads is too large for the kernel copy") as caught:
        copy(gpu.array(4))
    assert "the largest is 128" in str(caught.value) and gpu.launches == []


def test_a_size_beyond_a_32_bit_parameter_is_refused(gpu: Gpu) -> None:
    """An existing kernel that takes `int` gets no truncated size."""

    @specialize(
        Inline('extern "C" __global__ void own(const float* x, float* out, int n, long long m) {}'),
        args="x out N*1000000 N*1000000",
    )
    def own(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    own(gpu.array(2147))
    assert gpu.launches[-1].values[2:] == (2147000000, 2147000000)
    with pytest.raises(LaunchError, match=r"N\*1000000 = 2148000000 does not fit the kernel's 32-bit parameter"):
        own(gpu.array(2148))


def test_a_grid_beyond_the_device_is_refused_b45(gpu: Gpu) -> None:
    """B45: 65536 rows of blocks on y, with the numbers, before anything is compiled."""

    @specialize(Inline(KERNEL % "out[blockIdx.y] = 0;"), tiles={"N": 1, "M": 1})
    def rows(x: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
        raise NotImplementedError

    rows(gpu.array((65535, 1)))
    with pytest.raises(LaunchError, match="65536"):
        rows(gpu.array((65536, 1)))
    assert len(gpu.launches) == 1


def cooperative(grid: str) -> Any:
    """Blocks that wait for each other by a count, which begins at zero."""

    @specialize(
        Inline(KERNEL % "atomicAdd(arrived, 1u); while (atomicAdd(arrived, 0u) < gridDim.x) {} if (x) out[0] = 1;"),
        grid=grid,
        cooperative=True,
        scratch={"arrived": ("uint32", 1)},
        zeroed="arrived",
    )
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    return f


def test_a_cooperative_grid_is_launched_as_one(gpu: Gpu) -> None:
    """A block a multiprocessor, with its count zeroed before each launch; whether all fit is asked once a plan."""
    f, x = cooperative("sm_count"), gpu.array(4)
    f(x)
    f(x)
    first, second = gpu.launches
    assert first.grid is not None and first.grid.grid == (132, 1, 1) and first.grid.cooperative
    assert second.grid == first.grid and [note.grid for note in gpu.notes("resident")] == [first.grid]
    assert [note.what for note in gpu.log if note.what in ("zero", "launch")] == ["zero", "launch"] * 2
    assert [note.bytes for note in gpu.notes("zero")] == [4, 4]


def test_a_cooperative_grid_that_cannot_be_resident_is_refused(gpu: Gpu) -> None:
    """Before the launch, with what fits; the driver decides of the loaded kernel, so the next call asks it again."""
    f, x = cooperative("sm_count + N"), gpu.array(1)
    with pytest.raises(LaunchError, match="a cooperative grid of 133 blocks cannot be resident at once") as caught:
        f(x)
    assert "132 blocks of this kernel on this device" in str(caught.value) and gpu.launches == []
    gpu.blocks_a_multiprocessor = 2
    f(x)
    assert len(gpu.launches) == 1


def test_sizes_that_change_need_one_kernel_b57(gpu: Gpu) -> None:
    """B57: 100 batch sizes are one compile, one load, and no warning (warnings are errors here)."""
    before = cache.stats().compile.compiles
    for n in range(1, 101):
        tiled(gpu.array(n), tile=77)
    assert cache.stats().compile.compiles - before == 1 and len(gpu.notes("load")) == 1
    assert [n.values[-1] for n in gpu.launches] == list(range(1, 101))


def test_a_large_array_gets_64_bit_sizes(gpu: Gpu) -> None:
    """Past 2 GiB the index type changes, and with it the text."""
    a = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**29, 1), (4, 4))
    huge = gpu.array(1)
    huge._place(a, 1 << 40, 0)

    @specialize(Inline(KERNEL % "{{ index_t }} i = N; out[0] = i;"), tiles={"N": 256})
    def f(x: Float32[Array, "N M"]) -> Float32[Array, " M"]:
        raise NotImplementedError

    f(gpu.array((8, 1)))
    f(huge)
    assert len(gpu.notes("load")) == 2 and gpu.launches[-1].values[-2:] == (2**29, 1)


def test_a_kernels_own_list_is_matched_by_name(gpu: Gpu) -> None:
    """Another order than ours, arguments by their names; a list that leaves out a scalar is refused."""

    @specialize(
        Inline('extern "C" __global__ void scale(int N, float* out, float alpha, const float* x) { out[0] = alpha; }')
    )
    def scale(alpha: f32, x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    x, out = gpu.array(9), gpu.array(9)
    for _ in range(2):
        scale(0.5, x, out=out)
        bits = struct.unpack("<q", struct.pack("<f4x", 0.5))[0]
        assert gpu.launches[-1].values == (9, out.data.ptr, bits, x.data.ptr)

    @specialize(Inline('extern "C" __global__ void lost(int N, float* out, const float* x) {}'))
    def lost(alpha: f32, x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with pytest.raises(cuplate.TemplateError, match="no 'alpha'"):
        lost(0.5, x)


def test_failed_compiles_are_never_kept_b22(gpu: Gpu) -> None:
    """B22: the same error again, nothing loaded, nothing stored."""

    @specialize(Inline(KERNEL % "int x = ;"))
    def broken(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    for _ in range(2):
        with pytest.raises(cuplate.CompileError, match="expected an expression"):
            broken(gpu.array(4))
    assert gpu.log == [] and broken.cache_info().compiles == 0
    assert "nothing is stored" in broken.explain(arch="sm_90")


def test_functions_are_collected(gpu: Gpu) -> None:
    """A specialized function that nobody holds goes, with its plans; its kernel stays for the next of its kind."""

    @specialize(Inline(KERNEL % "out[0] = 3;"))
    def gone(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    gone(gpu.array(4))
    alive = weakref.ref(gone)
    del gone
    gc.collect()
    assert alive() is None and len(gpu.loaded) == 1


PICKY = """extern "C" __global__ void {{ kernel }}({% if swapped %}const float* b, const float* a, float* out, int N
{%- else %}{{ args }}{% endif %}) { out[0] = a[0] - b[N - 1]; }
extern "C" __global__ void other({{ args }}) {}
"""


@specialize(Inline(PICKY))
def picky(a: Float32[Array, " N"], b: Float32[Array, " N"], *, swapped: bool = False) -> Float32[Array, " N"]:
    """A kernel that writes its own list on one path only."""
    raise NotImplementedError


@pytest.mark.parametrize("swapped", [False, True])
def test_a_list_written_on_one_path_only_is_matched_there(gpu: Gpu, swapped: bool) -> None:
    """Where the text has a list of its own, its order counts, although the template uses {{ args }} elsewhere."""
    a, b = gpu.array(4), gpu.array(4)
    picky(a, b, swapped=swapped)
    given = [b.data.ptr, a.data.ptr] if swapped else [a.data.ptr, b.data.ptr]
    assert list(gpu.launches[-1].values[:2]) == given


def test_an_edited_header_gets_a_key_of_its_own_after_a_clear(gpu: Gpu, tmp_path: Any) -> None:
    """B02: what is compiled with a new header is never kept under the key of the old one."""
    header = tmp_path / "v.h"
    text = '#include "v.h"\n' + KERNEL % "out[0] = V + x[N - 1];"

    def bind() -> Any:
        @specialize(Inline(text), options={"include": tmp_path})
        def valued(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            raise NotImplementedError

        return valued

    def loaded() -> set[bytes]:
        return {entry.value.cubin.code for entry in cache.memory_tier()}

    x = gpu.array(4)
    header.write_text("#define V 1\n")
    first = bind()
    first(x)
    (one,) = loaded()
    header.write_text("#define V 2\n")
    cache.clear()
    first(x)
    (two,) = loaded()
    header.write_text("#define V 1\n")
    bind()(x)
    assert one != two
    assert loaded() == {one, two}


FOLDING = """extern "C" __global__ void {{ kernel }}({{ args }})
{ int n = {{ N.tile_index }} * 32 + threadIdx.x, m = %s; if (n < N && m < M) out[m * N + n] = x[m * N + n]; }
"""


@pytest.mark.parametrize(
    ("row", "define"), [('{{ "block" ~ "Idx.y" }}', {}), ("ROW", {"ROW": "blockIdx.y"}), ("{{ M.tile_index }}", None)]
)
def test_a_folded_grid_is_refused_to_a_text_that_reads_its_block(row: str, define: dict[str, str] | None) -> None:
    """B45: blockIdx that a value or a macro brings in is found, and the template that asks for its tile may fold."""

    @specialize(Inline(FOLDING % row), tiles={"N": 32, "M": 1}, block=32, options={"define": define or {}})
    def rows(x: Float32[Array, "M N"]) -> Float32[Array, "M N"]:
        raise NotImplementedError

    spec = cuplate.ArraySpec((70000, 32))
    if define is None:
        assert rows.inspect(spec, arch="sm_90").grid.folded
    else:
        with pytest.raises(LaunchError, match="beside its tile_index"):
            rows.inspect(spec, arch="sm_90")
