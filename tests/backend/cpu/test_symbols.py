"""The reader of symbols, line tables and debug entries."""

from __future__ import annotations

import ctypes

import pytest

from cuplate.backend.cpu.build import build, runtime_object
from cuplate.backend.cpu.compilers import HostCompiler
from cuplate.backend.cpu.symbols import Image, source_name
from cuplate.options import Options

SOURCE = """\
struct Pair { float a; double b; };
template <class T, int N>
__device__ T first(T x)
{
    __shared__ T box[N][N + 1];
    box[threadIdx.x % N][0] = x;
    __syncthreads();
    return box[0][threadIdx.x % N];
}
__device__ int table[6] = {1, 2, 3, 4, 5, 6};
__global__ void kernel(float* out, int n)
{
    __shared__ float one;
    __shared__ unsigned char bytes[33];
    __shared__ Pair pairs[3];
    auto inner = [&](int i) { __shared__ short half[5]; half[i] = n; __syncthreads(); return half[i]; };
    one = n;
    bytes[n] = 1;
    pairs[n].b = out[3];
    table[n] += n;
    __syncthreads();
    out[0] = first<float, 16>(out[1]) + first<double, 8>(out[2]) + one + bytes[n + 1] + inner(n) + pairs[n + 1].b;
}
"""


def image(compiler: HostCompiler) -> bytes:
    """The source, compiled with checks."""
    return build(
        SOURCE,
        ["kernel"],
        name="case.cu",
        compiler=compiler,
        options=Options(),
        check="full",
        arch=800,
        directories=[],
        runtime=runtime_object(compiler, "full"),
    )


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZZ4kernPfE2ta", "ta"),
        ("_ZZ3redIfLi16EET_S0_E3buf", "buf"),
        ("_ZZ3redIfLj4EET_S0_E3buf", "buf"),
        ("_ZZL3inliE2ib_0", "ib"),
        ("_ZZZ1kENKUliE_clEiE3lam", "lam"),
        ("_ZN12_GLOBAL__N_13lutE", "lut"),
        ("lut", "lut"),
        ("lut.0", "lut"),
    ],
)
def test_source_name(symbol: str, name: str) -> None:
    """A mangled variable is called what the source calls it."""
    assert source_name(symbol) == name


def test_shared_variables_have_their_types(compiler: HostCompiler) -> None:
    """Shared variables of functions, templates and lambdas are found with element size and extents."""
    known = Image(image(compiler))
    found = sorted((v.name, v.size_bytes, known.layout(v)) for v in known.variables if v.shared)
    assert found == [
        ("box", 576, (8, (8, 9))),
        ("box", 1088, (4, (16, 17))),
        ("bytes", 33, (1, (33,))),
        ("half", 10, (2, (5,))),
        ("one", 4, (4, ())),
        ("pairs", 48, (16, (3,))),
    ]


def test_device_variables_are_found(compiler: HostCompiler) -> None:
    """A variable of device memory is found; the runtime's own are not."""
    known = Image(image(compiler))
    found = [(v.name, v.size_bytes, known.layout(v)) for v in known.variables if not v.shared]
    assert found == [("table", 24, (4, (6,)))]


def test_anchor_is_in_thread_local_storage(compiler: HostCompiler) -> None:
    """The checker's own thread-local variable overlaps none of the kernel's."""
    known = Image(image(compiler))
    assert all(not v.offset <= known.anchor < v.offset + v.size_bytes for v in known.variables if v.shared)


def test_lines_of_a_function(compiler: HostCompiler) -> None:
    """Each instruction of the kernel's entry has a line of the source, and those of the template's have theirs."""
    known = Image(image(compiler))
    lines = {
        line for row in known._lines if row.line for file, line in [known.line(row.address)] if file.endswith("case.cu")
    }
    assert {6, 17, 18, 19} <= lines
    assert max(lines) <= SOURCE.count("\n")


def test_other_files_are_refused() -> None:
    """What is no ELF-64 file raises ValueError."""
    with pytest.raises(ValueError, match="ELF"):
        Image(b"MZ" + bytes(100))


def test_unknown_debug_data_is_left_out(compiler: HostCompiler) -> None:
    """Debug data of another version or with unknown forms costs lines and types, not the launch."""
    data = image(compiler)
    known = Image(data)
    lines, entries, forms = (known._sections[name].offset for name in (".debug_line", ".debug_info", ".debug_abbrev"))
    newer = bytearray(data)
    newer[lines + 4] = newer[entries + 4] = 5
    broken = bytearray(data)
    broken[forms + 4 : forms + 20] = b"\x7e" * 16
    for altered in (newer, broken):
        other = Image(bytes(altered))
        assert [v.name for v in other.variables] == [v.name for v in known.variables]
        assert all(other.layout(v) is None for v in other.variables)
    assert Image(bytes(newer)).line(known._lines[5].address) == ("", 0)


def test_image_without_debug_data(compiler: HostCompiler) -> None:
    """An image without debug data has names and sizes, but no types and no lines."""
    data = build(
        SOURCE,
        ["kernel"],
        name="case.cu",
        compiler=compiler,
        options=Options(),
        check="off",
        arch=800,
        directories=[],
        runtime=runtime_object(compiler, "off"),
    )
    known = Image(data)
    assert {v.name for v in known.variables if v.shared} >= {"box", "bytes", "half", "one", "pairs"}
    assert known.line(known.writable[0]) == ("", 0)
    assert ctypes.sizeof(ctypes.c_void_p) == 8
