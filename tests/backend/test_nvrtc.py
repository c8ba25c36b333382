"""NVRTC for real, with no GPU: toolchain, headers, one compile, errors at the template's line, checks, PTX."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

nvrtc = pytest.importorskip("cuplate.backend.cuda.nvrtc")
try:
    nvrtc.toolchain()
except Exception as trouble:
    pytest.skip(f"no NVRTC here: {trouble}", allow_module_level=True)

from cuplate.errors import CompileError, KernelNotFoundError, ToolchainError  # noqa: E402
from cuplate.headers import closure  # noqa: E402
from cuplate.key import make  # noqa: E402
from cuplate.options import Options  # noqa: E402
from cuplate.specialization import Slot  # noqa: E402
from tests.doubles import rendered  # noqa: E402

EMPTY = 'extern "C" __global__ void k(int* a) { a[0] = 1; }\n'
needs_toolkit = pytest.mark.skipif(not nvrtc.toolkit_directories(), reason="no CUDA headers on this machine")


def build(text: str, entry: str = "k", arch: str = "sm_90", options: Options = Options(), **more: object):  # noqa: B008
    """One compile of an inline template without parameters."""
    return nvrtc.build(rendered(text, entry), options, arch, **more)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved sources go where the test's own files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


# --- toolchain -------------------------------------------------------------------------------------------------------


def test_the_toolchain_knows_its_full_build() -> None:
    """Major and minor are for messages; the build, with its third number, is for keys."""
    compiler = nvrtc.toolchain()
    assert re.fullmatch(r"\d+\.\d+", compiler.version)
    assert re.fullmatch(re.escape(compiler.version) + r"\.\d+", compiler.build)
    assert compiler.supports("sm_90a")
    assert not compiler.supports("sm_9")
    assert not compiler.supports("90")


def test_a_remembered_build_needs_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process with a warm memo does not compile the empty program; a damaged memo is asked anew."""

    class Memo(dict[bytes, bytes]):
        def put(self, key: bytes, payload: bytes, *, tag: str) -> None:
            self[key] = payload

    memo = Memo()
    asked = []
    ask = nvrtc._raw_ptx
    monkeypatch.setattr(nvrtc, "_raw_ptx", lambda *a: asked.append(a) or ask(*a))
    builds = []
    for _ in range(2):
        monkeypatch.setattr(nvrtc, "_toolchain", None)
        builds.append(nvrtc.toolchain(memo).build)
    assert (len(asked), len(memo)) == (1, 1)
    memo[next(iter(memo))] = b"rubbish"
    monkeypatch.setattr(nvrtc, "_toolchain", None)
    builds.append(nvrtc.toolchain(memo).build)
    assert len(asked) == 2
    assert set(builds) == {nvrtc.toolchain().build}


def test_without_a_compiler_the_message_says_what_to_install() -> None:
    """A missing NVRTC is an error before anything is keyed, and names the extras."""
    code = (
        "import sys; sys.modules['cuda.bindings'] = None\n"
        "from cuplate.backend.cuda import nvrtc\n"
        "from cuplate.errors import ToolchainError\n"
        "try: nvrtc.toolchain()\n"
        "except ToolchainError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "NVRTC" in done.stdout
    assert "pip install 'cuplate[cuda13]'" in done.stdout


@pytest.mark.parametrize("arch", ["sm_20", "sm_999", "compute_90", "90"])
def test_an_unknown_architecture_is_refused_with_the_known_ones(arch: str) -> None:
    """B34: the compiler's build, what was asked for, what it has, and the remedy."""
    with pytest.raises(ToolchainError) as caught:
        build(EMPTY, arch=arch)
    text = str(caught.value)
    assert f"NVRTC {nvrtc.toolchain().build} does not compile for {arch}" in text
    assert "sm_90" in text
    assert "pip install" in text


# --- one compile -----------------------------------------------------------------------------------------------------


def test_a_compile_gives_code_name_and_resources() -> None:
    """All that a launch and an inspection need, without a GPU."""
    cubin = build('extern "C" __global__ void k(int* a) { __shared__ int s[64]; s[threadIdx.x] = 1; a[0] = s[1]; }\n')
    assert cubin.code.startswith(b"\x7fELF")
    assert (cubin.entry, cubin.arch, cubin.function) == ("k", "sm_90", "f")
    assert cubin.resources.static_shared_bytes == 256
    assert cubin.resources.spill_store_bytes == cubin.resources.spill_load_bytes == 0
    assert 0 < (cubin.resources.registers or 0) <= 255
    assert cubin.toolchain == f"nvrtc {nvrtc.toolchain().build}"


def test_resources_are_those_of_the_entry() -> None:
    """Of two kernels in one source, the entry's own figures are kept."""
    text = 'extern "C" __global__ void big(int* a) { __shared__ int s[64]; s[a[0]] = 1; a[0] = s[1]; }\n' + EMPTY
    assert build(text).resources.static_shared_bytes == 0
    assert build(text, "big").resources.static_shared_bytes == 256


def test_spills_are_seen() -> None:
    """A register cap that spills shows in the figures, and in the code."""
    text = """extern "C" __global__ void k(const float* a, float* b) {
        float x[64];
        #pragma unroll
        for (int i = 0; i < 64; ++i) x[i] = a[i * 32 + threadIdx.x];
        #pragma unroll
        for (int j = 0; j < 64; ++j) { float s = 0;
            #pragma unroll
            for (int i = 0; i < 64; ++i) s += x[i] * x[(i + j) % 64];
            b[j * 32 + threadIdx.x] = s; } }"""
    capped = build(text, options=Options(max_registers=24))
    assert (capped.resources.registers or 0) <= 24
    assert (capped.resources.spill_store_bytes or 0) > 0


@pytest.mark.parametrize(
    ("text", "entry", "lowered"),
    [
        (EMPTY, "k", "k"),
        ("__global__ void k(int* a) { a[0] = 1; }\n", "k", "_Z1kPi"),
        ("namespace n { __global__ void k(int* a) { a[0] = 1; } }\n", "n::k", "_ZN1n1kEPi"),
        ("template<int N, class T> __global__ void k(T* a) { a[0] = N; }\n", "k<16, float>", "_Z1kILi16EfEvPT0_"),
        ("__global__ void k(int* a) {}\n__global__ void k(float* a) {}\n", "(void (*)(float*))k", "_Z1kPf"),
    ],
)
def test_every_linkage_has_a_lowered_name(text: str, entry: str, lowered: str) -> None:
    """extern "C", C++ functions, namespaces, templates and overloads are all entries."""
    assert build(text, entry).entry == lowered


def test_compiles_are_deterministic() -> None:
    """The same source gives the same bytes."""
    assert build(EMPTY).code == build(EMPTY).code


@pytest.mark.parametrize(
    ("condition", "options"),
    [
        ("__cplusplus == 202002L", Options("c++20")),
        ("__cplusplus == 201402L", Options("c++14")),
        ("A == 3", Options(define={"A": 3})),
        ("defined A && A == 1", Options(define={"A": None})),
        ("__CUDA_ARCH__ == 900", Options()),
        ("!defined A", Options()),
    ],
)
def test_options_reach_the_compiler(condition: str, options: Options) -> None:
    """Standard and macros are what the source sees."""
    build(f"#if !({condition})\n#error not reached\n#endif\n{EMPTY}", options=options)


def test_fast_math_reaches_the_compiler() -> None:
    """Fast division is another code."""
    text = 'extern "C" __global__ void k(float* a) { a[0] = a[1] / a[2]; }\n'
    assert build(text).code != build(text, options=Options(fast_math=True)).code


@pytest.mark.parametrize("options", [Options(line_info=True), Options(debug=True)])
def test_line_info_names_the_template(options: Options) -> None:
    """With line info the cubin speaks of the template's file, and errors still point at its lines."""
    source = rendered("\n" + EMPTY)
    name = source.origin(2).template  # type: ignore[union-attr]
    cubin = nvrtc.build(source, options, "sm_90")
    assert name.encode() in cubin.code
    with pytest.raises(CompileError) as caught:
        nvrtc.build(rendered("\n\n" + EMPTY.replace("= 1", "= oops")), options, "sm_90")
    assert caught.value.template.endswith(":3")  # type: ignore[attr-defined]


# --- headers ---------------------------------------------------------------------------------------------------------


def test_the_working_directory_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header in the working directory is neither included nor seen by ``__has_include``."""
    (tmp_path / "x.h").write_text("#define X 1\n")
    monkeypatch.chdir(tmp_path)
    build('#if __has_include("x.h")\n#error seen\n#endif\n' + EMPTY)
    with pytest.raises(CompileError, match=r'cannot open source file|could not open source file "x.h"'):
        build('#include "x.h"\n' + EMPTY)


SEARCHES = {
    "nested beside": ({"one/s/a.h": '#include "b.h"\n', "one/s/b.h": "1", "one/b.h": "2"}, '"s/a.h"'),
    "angle beside": ({"one/s/a.h": "#include <b.h>\n", "one/s/b.h": "1", "one/b.h": "2"}, "<s/a.h>"),
    "quoted falls back": ({"one/s/a.h": '#include "b.h"\n', "two/b.h": "2"}, '"s/a.h"'),
    "first directory": ({"one/b.h": "1", "two/b.h": "2"}, "<b.h>"),
    "two levels beside": (
        {"one/s/a.h": "#include <s/m.h>\n", "one/s/m.h": '#include "b.h"\n', "one/s/b.h": "1"},
        '"s/a.h"',
    ),
    "up and down": ({"one/s/a.h": '#include "../b.h"\n', "one/b.h": "1", "two/b.h": "2"}, '"s/a.h"'),
}


@pytest.mark.parametrize("case", SEARCHES)
def test_the_closure_finds_the_file_that_the_compiler_finds(case: str, tmp_path: Path) -> None:
    """The search that the key believes in is NVRTC's own: the last header met defines the value in the code."""
    files, spelled = SEARCHES[case]
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.startswith("#") else f"#define X {text}0101\n")
    directories = [tmp_path / "one", tmp_path / "two"]
    text = f"#include {spelled}\n" + EMPTY.replace("= 1", "= X")
    last = closure(text, directories=directories).files[-1]
    matching = [
        name for name in files if closure(f"#include <{name}>\n", directories=[tmp_path]).files[0][1] == last[1]
    ]
    code = build(text, directories=directories).code
    assert len(matching) == 1
    for name, value in files.items():
        if not value.startswith("#"):
            same = build(EMPTY.replace("= 1", f"= {value}0101")).code == code
            assert same == (name == matching[0]), (name, matching)


@needs_toolkit
@pytest.mark.parametrize("header", ["cuda_fp16.h", "cooperative_groups.h"])
def test_toolkit_headers_are_found_and_keyed(header: str) -> None:
    """CUDA's own headers need no option; their content is in the key, and no path of this machine."""
    text = f"#include <{header}>\n{EMPTY}"
    found = nvrtc.find_headers(text, Options())
    assert found.closure.toolkit
    assert found.closure.storable
    assert build(text, directories=found.directories, bundled=found.bundled).entry == "k"
    ingredients = make(rendered(text), Options(), nvrtc.toolchain(), "sm_90", found.closure).ingredients
    assert not any(str(directory) in repr(ingredients) for directory in found.directories)


def test_no_header_no_search() -> None:
    """A source without CUDA headers gets no toolkit directory."""
    assert nvrtc.find_headers(EMPTY, Options()).directories == ()


def test_headers_can_be_left_out() -> None:
    """``bundled_headers=False`` adds nothing, and the message says what is missing and where it was looked for."""
    found = nvrtc.find_headers("#include <cuda_fp16.h>\n", Options(bundled_headers=False))
    assert (found.directories, found.bundled) == ((), False)
    with pytest.raises(CompileError, match=r"pip install .*searched: no directory"):
        build("#include <cuda_fp16.h>\n" + EMPTY, directories=found.directories)


def test_bundled_headers_are_an_option_where_there_are_any(tmp_path: Path) -> None:
    """``bundled_headers=True`` compiles with NVRTC's own headers, or says why that cannot be."""
    reason = nvrtc._bundled_reason()
    if reason is not None:
        with pytest.raises(ToolchainError, match=re.escape(reason)):
            nvrtc.find_headers(EMPTY, Options(bundled_headers=True))
        return
    found = nvrtc.find_headers("#include <cuda_fp16.h>\n", Options(bundled_headers=True))
    assert (found.bundled, found.directories) == (True, ())
    program = (
        "import sys\n"
        "sys.path[:0] = sys.argv[1].split(';')\n"
        "from cuplate.backend.cuda import nvrtc; from cuplate.options import Options\n"
        "class S:\n"
        "    text = '#include <cuda_fp16.h>\\nextern \"C\" __global__ void k(__half* a) { a[0] = 1; }'\n"
        "    entry, function, template_name, parameters = 'k', 'f', 't', ()\n"
        "print(nvrtc.build(S, Options(), 'sm_90', bundled=True).entry)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", program, ";".join(sys.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "k\n"
    assert nvrtc.effective(Options(), found).canonical()[-1] == "bundled_headers"


# --- keys ------------------------------------------------------------------------------------------------------------


def test_the_program_key_holds_no_path(tmp_path: Path) -> None:
    """Directories and bundled headers do not change ``cuda.core``'s part of the key; text and options do."""
    source = rendered(EMPTY)
    base = nvrtc.program_key_bytes(source, Options(), "sm_90", b"d")
    assert len(base) == 32
    for same in (Options(include=tmp_path), Options(bundled_headers=True)):
        assert nvrtc.program_key_bytes(source, same, "sm_90", b"d") == base
    for other in (
        nvrtc.program_key_bytes(source, Options("c++20"), "sm_90", b"d"),
        nvrtc.program_key_bytes(source, Options(), "sm_90a", b"d"),
        nvrtc.program_key_bytes(source, Options(), "sm_90", b"e"),
        nvrtc.program_key_bytes(rendered(EMPTY + " "), Options(), "sm_90", b"d"),
    ):
        assert other != base


# --- what is refused -------------------------------------------------------------------------------------------------


def test_an_error_in_a_conditional_of_a_macro_points_at_its_line() -> None:
    """B51: through a loop, a conditional and a macro, to the template's line."""
    text = """\
{% macro store(name) %}
    {% if deep %}
    a[0] = {{ name }};
    {% endif %}
{% endmacro %}
{% for i in range(4) %}
__device__ int v{{ i }};
{% endfor %}
extern "C" __global__ void k(int* a)
{
{{ store("oops") }}
}
"""
    with pytest.raises(CompileError) as caught:
        nvrtc.build(rendered(text, deep=True), Options(), "sm_90", key="ab" * 32)
    error = caught.value
    assert error.summary.endswith('identifier "oops" is undefined')
    assert error.template.endswith(":3")  # type: ignore[attr-defined]
    assert "deep=True" in str(error)
    assert error.key == "ab" * 32  # type: ignore[attr-defined]
    assert error.options == ("std=c++17",)  # type: ignore[attr-defined]
    assert 'identifier "oops" is undefined' in error.log  # type: ignore[attr-defined]
    assert error.__cause__ is None and error.__suppress_context__  # it would say the same in the compiler's names


def test_a_refused_program_is_taken_apart_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """The error that a user keeps does not keep the compiler's program, whose late end would write to stderr."""
    with pytest.raises(CompileError):
        build(EMPTY.replace("= 1", "= oops"))
    gc.collect()
    assert capfd.readouterr().err == ""


def test_a_missing_include_for_half_is_offered() -> None:
    """The summary names the type, although the compiler complains of three other things first."""
    with pytest.raises(CompileError, match='identifier "__half" is undefined') as caught:
        build('extern "C" __global__ void k(__half* a) {}\n')
    assert caught.value.facts["try_"] == "#include <cuda_fp16.h>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__global__ void one() {}\n__global__ void two() {}\n", "found: one, two"),
        ("\n", "no __global__ function at all"),
        ("__device__ int k(int a) { return a; }\n", "k is not a __global__ function"),
        ("template<int N> __global__ void k() {}\n", 'entry="k<...>"'),
        ('extern "C" __global__ void k();\n', "no __global__ function at all"),
    ],
)
@pytest.mark.parametrize("checks", ["", nvrtc.parameter_checks("k", ())])
def test_a_kernel_that_is_not_there(text: str, message: str, checks: str) -> None:
    """B51: the message lists the kernels that the render defines, with and without checks appended."""
    with pytest.raises(KernelNotFoundError, match=re.escape(message)):
        build(text, checks=checks)


def test_too_much_shared_memory_is_said_in_bytes() -> None:
    """What the assembler refuses is an error of the kernel, with the figures."""
    with pytest.raises(CompileError, match="800000 bytes are declared, 49152 are allowed"):
        build('extern "C" __global__ void k(int* a) { __shared__ int s[200000]; s[a[0]] = 1; a[0] = s[3]; }\n')


# --- the kernel's own parameter list ---------------------------------------------------------------------------------

SLOTS = (
    Slot("a", "array", "const float* __restrict__ a", ("const float*",)),
    Slot("out", "array", "float* __restrict__ out", ("float*",)),
    Slot("n", "axis", "int n", ("int", "unsigned int", "long long")),
    Slot("alpha", "scalar", "double alpha", ("double",)),
)
BODY = "{ out[0] = a[0] * n * alpha; }\n"
RIGHT = {
    "extern C": ('extern "C" __global__ void k(const float* a, float* out, int n, double alpha) ' + BODY, "k"),
    "qualified": (
        'extern "C" __global__ void k(const float* const __restrict__ a, float* __restrict__ out, const long long n, '
        "const double alpha) " + BODY,
        "k",
    ),
    "typedef": (
        "using F = float; typedef double D;\n__global__ void k(F const* a, F* out, unsigned n, D alpha) " + BODY,
        "k",
    ),
    "macro list": (
        "#define ARGS const float* a, float* out, int n, double alpha\n__global__ void k(ARGS) " + BODY,
        "k",
    ),
    "template": ("template<class T> __global__ void k(const T* a, T* out, int n, double alpha) " + BODY, "k<float>"),
    "overload": (
        "__global__ void k(int) {}\n__global__ void k(const float* a, float* out, int n, double alpha) " + BODY,
        "(void (*)(const float*, float*, int, double))k",
    ),
    "namespace": (
        "namespace n { __global__ void k(const float* a, float* out, int n, double alpha) " + BODY + "}\n",
        "n::k",
    ),
}


@pytest.mark.parametrize("std", ["c++11", "c++17", "c++20"])
@pytest.mark.parametrize("case", RIGHT)
def test_the_checks_change_no_byte(case: str, std: str) -> None:
    """A right parameter list, however it is spelled, gives the very cubin that it gives unchecked."""
    text, entry = RIGHT[case]
    checked = build(text, entry, options=Options(std), checks=nvrtc.parameter_checks(entry, SLOTS))
    assert checked.code == build(text, entry, options=Options(std)).code


WRONG = {
    "too few": ("const float* a, float* out, int n", ["a call passes 4 parameters: a, out, n, alpha"]),
    "too many": ("const float* a, float* out, int n, double alpha, int m", ["a call passes 4 parameters"]),
    "none": ("", ["a call passes 4 parameters"]),
    "swapped": (
        "float* out, const float* a, int n, double alpha",
        ['parameter 1 "a": a call passes const float*', 'parameter 2 "out": a call passes float*'],
    ),
    "float for double": (
        "const float* a, float* out, int n, float alpha",
        ['parameter 4 "alpha": a call passes double'],
    ),
    "short": ("const float* a, float* out, short n, double alpha", ['parameter 3 "n": a call passes int']),
    "by macro": ("const REAL* a, float* out, int n, double alpha", ['parameter 1 "a": a call passes const float*']),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_checks_name_what_differs(case: str) -> None:
    """Only what is wrong is named, by position and by the name in the signature, at the kernel's line."""
    parameters, messages = WRONG[case]
    text = f'#define REAL double\nextern "C" __global__ void k({parameters}) {{}}\n'
    with pytest.raises(CompileError) as caught:
        build(text, checks=nvrtc.parameter_checks("k", SLOTS))
    listed = caught.value.facts["given"] or caught.value.summary.partition("match the call: ")[2]
    said = listed.splitlines()
    assert len(said) == len(messages)
    assert all(one.startswith(two) for one, two in zip(said, messages, strict=True))
    assert caught.value.template.endswith(":2")  # type: ignore[attr-defined]


# --- looking inside --------------------------------------------------------------------------------------------------


def test_ptx_needs_no_driver() -> None:
    """PTX comes for the architecture that was asked for."""
    text = nvrtc.ptx(rendered(EMPTY), Options(), "sm_90a")
    assert ".target sm_90a" in text
    assert ".visible .entry k(" in text


def test_ptx_of_a_template_kernel() -> None:
    """A name expression instantiates here too, and an error here is an error at the template's line."""
    source = rendered("template<int N> __global__ void k(int* a) { a[0] = N; }\n", "k<7>")
    assert ".entry _Z1kILi7EEvPi(" in nvrtc.ptx(source, Options(), "sm_90")
    with pytest.raises(CompileError, match='identifier "oops" is undefined'):
        nvrtc.ptx(rendered(EMPTY.replace("= 1", "= oops")), Options(), "sm_90")


def test_sass_where_there_is_a_tool() -> None:
    """A disassembly, or None without nvdisasm and cuobjdump."""
    text = nvrtc.sass(build(EMPTY).code)
    tool = nvrtc._find_tool("nvdisasm") or nvrtc._find_tool("cuobjdump")
    assert (text is not None) == (tool is not None)
    assert text is None or "EXIT" in text
    assert tool is None or nvrtc.sass(b"nonsense") is None


def test_no_driver_is_touched() -> None:
    """Compile, key, PTX and headers load no driver library: they run on a machine that has none."""
    code = (
        "import sys\n"
        "sys.path[:0] = sys.argv[1].split(';')\n"
        "from cuplate.backend.cuda import nvrtc; from cuplate.options import Options\n"
        "class S:\n"
        "    text = 'extern \"C\" __global__ void k(int* a) { a[0] = 1; }'\n"
        "    entry, function, template_name, parameters = 'k', 'f', 't', ()\n"
        "nvrtc.build(S, Options(), 'sm_90'); nvrtc.ptx(S, Options(), 'sm_90')\n"
        "nvrtc.program_key_bytes(S, Options(), 'sm_90')\n"
        "print('libcuda.so' in open('/proc/self/maps').read() if sys.platform == 'linux' else False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, ";".join(sys.path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_a_compiler_patch_is_another_key() -> None:
    """B31: going to another build misses, going back hits."""
    here = nvrtc.toolchain()
    keys = [
        make(rendered(EMPTY), Options(), one, "sm_90", closure(EMPTY)).digest
        for one in (here, replace(here, build=here.build + "9"), here)
    ]
    assert keys[0] == keys[2] != keys[1]


def run(program: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


BIND = """
import os, sys, threading
from jaxtyping import Float32
from cuplate import Array, Inline, specialize

@specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = x[N - 1] * {{ n }}; }'))
def scaled(x: Float32[Array, "N"], *, n: int) -> Float32[Array, "N"]:
    raise NotImplementedError
"""


def test_threads_that_all_compile_first_import_cuda_once() -> None:
    """``cuda.core`` imports itself in a circle; no thread meets it half made."""
    program = """
errors, start = [], threading.Barrier(16)

def work(n):
    start.wait()
    try:
        scaled.compile(n=n % 4, arch="sm_90")
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
print(errors)
"""
    assert run(BIND + program) == "[]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_during_a_compile_compiles() -> None:
    """NVRTC's locks are not inherited in use: a fork waits for the compiles of other threads."""
    program = """
scaled.compile(n=0, arch="sm_90")
inside = threading.Event()
from cuplate import subscribe
subscribe(lambda event: inside.set() if event.kind == "render" else None)
thread = threading.Thread(target=lambda: [scaled.compile(n=n, arch="sm_90") for n in range(1, 6)])
thread.start()
inside.wait()
child = os.fork()
if not child:
    import faulthandler
    faulthandler.dump_traceback_later(60, exit=True)
    scaled.compile(n=100, arch="sm_90")
    os._exit(0)
print(os.waitpid(child, 0)[1])
thread.join()
"""
    assert run(BIND + program) == "0"


def test_no_compile_initialises_the_driver() -> None:
    """NVRTC does so for its own cache, which no compile of ours uses: a parent that has compiled may fork."""
    program = """
from cuda.bindings import nvrtc
compile_, seen = nvrtc.nvrtcCompileProgram, []
nvrtc.nvrtcCompileProgram = lambda program, count, flags: (seen.append(flags), compile_(program, count, flags))[1]
from cuplate import cache
scaled.inspect(n=0, arch="sm_90").ptx
print(len(seen), all(b"--no-cache" in flags for flags in seen))
"""
    assert run(BIND + program) == "2 True"
