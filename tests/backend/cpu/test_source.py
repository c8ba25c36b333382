"""Rewriting: what changes, what does not, and that every line keeps its number."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

from cuplate.backend.cpu.source import analyse, rewrite

CHANGED = {
    "extern __shared__ float a[];": "CUPLATE_DYNAMIC_OUTSIDE(a, float);",
    "void f() { extern __shared__ float a[]; }": "void f() { CUPLATE_DYNAMIC_SHARED(a, float); }",
    "void f() { extern __shared__ __align__(16) char a[]; }": (
        "void f() { CUPLATE_DYNAMIC_ALIGNED(__align__(16), a, char); }"
    ),
    "void f() { alignas(N) extern __shared__ T a[]; }": "void f() { CUPLATE_DYNAMIC_ALIGNED(alignas(N), a, T); }",
    "void f() { extern __align__(8) __shared__ T<a, b> x[]; }": (
        "void f() { CUPLATE_DYNAMIC_ALIGNED(__align__(8), x, T<a, b>); }"
    ),
    "void f() { __shared__ extern typename Q<T>::X x[]; }": "void f() { CUPLATE_DYNAMIC_SHARED(x, typename Q<T>::X); }",
    "void f() { if (a) b(); T extern __shared__ s[]; }": "void f() { if (a) b(); CUPLATE_DYNAMIC_SHARED(s, T); }",
    "const n::A<int, 4> extern __shared__ s[];": "CUPLATE_DYNAMIC_OUTSIDE(s, const n::A<int, 4>);",
    "void f() { alignas(16) float extern __shared__ s[]; }": (
        "void f() { CUPLATE_DYNAMIC_ALIGNED(alignas(16), s, float); }"
    ),
    "void f() { extern __shared__ int x[][4]; }": "void f() { CUPLATE_DYNAMIC_SHARED(x, int[4]); }",
    "void f() { extern __shared__ T x[], y[]; }": (
        "void f() { CUPLATE_DYNAMIC_SHARED(x, T); CUPLATE_DYNAMIC_SHARED(y, T); }"
    ),
    "namespace n { extern __shared__ int x[]; }": "namespace n { CUPLATE_DYNAMIC_OUTSIDE(x, int); }",
    'extern "C" { extern __shared__ int x[]; }': 'extern "C" { CUPLATE_DYNAMIC_OUTSIDE(x, int); }',
    "inline namespace n { extern __shared__ int x[]; }": "inline namespace n { CUPLATE_DYNAMIC_OUTSIDE(x, int); }",
    "struct S { S() { extern __shared__ T x[]; } };": "struct S { S() { CUPLATE_DYNAMIC_SHARED(x, T); } };",
    "#define M extern __shared__ int x[];\n": "#define M CUPLATE_DYNAMIC_SHARED(x, int);\n",
    'void f() { asm volatile("nop"); }': 'void f() { CUPLATE_NO_PTX asm volatile("nop"); }',
    '#define M(x) __asm__("" : : "r"(x))\n': '#define M(x) CUPLATE_NO_PTX __asm__("" : : "r"(x))\n',
    "void f() { k<<<1, 2>>>(); }": "void f() { k CUPLATE_NO_LAUNCH <<<1, 2>>>(); }",
    "void f() { x = tex2D<float>(t, 1, 2); }": "void f() { x = CUPLATE_NO_TEXTURES tex2D<float>(t, 1, 2); }",
    "void f() { __shared__ int x = 3; }": "void f() { __shared__ int x CUPLATE_NO_INITIALIZER = 3; }",
    "void f() { thread_local int x; }": "void f() { CUPLATE_NO_THREAD_LOCAL thread_local int x; }",
}

KEPT = [
    "// extern __shared__ float a[];\n",
    "/* extern __shared__\n float a[]; asm */",
    'const char* s = "extern __shared__ float a[]; asm";',
    'const char* s = R"x(extern __shared__ float a[]; " asm)x";',
    "void f() { __shared__ float a[4]; a[0] = 1; }",
    "void f() { __shared__ T a; int b = 3; }",
    "extern int f(int);",
    'extern "C" __global__ void k(int* a) { a[0] = 1\'000; }',
    "struct S { int asm_; }; void f(S s) { s.asm_ = 1; }",
    "template <> bool operator<<<int>(int, S);",
    "int asmx, xasm, tex2, surface;",
    "char c = '\"'; // \" asm\n",
    "#include <cub/cub.cuh>\n",
]


@pytest.mark.parametrize("text", CHANGED)
def test_what_is_rewritten(text):
    """Each form, in and outside of functions."""
    assert rewrite(text) == CHANGED[text]


@pytest.mark.parametrize("text", KEPT)
def test_what_is_left_alone(text):
    """Comments, strings, look-alikes."""
    # the words that make the tokenizer run at all
    assert rewrite(text + "\n__shared__ int x; // asm") == text + "\n__shared__ int x; // asm"


def test_lines_keep_their_numbers():
    """A declaration over several lines leaves as many."""
    text = "void f() {\n extern\n  __shared__ // why\n   float\n a [ ] ;\n g();\n}"
    changed = rewrite(text)
    assert changed.count("\n") == text.count("\n")
    assert changed.splitlines().index(" g();") == text.splitlines().index(" g();")


@hypothesis.given(
    st.lists(
        st.sampled_from(
            [
                "extern ",
                "__shared__ ",
                "float ",
                "x",
                "[]",
                "[4]",
                ";",
                "{",
                "}",
                "(",
                ")",
                "\n",
                "// c\n",
                "/* \n */",
                '"s"',
                "'",
                '"',
                "\\\n",
                "#define M ",
                "asm",
                "<<<",
                "namespace n ",
                "=",
                ",",
                "__align__",
                "template ",
                "__launch_bounds__(1)",
                'R"(',
                ')"',
                "é",
            ]
        ),
        max_size=30,
    )
)
def test_no_text_is_too_broken(pieces):
    """Anything is rewritten without an exception, and with the same count of lines."""
    text = "".join(pieces)
    assert rewrite(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("__global__ void __launch_bounds__(256) k(int* a) {}", {"k": "256"}),
        ('extern "C" __global__ __launch_bounds__(4 * tile, 2) void k2(int a);', {"k2": "4 * tile"}),
        ("template <int N> __global__ __launch_bounds__(N) void k(int* a) {}", {}),
        ("struct S { __launch_bounds__(4) void k(); };", {}),
        ('extern "C" { __global__ void __launch_bounds__(f(1, 2)) k(int); }', {"k": "f(1, 2)"}),
    ],
)
def test_launch_bounds(text, bounds):
    """Of kernels that are no templates; the expression's first part."""
    assert analyse(text).bounds == bounds


def test_every_header_that_a_message_promises_is_there():
    """And none that says it is not: the list in the message is the list of files."""
    from pathlib import Path

    from cuplate.backend.cpu import source

    shim = Path(source.__file__).parent / "shim"
    assert all((shim / name).is_file() for name in source.SUPPORTED_HEADERS)
    standard = {f"cuda/std/{path.name}" for path in (shim / "cuda" / "std").iterdir()}
    assert standard <= source.SUPPORTED_HEADERS
