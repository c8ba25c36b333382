"""C++ text as far as it is read: kernels, their parameters, and the checks of a hand-written list."""

from __future__ import annotations

import pytest

from cuplate.cxx import base_name, blank, defined_kernels, find_parameters


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('extern "C" __global__ void k(const float* a, int n) {}', ("a", "n")),
        ("__global__ void k() {}", ()),
        ("__global__ void k(void) {}", ()),
        ("void __global__ k(float *x) {}", ("x",)),
        ("__global__ void __launch_bounds__(256, 2) k(float* x) {}", ("x",)),
        ("__global__ __launch_bounds__(16 * 16) void\nk\n(\n  float* x,\n  int n\n)\n{}", ("x", "n")),
        ("__global__ LAUNCH(256) void k(float* x) {}", ("x",)),
        ("[[nodiscard]] __global__ [[gnu::used(1)]] void k(float* x) {}", ("x",)),
        ("__global__ void k(const float* const __restrict__ a, float *__restrict__ out) {}", ("a", "out")),
        ("__global__ void k(float a[], float b[][16], float (&c)[4], float (*d)[8], void (*f)(int)) {}", (*"abcdf",)),
        ("__global__ void k(unsigned long long n, long long m, unsigned q) {}", ("n", "m", "q")),
        ("__global__ void k(int n = f(1, 2), float s = 1 < 2, pair<int, float> p = {1, 2}) {}", ("n", "s", "p")),
        ("__global__ void k(const Tensor<float, 2, Layout<4, (3 > 2)>> t, ns::Map m) {}", ("t", "m")),
        ("__global__ void k(const __grid_constant__ CUtensorMap map, alignas(64) Args args) {}", ("map", "args")),
        ("__global__ void k([[maybe_unused]] int n, /* not m, */ int o // nor p\n) {}", ("n", "o")),
        ('#define X __global__ void k(int q)\n__global__ void k(int n) { printf("k(int z)"); }', ("n",)),
        ("template <int N, class T = float> __global__ void k(T* a, int (&b)[N]) {}", ("a", "b")),
        ("__global__ void k(float*, int);\n__global__ void k(float* a, int n) {}", ("a", "n")),
        ("#if A\n__global__ void k(ARGS) {}\n#else\n__global__ void k(float* a, int n) {}\n#endif", None),
        ("template<int T> __global__ void k(T* a, T* b) {}\ntemplate<> __global__ void k<4>(int* b, int* a) {}", None),
        ("template<int T> __global__ void k(T* a) {}\ntemplate __global__ void k<(2 > 1)>(int*);", ("a",)),
        ("__global__ void kk(int no) {}\n__global__ void k(int yes) {}", ("yes",)),
        ("__global__ void other(int a) { k(a); }\n__global__ void k(int yes) noexcept {}", ("yes",)),
        ("__global__ void k(int a) {}  // it's 1'000\n", ("a",)),
        ("__global__ void k(struct Args args, unsigned x[SIZE[0]]) {}", ("args", "x")),
    ],
)
def test_parameter_names_are_found(text: str, names: tuple[str, ...]) -> None:
    """The names of a kernel's own list, through every way that C++ has to write one."""
    assert find_parameters(text, "k") == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "__global__ void other(int a) {}",
        "__device__ void k(int a) {}",
        "#define ARGS float* a, int n\n__global__ void k(ARGS) {}",
        "__global__ void k(float*, int) {}",
        "__global__ void k(const float) {}",
        "__global__ void k(int a, int a) {}",
        "__global__ void k(int a) {}\n__global__ void k(float* b, int a) {}",
        "KERNEL(k)(int a) {}",
        "__global__ void k(int a",
        "__global__ void k(ns::T) {}",
    ],
)
def test_what_cannot_be_read_is_none(text: str) -> None:
    """A list that a macro makes, that has unnamed parameters or that is ambiguous is left to the compiler."""
    assert find_parameters(text, "k") is None


def test_a_name_expression_finds_its_template() -> None:
    """``sgemm<16>`` is the kernel called sgemm."""
    assert find_parameters("template<int T> __global__ void sgemm(float* a) {}", "ns::sgemm<(16 > 8), int>") == ("a",)


@pytest.mark.parametrize(
    ("entry", "name"),
    [("k", "k"), ("ns::k", "k"), ("sgemm<16>", "sgemm"), ("a::b<c::d>", "b"), ("(void (*)(int*))k", "k")],
)
def test_the_base_name_of_a_name_expression(entry: str, name: str) -> None:
    """Namespaces, template arguments and a cast in front are not part of the name."""
    assert base_name(entry) == name


def test_defined_kernels_are_listed_in_order() -> None:
    """Declarations, device functions, comments and strings are not kernels."""
    text = """
    __global__ void declared(int);
    // __global__ void commented() {}
    __device__ void helper() {}
    const char* s = "__global__ void quoted() {}";
    extern "C" __global__ void __launch_bounds__(32) one(float* a) { if (a) { a[0] = 1; } }
    namespace n { template<int N> __global__ void two() {} }
    template<> __global__ void two<3>() {}
    """
    assert defined_kernels(text) == ("one", "two")


def test_blanking_keeps_the_lines() -> None:
    """Line numbers survive, so that what is found in the blanked text can be pointed at."""
    text = 'a /* 1\n2 */ b // c\nR"x(\n)y" )x" "s" \'\\\'\' d'
    assert blank(text, literals=True) == 'a  \n b  \n""\n "" \'\' d'
