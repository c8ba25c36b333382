"""Modules: how a kernel is entered, its memory, and what it may use of the language."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from cuplate.backend.cpu.engine import ArrayArgument, BudgetExceeded, KernelFault, Module
from cuplate.errors import ToolchainError
from cuplate.options import Options


def argument(name: str, value: np.ndarray, written: bool = True, fresh: bool = False) -> ArrayArgument:
    """An array for `Module.launch`."""
    return ArrayArgument(
        name, value.ctypes.data, value.nbytes, value.itemsize, value.shape, str(value.dtype), written, fresh
    )


def test_arguments_are_described(compiled):
    """Sizes in bytes as the C++ compiler has them, and which are pointers to const."""
    text = """
    struct Pair { double a; char b; };
    extern "C" __global__ void k(const float* __restrict__ a, float* b, const int n, Pair p, bool flag,
                                 const __grid_constant__ float4 v) {
        if (threadIdx.x == 0) b[0] = a[n] + p.a + p.b + flag + v.w;
    }
    """
    kernel = compiled(text)
    assert kernel.module.argument_bytes == (8, 8, 4, 16, 1, 16)
    assert kernel.module.argument_constness == (True, False, False, False, False, False)
    b = np.zeros(1, np.float32)
    pair = np.zeros((), np.dtype([("a", "f8"), ("b", "i1")], align=True))
    pair["a"], pair["b"] = 10, 3
    kernel(
        1,
        1,
        np.arange(4, dtype=np.float32),
        b,
        np.int32(2),
        pair.tobytes(),
        np.bool_(True),
        np.arange(4, dtype=np.float32).tobytes(),
    )
    assert b[0] == 2 + 10 + 3 + 1 + 3


def test_a_wrong_count_or_size_of_arguments_is_refused(compiled):
    """Before anything runs."""
    kernel = compiled('extern "C" __global__ void k(int* a, int n) { a[n] = 1; }')
    a = np.zeros(4, np.int32)
    with pytest.raises(ValueError, match="takes 2 arguments, 1 were given"):
        kernel(1, 1, a)
    with pytest.raises(ValueError, match="argument 1 of the kernel has 4 bytes, 8 were given"):
        kernel(1, 1, a, np.int64(1))
    assert not a.any()


def test_the_grid_and_block_have_three_dimensions(compiled):
    """Every builtin in every dimension."""
    text = """
    extern "C" __global__ void k(int* out) {
        const uint3 t = threadIdx;
        const dim3 d(blockDim);
        const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        const int thread = (t.z * d.y + t.y) * d.x + t.x;
        int* mine = out + (block * d.x * d.y * d.z + thread) * 6;
        mine[0] = blockIdx.x; mine[1] = blockIdx.y; mine[2] = blockIdx.z;
        mine[3] = t.x; mine[4] = t.y; mine[5] = t.z;
    }
    """
    out = np.full((4, 3, 2, 4, 2, 5, 6), -1, np.int32)
    compiled(text)((2, 3, 4), (5, 2, 4), out, workers=2)
    for index in np.ndindex(*out.shape[:-1]):
        bz, by, bx, tz, ty, tx = index
        assert out[index].tolist() == [bx, by, bz, tx, ty, tz]


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_the_order_of_blocks_and_threads_can_be_reversed(compiled, order):
    """Bit 0 reverses the blocks, bit 1 the threads of each."""
    text = """
    extern "C" __global__ void k(int* next, int* out) {
        out[atomicAdd(next, 1)] = blockIdx.x * 4 + threadIdx.x;
    }
    """
    out = np.zeros(12, np.int32)
    compiled(text)(3, 4, np.zeros(1, np.int32), out, order=order)
    blocks = [2, 1, 0] if order & 1 else [0, 1, 2]
    threads = [3, 2, 1, 0] if order & 2 else [0, 1, 2, 3]
    assert out.tolist() == [b * 4 + t for b in blocks for t in threads]


def test_launch_bounds_are_read(compiled):
    """An expression of constants; a kernel without bounds takes 1024 threads."""
    text = """
    constexpr int tile = 8;
    extern "C" __global__ void __launch_bounds__(tile * tile, 2) k(int* a) { a[threadIdx.x] = 1; }
    """
    assert compiled(text).module.max_threads == 64
    assert compiled('extern "C" __global__ void k(int* a) {}').module.max_threads == 1024


@pytest.mark.parametrize(
    ("block", "shared", "words"), [(1025, 0, "block"), (0, 0, "block"), (32, 300_000, "300000 bytes")]
)
def test_a_launch_beyond_the_limits_is_refused(compiled, block, shared, words):
    """1024 threads, 227 KiB."""
    with pytest.raises(ValueError, match=words):
        compiled('extern "C" __global__ void k(int* a) {}')(1, block, np.zeros(1, np.int32), shared_bytes=shared)


def test_name_expressions_choose_instances_and_namespaces(compiled):
    """An entry is any C++ expression that names a kernel."""
    text = """
    namespace deep { template <typename T, int N> __global__ void scale(T* a) { a[threadIdx.x] *= N; } }
    """
    a = np.arange(4, dtype=np.float64)
    compiled(text, "deep::scale<double, 3>")(1, 4, a)
    assert a.tolist() == [0, 3, 6, 9]


def test_constants_and_device_variables(compiled):
    """A __device__ variable keeps its value between launches of one loaded module, as on a GPU."""
    text = """
    __constant__ float table[4] = {1, 2, 3, 4};
    __device__ int launches = 10;
    __device__ float scratch[4];
    extern "C" __global__ void k(float* a) {
        scratch[threadIdx.x] = table[threadIdx.x];
        __syncthreads();
        a[threadIdx.x] = scratch[3 - threadIdx.x];
        if (threadIdx.x == 0) a[0] = ++launches;
    }
    """
    kernel, a = compiled(text), np.zeros(4, np.float32)
    for count in (11, 12, 13):
        kernel(1, 4, a)
        assert a.tolist() == [count, 3, 2, 1]
    compiled(text)(1, 4, a)
    assert a[0] == 11


def test_language_features(compiled):
    """Lambdas, function pointers, templates with values, recursion, structs with methods, local arrays."""
    text = """
    struct Counter {
        int n;
        __device__ int next() { return n++; }
        __host__ __device__ Counter operator+(int d) const { return {n + d}; }
    };
    typedef int (*Binary)(int, int);
    __device__ __noinline__ int add(int a, int b) { return a + b; }
    __device__ int mul(int a, int b) { return a * b; }
    template <int N> __device__ int power(int x) { if constexpr (N == 0) return 1; else return x * power<N - 1>(x); }
    __device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    template <class F> __device__ int apply(F f, int x) { return f(x); }
    extern "C" __global__ void k(int* out, int n) {
        const Binary table[2] = {add, mul};
        int local[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) local[i] = i * n;
        Counter c{3};
        int i = 0;
        out[i++] = table[n % 2](n, 4);
        out[i++] = power<3>(n);
        out[i++] = fib(10);
        out[i++] = apply([=](int x) { return x + n; }, 5);
        out[i++] = local[n];
        out[i++] = (c + 4).next() + c.next() + c.next();
        auto [a, b] = float2{1.5f, 2.5f};
        out[i++] = (int)(a + b);
    }
    """
    out = np.zeros(7, np.int32)
    compiled(text)(1, 1, out, np.int32(3))
    assert out.tolist() == [12, 27, 55, 8, 9, 14, 4]


EXTERN = {
    "in a kernel": "extern __shared__ float part[];",
    "aligned before": "extern __shared__ __align__(16) float part[];",
    "alignas": "extern __shared__ alignas(128) float part[];",
    "other order": "__shared__ extern float part[];",
    "type in front": "float extern __shared__ part[];",
    "type in the middle": "extern float __shared__ part[];",
    "typedef": "typedef float Real; extern __shared__ Real part[];",
    "const volatile": "extern volatile __shared__ float part[];",
    "two lines": "extern __shared__\n float\n part[];",
    "cast": "extern __shared__ unsigned char raw[]; float* part = reinterpret_cast<float*>(raw);",
    "several": "extern __shared__ int other[]; extern __shared__ float part[];",
    "comments": "extern /* a */ __shared__ float // b\n part[ ];",
}


@pytest.mark.parametrize("form", EXTERN)
def test_dynamic_shared_memory_in_functions(compiled, form):
    """Every way to declare it."""
    text = """
    extern "C" __global__ void k(const float* a, float* out) {
        DECLARATION
        part[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = part[blockDim.x - 1 - threadIdx.x];
    }
    """.replace("DECLARATION", EXTERN[form])
    a, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    compiled(text)(2, 64, a, out, shared_bytes=256)
    assert out.tolist() == a[::-1].tolist()


@pytest.mark.parametrize("check", ["off", "full"])
def test_dynamic_shared_memory_outside_of_functions(compiled, check):
    """At namespace scope, several arrays of different types: all begin at the same byte."""
    text = """
    extern __shared__ __align__(16) unsigned char raw[];
    namespace inner { extern __shared__ float part[]; }
    __device__ float get(int i) { return inner::part[i]; }
    extern "C" __global__ void k(const float* a, float* out) {
        float* mine = reinterpret_cast<float*>(raw);
        mine[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = get(blockDim.x - 1 - threadIdx.x);
    }
    """
    a, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    assert not compiled(text, check=check)(4, 64, a, out, shared_bytes=256, check=check, workers=2)
    assert out.tolist() == a[::-1].tolist()


ALIGNED = {
    "__align__": (128, "extern __shared__ __align__(128) unsigned char part[];"),
    "alignas in front": (1024, "alignas(1024) extern __shared__ float part[];"),
    "alignas behind": (64, "extern __shared__ alignas(N * 16) T part[];"),
    "type": (32, "extern __shared__ double4_32a part[];"),
    "largest of several": (256, "extern __shared__ int first[]; extern __shared__ __align__(256) char part[];"),
}


@pytest.mark.parametrize("check", ["off", "full"])
@pytest.mark.parametrize("form", ALIGNED)
def test_dynamic_shared_memory_is_aligned_as_declared(compiled, form, check):
    """By attribute or by type, however many bytes a launch asks for."""
    alignment, declaration = ALIGNED[form]
    text = f"""
    template <class T, int N> __global__ void k(size_t* out) {{
        {declaration}
        out[0] = (size_t)part;
    }}
    """
    kernel = compiled(text, "k<float, 4>", check=check)
    for shared_bytes in (16, 48, 1000, 232448):
        out = np.zeros(1, np.uint64)
        assert not kernel(1, 1, out, shared_bytes=shared_bytes, check=check)
        assert int(out[0]) % alignment == 0


def test_dynamic_shared_memory_is_the_kernels_own(compiled):
    """A launch of another kernel does not leave its memory behind, whatever each declares."""
    inside = """
    extern "C" __global__ void k(size_t* out) {
        extern __shared__ int part[];
        part[threadIdx.x] = threadIdx.x;
        out[threadIdx.x] = (size_t)part;
    }
    """
    outside = """
    extern __shared__ int part[];
    extern "C" __global__ void k(size_t* out) {
        part[threadIdx.x] = threadIdx.x;
        out[threadIdx.x] = (size_t)part;
    }
    """
    first, second = compiled(inside), compiled(outside)
    places = []
    for kernel in (first, second, first):
        out = np.zeros(8, np.uint64)
        kernel(1, 8, out, shared_bytes=32)
        places.append(int(out[0]))
    assert places[0] == places[2] != places[1]


def test_dynamic_shared_memory_in_templates_and_headers(compiled, tmp_path):
    """A class template that hands it out by type, in the user's own header, is rewritten there."""
    (tmp_path / "shared.cuh").write_text(
        "#pragma once\ntemplate <class T> struct Shared {\n"
        "    __device__ T* get() {\n        extern __shared__ T memory[];\n        return memory;\n    }\n};\n"
    )
    text = """
    #include "shared.cuh"
    template <class T> __global__ void k(T* a) {
        T* part = Shared<T>().get();
        part[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        a[threadIdx.x] = part[blockDim.x - 1 - threadIdx.x];
    }
    """
    a = np.arange(32, dtype=np.float64)
    compiled(text, "k<double>", directories=[tmp_path])(1, 32, a, shared_bytes=256)
    assert a.tolist() == list(range(31, -1, -1))


def test_shared_variables_of_instances_are_apart(compiled):
    """In function templates each instance has its own; in one function they are one."""
    text = """
    template <int N> __device__ int* buffer() { __shared__ int part[N]; return part; }
    __device__ int* common() { __shared__ int one[4]; return one; }
    extern "C" __global__ void k(long long* out) {
        out[0] = buffer<4>() != buffer<8>();
        out[1] = common() == common();
        buffer<4>()[threadIdx.x % 4] = 1;
        buffer<8>()[threadIdx.x % 8] = 2;
        __syncthreads();
        out[2] = buffer<4>()[3] * 10 + buffer<8>()[7];
    }
    """
    out = np.zeros(3, np.int64)
    compiled(text)(1, 8, out)
    assert out.tolist() == [1, 1, 12]


def test_printf_goes_to_python_stdout_block_by_block(compiled, capsys):
    """Formatted when the launch is over, in the order of blocks and of calls, whichever worker ran the block."""
    text = r"""
    extern "C" __global__ void k(const float* a, int n) {
        if (threadIdx.x) return;
        int count = printf("block %d of %u: %5.2f %s|%-4d|%c|%x|%lld|%%|%p\n",
                           blockIdx.x, gridDim.x, a[0] * blockIdx.x, "text", n, 'z', -1, 1ll << 40, (void*)16);
        printf("%d %hhd %g %e\n", count, 300, 0.5, 12345.678);
        printf("plain\n");
    }
    """
    compiled(text)(3, 32, np.array([1.5], np.float32), np.int32(7), workers=3)
    want = "".join(
        f"block {b} of 3: {1.5 * b:5.2f} text|7   |z|ffffffff|1099511627776|%|0x10\n9 44 0.5 1.234568e+04\nplain\n"
        for b in range(3)
    )
    assert capsys.readouterr().out == want


def test_printf_drops_what_does_not_fit_and_says_so(compiled, capsys):
    """The buffer has 1 MiB."""
    text = r'extern "C" __global__ void k() { printf("%s\n", "0123456789012345678901234567890123456789"); }'
    compiled(text)(64, 1024)
    lines = capsys.readouterr().out.splitlines()
    dropped = int(lines[-1].split()[1])
    assert "did not fit" in lines[-1]
    assert dropped + len(lines) - 1 == 64 * 1024
    assert dropped > 0


def test_what_was_printed_before_a_fault_is_shown(compiled, capsys):
    """It is often why the call was put there."""
    text = r'extern "C" __global__ void k() { printf("before\n"); __trap(); }'
    with pytest.raises(KernelFault, match="trap"):
        compiled(text)(1, 1)
    assert capsys.readouterr().out == "before\n"


@pytest.mark.parametrize("check", ["off", "full"])
def test_a_launch_that_is_stopped_within_a_printf_shows_whole_records(compiled, capsys, check):
    """The budget ends it while the buffer is full and a record is being dropped, whichever byte of it."""
    text = r'extern "C" __global__ void k() { while (1) printf("%s %d\n", "0123456789", 7); }'
    kernel = compiled(text, check=check)
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            kernel(8, 32, check=check, budget_s=0.3, workers=4)
        *lines, told = capsys.readouterr().out.splitlines()
        assert set(lines) == {"0123456789 7"}
        assert "did not fit" in told


@pytest.mark.parametrize("check", ["off", "full"])
def test_a_fault_within_a_printf_is_told_at_its_line(compiled, capsys, check):
    """The runtime follows the pointer of %s; the half record is not shown, those before it are."""
    text = r"""extern "C" __global__ void k(const long long* a) {
        printf("before\n");
        printf("%d %s", 7,
               (const char*)a[0]);
    }"""
    with pytest.raises(KernelFault, match="null pointer") as caught:
        compiled(text, check=check)(1, 1, np.array([16]), check=check)
    assert caught.value.line == 3
    assert capsys.readouterr().out == "before\n"


@pytest.mark.parametrize("check", ["off", "full"])
def test_a_failed_assert_names_expression_thread_and_line(compiled, check):
    """As the driver's message does."""
    text = """extern "C" __global__ void k(const int* a) {
        assert(a[threadIdx.y * 8 + threadIdx.x] < 40);
    }"""
    with pytest.raises(KernelFault) as caught:
        compiled(text, check=check)(2, (8, 8), np.arange(64, dtype=np.int32), check=check)
    fault = caught.value
    assert (fault.kind, fault.file, fault.line, fault.thread, fault.block) == (
        "assertion",
        "kernel.cu",
        2,
        (0, 5, 0),
        (0, 0, 0),
    )
    assert (
        str(fault) == "assertion: `a[threadIdx.y * 8 + threadIdx.x] < 40` does not hold "
        "by thread (0, 5, 0) of block (0, 0, 0) at kernel.cu:2"
    )


def test_ndebug_removes_asserts(compiled):
    """As for NVRTC."""
    kernel = compiled(
        'extern "C" __global__ void k(int* a) { assert(a[0] == 1); a[0] = 5; }',
        options=Options(define={"NDEBUG": None}),
    )
    a = np.zeros(1, np.int32)
    kernel(1, 1, a)
    assert a[0] == 5


def test_clocks_do_not_run_backwards(compiled):
    """clock64 is in nanoseconds here; __nanosleep lets others run."""
    text = """
    extern "C" __global__ void k(long long* out) {
        const long long a = clock64();
        __nanosleep(100);
        out[threadIdx.x] = clock64() - a;
    }
    """
    out = np.full(64, -1, np.int64)
    compiled(text)(1, 64, out)
    assert (out >= 0).all()


def test_multiply_add_is_one_operation(compiled):
    """As NVRTC contracts it, so that results agree bit by bit."""
    text = 'extern "C" __global__ void k(const float* a, float* out) { out[0] = a[0] * a[1] + a[2]; }'
    a = np.array([1 + 2**-12, 1 + 2**-12, -1 - 2**-11], np.float32)
    out = np.zeros(1, np.float32)
    compiled(text)(1, 1, a, out)
    assert out[0] == np.float32(2**-24)


@pytest.mark.parametrize("check", ["off", "full"])
def test_multiply_add_is_two_operations_where_nothing_is_optimized(compiled, check):
    """With ``debug`` NVRTC writes a product and a sum; so do both compilers, checked or not."""
    text = 'extern "C" __global__ void k(const float* a, float* out) { out[0] = a[0] * a[1] + a[2]; }'
    a = np.array([1 + 2**-12, 1 + 2**-12, -1 - 2**-11], np.float32)
    out = np.ones(1, np.float32)
    compiled(text, check=check, options=Options(debug=True))(1, 1, a, out, check=check)
    assert out[0] == 0


def test_arrays_that_overlap_stay_one_memory(compiled):
    """An output that is also an input, and one that begins in the middle of another."""
    text = """
    extern "C" __global__ void k(int* a, int* b, int n) {
        a[4] = 7;
        b[1] = a[4] + b[0];
    }
    """
    kernel = compiled(text)
    whole = np.arange(8, dtype=np.int32)
    kernel(1, 1, whole, whole[4:], np.int32(0))
    assert whole.tolist() == [0, 1, 2, 3, 7, 14, 6, 7]
    whole = np.arange(8, dtype=np.int32)
    kernel(1, 1, whole, whole, np.int32(0))
    assert whole.tolist() == [0, 7, 2, 3, 7, 5, 6, 7]


def test_a_strided_array_keeps_what_lies_in_its_gaps(compiled):
    """The kernel sees the caller's memory itself."""
    text = 'extern "C" __global__ void k(int* a) { a[threadIdx.x * 2] = -1; }'
    whole = np.arange(8, dtype=np.int32)
    kernel = compiled(text)
    kernel(1, 4, whole[::2])
    assert whole.tolist() == [-1, 1, -1, 3, -1, 5, -1, 7]


def test_what_a_kernel_must_not_write_is_not_written(compiled):
    """Unchecked, an array that the call says is read only is a copy that is thrown away."""
    a = np.zeros(4, np.int32)
    compiled('extern "C" __global__ void k(const int* a) { const_cast<int*>(a)[0] = 1; }')(1, 1, a)
    assert not a.any()


def test_an_empty_array_may_be_passed(compiled):
    """Its address is never used."""
    a, out = np.zeros(0, np.int32), np.zeros(1, np.int32)
    compiled('extern "C" __global__ void k(const int* a, int* out, int n) { out[0] = n ? a[0] : 3; }')(
        1, 1, a, out, np.int32(0)
    )
    assert out[0] == 3


def test_vector_loads_find_their_alignment(compiled):
    """A guarded copy of an array whose size is no multiple of 16 bytes still begins at one."""
    text = """
    extern "C" __global__ void k(const float* a, float* out, int n) {
        const float4 v = reinterpret_cast<const float4*>(a)[threadIdx.x];
        reinterpret_cast<float4*>(out)[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
        if (threadIdx.x == 0) out[n - 1] = a[n - 1];
    }
    """
    for n in (17, 18, 19, 20):
        a, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
        compiled(text)(1, 4, a, out, np.int32(n))
        assert out[:16].tolist() == a[:16].reshape(4, 4)[:, ::-1].ravel().tolist()
        assert out[n - 1] == n - 1


def test_two_modules_of_one_image_are_apart(compiled, compiler):
    """Each load is a new one, with variables of its own, though the loader may have seen the bytes before."""
    text = 'extern "C" __device__ int n = 0; extern "C" __global__ void k(int* a) { a[0] = ++n; }'
    first = compiled(text)
    second = Module(first.module.image)
    a = np.zeros(1, np.int32)
    first(1, 1, a)
    first(1, 1, a)
    second.launch((1, 1, 1), (1, 1, 1), 0, [argument("a", a)], check="off", budget_s=10, workers=1)
    assert a[0] == 1
    second.close()
    first(1, 1, a)
    assert a[0] == 3


def test_a_closed_module_refuses_to_launch(compiled):
    """Instead of jumping to where its code was."""
    kernel = compiled('extern "C" __global__ void k() {}')
    kernel.module.close()
    kernel.module.close()
    with pytest.raises(ToolchainError, match="closed"):
        kernel(1, 1)


def test_many_modules_can_be_loaded_and_closed(compiled):
    """Closed or dropped, a module gives its image back: the process's mappings do not grow."""
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    image = compiled(
        'extern "C" __global__ void k(int* a) { __shared__ int s[64]; s[threadIdx.x] = 1; a[threadIdx.x] = s[0]; }'
    ).module.image
    a = np.zeros(64, np.int32)

    def mappings() -> int:
        with open("/proc/self/maps") as file:
            return len({line.split("/", 1)[1] + line.split()[4] for line in file if "memfd:cuplate" in line})

    before = mappings()
    for number in range(30):
        module = Module(image)
        module.launch((1, 1, 1), (64, 1, 1), 0, [argument("a", a)], check="off", budget_s=10, workers=1)
        if number % 2:
            module.close()
        del module
    assert mappings() <= before + 1  # one image may have become the keeper of the signal handlers


def test_an_image_that_is_none_is_a_toolchain_error():
    """A damaged image is said to be one."""
    with pytest.raises(ToolchainError, match="cannot be loaded"):
        Module(b"no image")


def test_a_launch_from_another_thread_works(compiled):
    """Workers belong to no thread."""
    kernel = compiled('extern "C" __global__ void k(int* a) { __syncthreads(); a[threadIdx.x] = threadIdx.x; }')
    a = np.zeros(32, np.int32)
    thread = threading.Thread(target=kernel, args=(1, 32, a))
    thread.start()
    thread.join()
    assert a[31] == 31
