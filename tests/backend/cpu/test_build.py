"""Building: what comes out, what is refused and in which words."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from cuplate.backend.cpu.build import BuildError, build, shim_digest
from cuplate.backend.cpu.compilers import HostCompiler
from cuplate.errors import ToolchainError
from cuplate.options import Options

KERNEL = 'extern "C" __global__ void k(int* a) {\n%s\n}\n'


def refusal(compiled, body: str, **more):
    """The first finding about a kernel with this body."""
    with pytest.raises(BuildError) as caught:
        compiled(KERNEL % body, **more)
    return caught.value.findings[0]


REFUSED = {
    "inline PTX": ('asm volatile("mov.u32 %0, %laneid;" : "=r"(a[0]));', "cannot run inline PTX", "__CUDA_CPU_SIM__"),
    "a launch": ("other<<<1, 1>>>(a);", "cannot launch a kernel from a kernel", "launch twice from Python"),
    "a texture": ("a[0] = tex1Dfetch<int>(0, 1);", "no textures and surfaces", "read an array"),
    "an initializer of shared memory": ("__shared__ int x = 1; a[0] = x;", "no initializer", "__syncthreads()"),
    "thread_local": ("thread_local int x; a[0] = x;", "does not exist in CUDA", "each thread's own"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_run_is_refused_at_its_line(compiled, what):
    """In our words, first of all that the compiler says, with what to do."""
    body, problem, remedy = REFUSED[what]
    found = refusal(compiled, body)
    assert (found.file, found.line) == ("kernel.cu", 2)
    assert problem in found.message
    assert remedy in found.message


@pytest.mark.parametrize("what", REFUSED)
def test_a_branch_that_is_not_compiled_is_not_refused(compiled, what):
    """Guarded by __CUDA_CPU_SIM__, as the message advises."""
    a = np.zeros(1, np.int32)
    compiled(KERNEL % f"#ifndef __CUDA_CPU_SIM__\n{REFUSED[what][0]}\n#else\na[0] = 3;\n#endif")(1, 1, a)
    assert a[0] == 3


def test_inline_ptx_in_a_macro_is_refused_where_it_is_used(compiled):
    """Kernels hide it in macros; an unused one harms nobody."""
    macro = '#define LANE(x) asm("mov.u32 %%0, %%laneid;" : "=r"(x))\n'
    with pytest.raises(BuildError) as caught:
        compiled(macro + KERNEL % "LANE(a[0]);")
    assert "inline PTX" in caught.value.findings[0].message
    assert caught.value.findings[0].line in (1, 3)
    compiled(macro + KERNEL % "a[0] = 1;")


@pytest.mark.parametrize("header", ["cub/cub.cuh", "cuda/barrier", "stdint.h", "vector", "math.h", "assert.h"])
def test_a_header_that_is_not_there_is_said_to_be_so(compiled, header):
    """NVRTC has no system headers, so there are none here; what there is, is listed."""
    with pytest.raises(BuildError) as caught:
        compiled(f"\n#include <{header}>\n" + KERNEL % "")
    found = caught.value.findings[0]
    assert (found.file, found.line) == ("kernel.cu", 2)
    assert found.message.startswith(f"<{header}> is not available on the CPU backend, which has ")
    assert "cuda_fp16.h" in found.message


def test_an_error_has_file_line_and_column(compiled):
    """And the log has no escape sequences."""
    with pytest.raises(BuildError) as caught:
        compiled(KERNEL % "  a[0] = missing;")
    found = caught.value.findings[0]
    assert (found.file, found.line, found.column) == ("kernel.cu", 2, 10)
    assert "missing" in found.message
    assert "\x1b" not in caught.value.log


def test_an_error_in_the_users_header_is_at_that_header(compiled, tmp_path):
    """Whether the header had to be rewritten or not."""
    for number, more in enumerate(("", "__device__ int* g() { extern __shared__ int s[]; return s; }")):
        header = tmp_path / f"mine{number}.cuh"
        header.write_text(f"#pragma once\n{more}\ninline __device__ int f() {{ return missing; }}\n")
        with pytest.raises(BuildError) as caught:
            compiled(f'#include "mine{number}.cuh"\n' + KERNEL % "", directories=[tmp_path])
        found = caught.value.findings[0]
        assert (Path(found.file).name, found.line) == (header.name, 3)


def test_headers_include_each_other_in_folders(compiled, tmp_path):
    """Beside the header that asks, then in the directories, though one of them is rewritten."""
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "first.cuh").write_text('#include "deep/second.cuh"\n#include <third.cuh>\n')
    (tmp_path / "a" / "deep" / "second.cuh").write_text('#include "beside.cuh"\n')
    (tmp_path / "a" / "deep" / "beside.cuh").write_text(
        "__device__ int* two() { extern __shared__ int s[]; return s; }\n"
    )
    (tmp_path / "b" / "third.cuh").write_text("#define THREE 3\n")
    a = np.zeros(1, np.int32)
    kernel = compiled(
        '#include "first.cuh"\n' + KERNEL % "two()[0] = THREE; a[0] = two()[0];",
        directories=[tmp_path / "a", tmp_path / "b"],
    )
    kernel(1, 1, a, shared_bytes=4)
    assert a[0] == 3


DYNAMIC = "__device__ inline int* shared() { extern __shared__ int s[]; return s; }\n"


def run(compiled, includes, expression, directories):
    """One number that a kernel with these includes computes, with 16 bytes of dynamic shared memory."""
    a = np.zeros(1, np.int32)
    compiled(includes + KERNEL % f"a[0] = {expression};", directories=directories)(1, 1, a, shared_bytes=16)
    return int(a[0])


def put(folder, **headers):
    """Headers by name, in a folder; a name may have folders in it."""
    for name, text in headers.items():
        path = folder / (name.replace("__", "/") + ".cuh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("rewritten", [DYNAMIC, ""])
def test_headers_of_one_name_in_two_directories_are_two(compiled, tmp_path, rewritten):
    """Each header gets what lies beside it, as from the CUDA compiler, whether one of them is rewritten or not."""
    put(tmp_path / "a", a='#include "detail/impl.cuh"\nenum { A = VALUE };\n#undef VALUE\n' + rewritten)
    put(tmp_path / "b", b='#include "detail/impl.cuh"\nenum { B = VALUE };\n#undef VALUE\n')
    put(tmp_path / "a", detail__impl="#pragma once\n#define VALUE 1\n")
    put(tmp_path / "b", detail__impl="#pragma once\n#define VALUE 2\n")
    directories = [tmp_path / "a", tmp_path / "b"]
    assert run(compiled, '#include "a.cuh"\n#include "b.cuh"\n', "10 * A + B", directories) == 12
    assert run(compiled, "#include <b.cuh>\n#include <a.cuh>\n", "10 * A + B", directories) == 12


@pytest.mark.parametrize("spelled", ["../common/one.cuh", "{}/common/one.cuh", "inner/../../common/one.cuh"])
def test_headers_outside_of_the_directories_are_rewritten(compiled, tmp_path, spelled):
    """By "..", by absolute path, and through each other."""
    (tmp_path / "kernels" / "inner").mkdir(parents=True)
    put(tmp_path / "common", one='#pragma once\n#include "two.cuh"\n', two="#pragma once\n" + DYNAMIC)
    include = f'#include "{spelled.format(tmp_path)}"\n'
    assert run(compiled, include, "shared()[0] = 7; a[0] = shared()[0]", [tmp_path / "kernels"]) == 7


def test_a_rewritten_header_that_is_reached_twice_is_one(compiled, tmp_path):
    """`#pragma once` holds for a header that another reaches by ".." and a third by absolute path."""
    put(tmp_path / "kernels", shared="#pragma once\n" + DYNAMIC)
    put(
        tmp_path / "common",
        up='#include "../kernels/shared.cuh"\n',
        whole=f'#include "{tmp_path}/kernels/shared.cuh"\n',
    )
    includes = '#include "shared.cuh"\n#include "../common/up.cuh"\n#include "../common/whole.cuh"\n'
    assert run(compiled, includes, "shared()[0] = 7; a[0] = shared()[0]", [tmp_path / "kernels"]) == 7


def test_a_name_that_a_macro_makes_finds_its_header_beside_rewritten_ones(compiled, tmp_path):
    """Nobody foresees it; the directories are searched in their order all the same."""
    put(tmp_path / "a", shared=DYNAMIC, config="enum { CONFIG = 1 };\n")
    put(tmp_path / "b", config="enum { CONFIG = 2 };\n", b='#include "config.cuh"\n')
    includes = '#include "shared.cuh"\n#define WHICH "config.cuh"\n#include WHICH\n'
    assert run(compiled, includes, "CONFIG", [tmp_path / "a", tmp_path / "b"]) == 1
    assert run(compiled, includes, "CONFIG", [tmp_path / "b", tmp_path / "a"]) == 2


def test_include_next_goes_on_behind_a_rewritten_header(compiled, tmp_path):
    """It does not find the header that asks, by its path before the rewriting."""
    put(tmp_path / "a", x="#include_next <x.cuh>\nenum { A = 10 + B };\n" + DYNAMIC)
    put(tmp_path / "b", x="enum { B = 2 };\n")
    assert run(compiled, "#include <x.cuh>\n", "A", [tmp_path / "a", tmp_path / "b"]) == 12


def test_a_header_may_declare_dynamic_shared_memory_outside_of_functions(compiled, tmp_path):
    """The source itself need not know of it."""
    put(tmp_path, outside="#pragma once\nextern __shared__ int memory[];\n")
    assert run(compiled, '#include "outside.cuh"\n', "memory[0] = 5; a[0] = memory[0]", [tmp_path]) == 5


def test_a_name_longer_than_a_file_may_have_is_not_found(compiled, tmp_path):
    """Told as any other that is not there, and no error of the system's."""
    with pytest.raises(BuildError) as caught:
        compiled(f'#include "{"a" * 300}.h"\n' + KERNEL % "", directories=[tmp_path])
    assert caught.value.findings[0].line == 1


def test_what_nvrtc_does_not_know_is_unknown_here(compiled):
    """Names that a system header would bring."""
    for body in (
        "uint32_t x;",
        "float x = INFINITY;",
        "std::size_t x;",
        "int x = INT_MAX;",
        "try { } catch (...) { }",
        "uint x;",
    ):
        assert refusal(compiled, body).line == 2


@pytest.mark.parametrize(
    "condition",
    [
        "__CUDA_ARCH__ == 800",
        "__CUDA_CPU_SIM__ == 1",
        "defined(__CUDACC__)",
        "__CUDACC_RTC__ == 1",
        "!defined(__NVCC__)",
    ],
)
def test_macros(compiled, condition):
    """What a source can ask."""
    compiled(f"#if !({condition})\n#error no\n#endif\n" + KERNEL % "")


def test_options_reach_the_compiler(compiled):
    """Macros, standard, fast math and debug all build."""
    a = np.zeros(1, np.int32)
    options = Options(std="c++20", define={"VALUE": 7, "FLAG": None}, fast_math=True, debug=True)
    compiled(KERNEL % "#ifdef FLAG\na[0] = VALUE + (__cplusplus > 201703L);\n#endif", options=options)(1, 1, a)
    assert a[0] == 8
    for std in ("c++11", "c++14", "c++17", "c++20"):
        compiled(KERNEL % "a[0] = 1;", options=Options(std=std))


def test_a_kernel_that_is_not_there_is_an_error_that_names_it(compiled):
    """The entry is in the last lines, which are ours."""
    with pytest.raises(BuildError) as caught:
        compiled(KERNEL % "", entry="nobody")
    assert "nobody" in caught.value.findings[0].message
    assert caught.value.findings[0].file == "<entries>"


def test_the_same_source_gives_the_same_bytes(compiler: HostCompiler, runtime_of: bytes):
    """No path of a temporary directory, no time."""
    arguments = dict(name="k.cu", compiler=compiler, options=Options(), check="off", arch=800, directories=())
    images = [build(KERNEL % "a[0] = 1;", ("k",), runtime=runtime_of, **arguments) for _ in range(2)]
    assert images[0] == images[1]


def test_no_place_for_temporary_files_is_a_toolchain_error(
    compiler: HostCompiler, runtime_of: bytes, monkeypatch, tmp_path
):
    """Not an OSError from inside."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ToolchainError, match="cannot write a temporary file"):
        build(
            "",
            (),
            name="k.cu",
            compiler=compiler,
            options=Options(),
            check="off",
            arch=800,
            directories=(),
            runtime=runtime_of,
        )


def test_the_directory_of_work_does_not_matter(compiled, monkeypatch, tmp_path):
    """A source there is not found by accident."""
    (tmp_path / "near.cuh").write_text("")
    monkeypatch.chdir(tmp_path)
    found = None
    with pytest.raises(BuildError) as caught:
        compiled('#include "near.cuh"\n' + KERNEL % "")
    found = caught.value.findings[0]
    assert "near.cuh" in found.message


def test_variables_that_change_a_compiler_are_kept_from_it(compiled, monkeypatch, tmp_path):
    """CPATH would add headers that no key has seen; a locale would translate messages."""
    (tmp_path / "near.cuh").write_text("")
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    with pytest.raises(BuildError) as caught:
        compiled("#include <near.cuh>\n// other than any cached\n" + KERNEL % "")
    assert "not available" in caught.value.findings[0].message


def test_the_shim_digest_is_over_contents():
    """64 hexadecimal digits, the same when asked again."""
    assert len(shim_digest()) == 64
    assert shim_digest() == shim_digest()


@pytest.mark.parametrize("check", ["off", "full"])
def test_messages_name_the_text_not_a_temporary_file(compiled, check):
    """The name that was given, with quotes and backslashes kept."""
    with pytest.raises(BuildError) as caught:
        compiled(KERNEL % "missing;", check=check)
    assert "kernel.cpp" not in caught.value.log
    assert "/tmp" not in caught.value.findings[0].message
