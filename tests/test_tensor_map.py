"""Tensor maps without a GPU: what is declared, refused, rendered and checked, and which descriptor a launch gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import (
    Array,
    ArraySpec,
    CompileError,
    DeclarationError,
    DeviceError,
    Inline,
    LaunchError,
    LayoutError,
    ParameterError,
    TensorMap,
    specialize,
)
from cuplate.tensor_map import MapLayout
from tests.doubles import Gpu, install

TYPE = "struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };"
KERNEL = f"""{TYPE}
extern "C" __global__ void {{{{ kernel }}}}({{{{ args }}}})
{{
    asm volatile("prefetch.tensormap [%0];" :: "l"(&{{{{ a }}}}));
}}
"""
BOX = TensorMap(box=("rows", 32), swizzle="128B", l2_promotion="256B")


def one(text: str = KERNEL, *, maps: Any = None) -> Any:
    """A function of an array that is a tensor map, and of its output, which is a pointer."""

    @specialize(Inline(text), grid=1, block=32, tensor_maps={"a": BOX} if maps is None else maps)
    def f(a: Float32[Array, "M K"], *, rows: int = 64) -> Float32[Array, "M K"]:
        raise NotImplementedError

    return f


def layout(function: Any, *arrays: Any, **parameters: Any) -> MapLayout:
    """The descriptor of `a` in the plan of a described call."""
    return function.inspect.__self__._described(arrays, parameters, "sm_90").plan.maps["a"]  # type: ignore[no-any-return]


# declared -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({"b": BOX}, "names 'b', which it cannot"),
        ({"a": ("rows", 32)}, "is no TensorMap"),
        ({"a": TensorMap(box=("rows",))}, "has 1 sizes, and the array has 2 axes"),
        ({"a": TensorMap(box=("row", 32))}, "'row'"),
        (["a"], "maps arrays to TensorMap"),
    ],
    ids=str,
)
def test_a_wrong_declaration_is_refused_at_decoration(maps: Any, message: str) -> None:
    """Names, kinds and ranks."""
    with pytest.raises(DeclarationError, match=message):
        one(maps=maps)


def test_a_swizzle_is_one_of_four() -> None:
    """With the nearest one."""
    with pytest.raises(DeclarationError, match="swizzle is not known") as caught:
        TensorMap(box=(8, 8), swizzle="128")
    assert caught.value.try_ == "swizzle='128B'"  # type: ignore[attr-defined]


def test_a_parameter_of_the_box_alone_is_used() -> None:
    """`rows` stands in no text: the box uses it."""
    assert layout(one(), ArraySpec((128, 64)), rows=16).box == (16, 32)


def test_a_struct_beside_a_map_is_refused() -> None:
    """A launch passes one or the other."""
    kind = np.dtype([("x", "f4")], align=True)
    with pytest.raises(DeclarationError, match="cannot take a struct"):

        @specialize(Inline(KERNEL), grid=1, tensor_maps={"a": BOX})
        def f(a: Float32[Array, "M K"], s: Annotated[np.void, kind], *, rows: int = 64) -> Float32[Array, "M K"]:
            raise NotImplementedError


SPLIT = (
    TYPE
    + """
extern "C" __global__ void {{ kernel }}({{ args }}) { planes[0] = (short)(out[0] = a[0]); }  // {{ parts.ndim }}
"""
)
PARTS = TensorMap(box=(1, "rows", 64), swizzle="128B", of="planes", shape=(2, "M", "K"))


def split(maps: Any = None, size: Any = "2 * M * cdiv(K, 8) * 8", text: str = SPLIT) -> Any:
    """A function that writes scratch by its pointer, and reads it by a descriptor."""

    @specialize(
        Inline(text),
        grid=1,
        scratch={"planes": ("int16", size)},
        tensor_maps={"parts": PARTS} if maps is None else maps,
    )
    def f(a: Float32[Array, "M K"], *, rows: int = 64) -> Float32[Array, "M K"]:
        raise NotImplementedError

    return f


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({"parts": TensorMap(box=(1,), of="plane", shape=(2,))}, "'plane', which is no scratch(.|\n)*of='planes'"),
        ({"planes": TensorMap(box=(1,), of="planes", shape=(2,))}, "name 'planes' is taken"),
        ({"a": TensorMap(box=(1,), of="planes", shape=(2,))}, "name 'a' is taken"),
        ({"int": TensorMap(box=(1,), of="planes", shape=(2,))}, "'int' is taken|no name in C"),
        ({"parts": TensorMap(box=(1, 8), of="planes")}, "has 2 sizes, and its shape has 0"),
        ({"parts": TensorMap(box=(1, 8), of="planes", shape=(2, "L"))}, "'L'"),
        ({"planes": TensorMap(box=(8,))}, "names 'planes', which it cannot"),
        ({"a": TensorMap(box=(8, 8), shape=("M", "K"))}, "has a shape, and the array has its own"),
    ],
    ids=str,
)
def test_a_wrong_declaration_of_scratch_is_refused_at_decoration(maps: Any, message: str) -> None:
    """Its name is its own, its shape is given, and it is of scratch that is declared."""
    with pytest.raises(DeclarationError, match=message):
        split(maps)


# described ------------------------------------------------------------------------------------------------------------


def test_a_descriptor_is_in_bytes_with_the_innermost_axis_last() -> None:
    """Shape and box in elements, strides in bytes."""
    assert layout(one(), ArraySpec((100, 64))) == MapLayout("float32", (100, 64), (256, 4), (64, 32), 128, 256, "a")


def test_padded_rows_need_no_fact() -> None:
    """The descriptor holds the pitch, so the kernel need not read it; without a map it would have to."""
    padded = ArraySpec((100, 60), strides=(64, 1))
    assert layout(one(), padded).strides == (256, 4)
    with pytest.raises(LayoutError, match="does not read its layout"):
        one(maps={"out": BOX}).inspect(padded, arch="sm_90")


def test_columns_are_taken_where_the_template_reads_the_order() -> None:
    """Then the axes of the descriptor are turned round; else column-major arrays are refused as everywhere."""
    columns = ArraySpec((64, 100), strides=(1, 64))
    with pytest.raises(LayoutError, match="does not read its layout"):
        layout(one(), columns)
    reads = one(KERNEL + '// {{ "columns" if a.order == "F" else "rows" }}\n', maps={"a": TensorMap((32, "rows"))})
    assert layout(reads, columns) == MapLayout("float32", (100, 64), (256, 4), (64, 32), 0, 0, "a")
    assert layout(reads, ArraySpec((64, 100)), rows=8).box == (32, 8)


def test_strides_that_no_index_uses_do_not_matter() -> None:
    """A row of its own may have any length, and a library may say anything of its stride."""
    assert layout(one(), ArraySpec((1, 64), strides=(3, 1))).strides == (256, 4)
    assert layout(one(), ArraySpec((1, 5))).strides == (32, 4)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (ArraySpec((8, 5)), "its rows are 20 bytes apart"),
        (ArraySpec((8, 64), alignment=8), "starts at an address that is no multiple of 16"),
        (ArraySpec((8, 60), strides=(0, 1)), r"its rows are 0 bytes apart(.|\n)*positive(.|\n)*contiguous copy of a"),
    ],
    ids=str,
)
def test_arrays_that_no_descriptor_holds_are_refused(array: ArraySpec, message: str) -> None:
    """With what is allowed."""
    with pytest.raises(LayoutError, match=message):
        layout(one(), array)


def test_an_array_without_elements_is_refused_where_there_is_something_to_do() -> None:
    """A descriptor has no size of 0; a call that has nothing to write needs none."""
    assert one().inspect.__self__._described((ArraySpec((8, 0)),), {}, "sm_90").plan.empty

    @specialize(Inline(KERNEL), grid=1, tensor_maps={"a": TensorMap(box=(8, 8))})
    def f(a: Float32[Array, "M K"]) -> Float32[Array, " M"]:
        raise NotImplementedError

    with pytest.raises(LayoutError, match="cannot describe an array without elements"):
        f.inspect(ArraySpec((8, 0)), arch="sm_90")


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((512, 32), "has 512 elements on an axis"),
        ((0, 32), "has 0 elements on an axis"),
        ((8, 3), "has rows of 12 bytes"),
        ((8, 64), "has rows of 256 bytes, and its swizzle is 128 bytes wide"),
    ],
    ids=str,
)
def test_a_box_beyond_a_limit_is_refused(box: Any, message: str) -> None:
    """Limits of the tensor memory accelerator."""
    with pytest.raises(ParameterError, match=message):
        layout(one(maps={"a": TensorMap(box=box, swizzle="128B")}, text=KERNEL + "// {{ rows }}"), ArraySpec((128, 64)))


def test_scratch_is_described_in_padded_rows() -> None:
    """What its shape says, and no longer than what is allocated."""
    described = split().inspect.__self__._described
    assert described((ArraySpec((100, 60)),), {}, "sm_90").plan.maps["parts"] == MapLayout(
        "int16", (2, 100, 60), (12_800, 128, 2), (1, 64, 64), 128, 0, "planes"
    )
    with pytest.raises(LaunchError, match=r"'planes' is shorter than its tensor map 'parts'(.|\n)*12800 or more"):
        split(size="2 * M * K").inspect(ArraySpec((100, 60)), arch="sm_90")
    with pytest.raises(LaunchError, match="would have the shape"):
        split({"parts": TensorMap(box=("rows", 8), of="planes", shape=("M - 200", 8))}).inspect(
            ArraySpec((100, 60)), arch="sm_90"
        )


# compiled -------------------------------------------------------------------------------------------------------------


def test_the_list_of_arguments_has_the_descriptor() -> None:
    """Passed by value and constant, so that a kernel may take its address; the compiler has checked its size."""
    report = one().inspect(ArraySpec((128, 64)), arch="sm_90")
    assert "(const __grid_constant__ CUtensorMap a, float* __restrict__ out, int M, int K)" in report.source


def test_the_list_has_scratch_twice() -> None:
    """By its pointer and by its descriptor, in this order, or in a list of one's own."""
    report = split().inspect(ArraySpec((128, 64)), arch="sm_90")
    assert "short* __restrict__ planes, const __grid_constant__ CUtensorMap parts, int M" in report.source
    own = SPLIT.replace(
        "{{ args }}", "const __grid_constant__ CUtensorMap parts, const float* a, float* out, short* planes"
    )
    assert split(text=own).compile(ArraySpec((128, 64)), arch="sm_90").entry == "f"


def test_a_list_of_ones_own_is_checked_by_the_compiler() -> None:
    """By size and alignment, whatever the type is called."""
    own = 'extern "C" __global__ void f(const __grid_constant__ Map a, float* out, int M, int K) {}\n'
    aligned = "struct alignas(64) Map { char bytes[128]; };\n"
    assert one(aligned + own + "// {{ rows }}").compile(ArraySpec((128, 64)), arch="sm_90").entry == "f"
    loose = one(aligned.replace("alignas(64) ", "") + own + "// {{ rows }}")
    with pytest.raises(CompileError, match='parameter 1 "a": a call passes a tensor map'):
        loose.compile(ArraySpec((128, 64)), arch="sm_90")
    pointer = one('extern "C" __global__ void f(const float* a, float* out, int M, int K) {}\n// {{ rows }}')
    with pytest.raises(CompileError, match="a call passes a tensor map"):
        pointer.compile(ArraySpec((128, 64)), arch="sm_90")


def test_a_type_that_is_not_defined_is_told() -> None:
    """No header is needed for it."""
    with pytest.raises(CompileError) as caught:
        one(KERNEL.removeprefix(TYPE)).compile(ArraySpec((128, 64)), arch="sm_90")
    assert "struct alignas(64) CUtensorMap" in str(caught.value)


def test_only_a_gpu_from_sm_90_on_has_them() -> None:
    """At the template's line, before anything is compiled; the CPU backend says so too."""
    with pytest.raises(DeviceError, match="only a GPU from sm_90 on") as caught:
        one().inspect(ArraySpec((128, 64)), arch="sm_80")
    assert caught.value.template == "<inline>:2"  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="the CPU backend has no tensor maps") as caught:
        one()(np.zeros((128, 64), np.float32))
    assert caught.value.template == "<inline>:2"  # type: ignore[attr-defined]


def test_a_variant_whose_maps_cannot_hold_a_call_is_passed_over() -> None:
    """Rows that are no multiple of 16 bytes, an address, an architecture."""
    fast = one()
    copy = KERNEL.replace(TYPE, "").replace(
        'asm volatile("prefetch.tensormap [%0];" :: "l"(&{{ a }}));', "// {{ rows }}"
    )

    @specialize(Inline(copy), grid=1, block=32, variants=[fast])
    def g(a: Float32[Array, "M K"], *, rows: int = 64) -> Float32[Array, "M K"]:
        raise NotImplementedError

    def runs(array: ArraySpec, arch: str = "sm_90") -> str:
        return str(g.inspect(array, arch=arch).variant)

    assert runs(ArraySpec((128, 64))) == "f"
    assert runs(ArraySpec((128, 63))) == runs(ArraySpec((128, 64), alignment=8)) == "g"
    assert runs(ArraySpec((128, 64)), "sm_80") == "g"


# launched -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU."""
    yield install(monkeypatch)


BOTH = {"a": BOX, "out": TensorMap(box=(64, 32))}


def maps_of(gpu: Gpu) -> tuple[Any, Any]:
    """The descriptors of the last launch."""
    a, out, *sizes = gpu.launches[-1].values
    assert sizes == [128, 64]
    return a, out


def test_each_launch_gets_the_descriptors_of_its_own_arrays(gpu: Gpu) -> None:
    """A plan is shared by calls with other arrays: an address that is known is looked up, another one is encoded."""
    f = one(maps=BOTH)
    x, y = gpu.array((128, 64)), gpu.array((128, 64))
    out = gpu.array((128, 64))
    for array in (x, y, x, y, x):
        f(array, out=out)
        a, written = maps_of(gpu)
        assert (a.pointer, written.pointer) == (array.data.ptr, out.data.ptr)
        assert (a.layout.box, written.layout.box) == ((64, 32), (64, 32))
        assert (a.layout.swizzle, written.layout.swizzle) == (128, 0)
    encoded = sorted(note.pointer for note in gpu.notes("map"))
    assert encoded == sorted([x.data.ptr, y.data.ptr, out.data.ptr])  # each once
    assert f.cache_info().compiles == 1
    fresh = f(x)
    assert maps_of(gpu)[1].pointer == fresh.data.ptr


def test_warm_calls_are_on_the_hot_path(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given outputs and fresh ones; what has come before is not checked from the ground up."""
    f = one(maps=BOTH)
    x, out = gpu.array((128, 64)), gpu.array((128, 64))
    f(x)
    f(x, out=out)
    monkeypatch.setattr("cuplate.walk.check_call", lambda *_, **__: pytest.fail("the cold path"))
    for _ in range(4):
        f(x, out=out)
        f(gpu.array((128, 64)))
    assert len(gpu.launches) == 10


def test_an_output_that_no_descriptor_holds_is_refused_warm_and_cold(gpu: Gpu) -> None:
    """Fresh memory is aligned, given memory may not be, and must not run by the plan of the other."""
    f = one(maps=BOTH)
    x = gpu.array((128, 64))
    loose = gpu.array(128 * 64 + 1)
    shifted = gpu.hold(np.zeros(128 * 64 + 1, np.float32)[1:].reshape(128, 64))
    assert loose.data.ptr % 16 == 0 and shifted.data.ptr % 16 == 4
    for _ in range(2):
        with pytest.raises(LayoutError, match="array 'out' is read through a tensor map"):
            f(x, out=shifted)
        f(x)
    assert len(gpu.launches) == 2


def test_scratch_is_described_where_it_was_allocated(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each call, warm as well as cold: pointer and descriptor are of the same memory."""
    f = split()
    x = gpu.array((128, 64))
    f(x)
    monkeypatch.setattr("cuplate.walk.check_call", lambda *_, **__: pytest.fail("the cold path"))
    for _ in range(3):
        f(x)
        _, _, planes, parts, *sizes = gpu.launches[-1].values
        assert parts.pointer == planes and sizes == [128, 64]
        assert parts.layout.shape == (2, 128, 64)
    assert len(gpu.launches) == 4


def test_a_descriptor_that_is_refused_is_told(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error of ours, warm as well as cold."""
    f = one(maps=BOTH)
    x = gpu.array((128, 64))
    f(x)

    def fail(self: Any, pointer: int) -> Any:
        raise LaunchError("a tensor map was refused: no")

    monkeypatch.setattr("tests.doubles.Descriptors.__missing__", fail)
    for _ in range(2):
        with pytest.raises(LaunchError, match="a tensor map was refused"):
            f(gpu.array((128, 64)))
    assert len(gpu.launches) == 1


# encoded --------------------------------------------------------------------------------------------------------------


def test_cuda_core_is_told_what_the_layout_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Address, shape, strides in bytes, box, and the enumerators; nothing keeps the array's memory alive."""
    from cuplate.backend.cuda import maps

    asked: list[Any] = []

    def view(memory: Any, stream_ptr: int) -> Any:
        asked.append((memory.__cuda_array_interface__, stream_ptr))
        return SimpleNamespace(as_tensor_map=lambda **options: asked.append(options) or len(asked))

    monkeypatch.setattr(maps, "StridedMemoryView", SimpleNamespace(from_any_interface=view))
    table = maps.Descriptors(MapLayout("bfloat16", (100, 64), (128, 2), (64, 64), 128, 256, "a"), nullcontext)
    assert table[0x7F00] == table[0x7F00] == 2
    interface, stream = asked[0]
    assert stream == -1 and interface["data"] == (0x7F00, False) and interface["typestr"] == "<u2"
    assert interface["shape"] == (100, 64) and interface["strides"] == (128, 2)
    names = {name: getattr(value, "name", value) for name, value in asked[1].items()}
    assert names == {
        "box_dim": (64, 64), "data_type": "BFLOAT16", "swizzle": "SWIZZLE_128B", "l2_promotion": "L2_256B"
    }  # fmt: skip
    for address in range(200):
        table[address * 16]
    assert len(table) <= maps.MOST


def test_what_cuda_core_refuses_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver it refuses everything."""
    from cuplate.backend.cuda import maps

    def view(memory: Any, stream_ptr: int) -> Any:
        raise ValueError("no such memory")

    monkeypatch.setattr(maps, "StridedMemoryView", SimpleNamespace(from_any_interface=view))
    with pytest.raises(LaunchError, match="a tensor map was refused: no such memory"):
        maps.Descriptors(MapLayout("float32", (8, 8), (32, 4), (8, 8), 0, 0, "a"), nullcontext)[16]
