"""C++: templates, lambdas, classes, headers, and what a kernel may say and assert."""

from __future__ import annotations

import numpy as np
from jaxtyping import Complex128, Float64, Int32, Int64, UInt64

from cuplate import Array, Inline, Options, specialize
from tests.corpus.case import Case, integers, normal, ulps


@specialize(
    Inline("""
template <class T> struct Wider { using type = T; };
template <> struct Wider<signed char> { using type = int; };
template <> struct Wider<int> { using type = long long; };

template <class T, int n>
struct Stack {
    T items[n];
    int count = 0;
    __device__ void push(T item) { items[count++] = item; }
    __device__ T pop() { return items[--count]; }
};

template <class... Ts>
__device__ auto sum(Ts... values) { return (values + ...); }

template <class T>
__device__ typename Wider<T>::type square(T value)
{
    if constexpr (sizeof(T) == 1) return (typename Wider<T>::type)value * value + 1;
    else return (typename Wider<T>::type)value * value;
}

template <class T, int threads>
__global__ void __launch_bounds__(threads) templates(const int* x, long long* out, int N)
{
    static_assert(threads % 32 == 0, "whole warps");
    const int i = blockIdx.x * threads + threadIdx.x;
    if (i >= N) return;
    Stack<T, 4> stack;
    for (int k = 0; k < 4; ++k) stack.push((T)(x[i] + k));
    const T top = stack.pop(), next = stack.pop();
    out[i] = square(top) + sum((int)next, stack.count, 1ll << 40);
}
"""),
    entry="templates<{{ element }}, {{ block.x }}>",
    block=64,
)
def templates(x: Int32[Array, " N"], *, element: str = "int") -> Int64[Array, " N"]:
    """Class, function, variadic and kernel templates."""
    x = x.astype(np.int64)
    return (x + 3) ** 2 + (x + 2) + 2 + 2**40 + (element != "int")


@specialize(
    Inline("""
template <class F>
__device__ int fold(const int* x, int n, int start, F f)
{
    for (int i = 0; i < n; ++i) start = f(start, x[i]);
    return start;
}

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= R) return;
    const int* mine = x + row * C;
    int seen = 0;
    auto clamp = [](int value, int low, int high) { return value < low ? low : value > high ? high : value; };
    const int sum = fold(mine, C, 0, [&](int a, int b) { ++seen; return a + clamp(b, {{ low }}, {{ high }}); });
    const int alternating = fold(mine, C, 0, [sign = 1](int a, int b) mutable {
        a += sign * b;
        sign = -sign;
        return a;
    });
    out[3 * row] = sum;
    out[3 * row + 1] = alternating;
    out[3 * row + 2] = seen + [=] { return row; }();
}
"""),
    tiles={"R": 32},
    block=32,
)
def lambdas(x: Int32[Array, "R C"], *, low: int = -20, high: int = 30) -> Int32[Array, "R 3"]:
    """Lambdas that capture by value and by reference, generic and mutable."""
    signs = 1 - 2 * (np.arange(x.shape[1]) % 2)
    return np.stack([x.clip(low, high).sum(axis=1), x @ signs, x.shape[1] + np.arange(len(x))], axis=1)


@specialize(
    Inline("""
struct Shape {
    __device__ virtual double area() const = 0;
    __device__ virtual ~Shape() {}
};
struct Square : Shape {
    double side;
    __device__ explicit Square(double side) : side(side) {}
    __device__ double area() const override { return side * side; }
};
struct Rectangle : Square {
    double height;
    __device__ Rectangle(double side, double height) : Square(side), height(height) {}
    __device__ double area() const override { return side * height; }
};

__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ double twice(double v) { return 2 * v; }
__device__ double halved(double v) { return v / 2; }

enum class Kind { square, rectangle, none };

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    const Kind kind = static_cast<Kind>(i % 3);
    double area = 0;
    switch (kind) {
    case Kind::square: { Square s(x[i]); const Shape* shape = &s; area = shape->area(); break; }
    case Kind::rectangle: { Rectangle r(x[i], 3.0); const Shape& shape = r; area = shape.area(); break; }
    default: goto nothing;
    }
    {
        double (*f)(double) = i % 2 ? twice : halved;
        area = f(area);
    }
nothing:
    out[i] = area + fibonacci(i % 12);
}
"""),
    block=32,
)
def classes(x: Float64[Array, " N"]) -> Float64[Array, " N"]:
    """Virtual functions, recursion, pointers to functions, switch and goto."""
    fibonacci = [0, 1]
    while len(fibonacci) < 12:
        fibonacci.append(sum(fibonacci[-2:]))
    result = []
    for i, side in enumerate(x):
        area = (side * side, side * 3, 0.0)[i % 3]
        result.append(area * (2 if i % 2 else 0.5) + fibonacci[i % 12])
    return np.array(result)


@specialize(
    "derivative.cu.j2",
    options=Options(include="include", define={"STEPS": 5}),
    tiles={"N": 64},
    block=64,
)
def derivative(x: Float64[Array, " N"], *, shift: float = 0.5) -> Complex128[Array, " N"]:
    """x^5 + shift * x and its derivative, by headers of our own: beside the template, and in an include directory."""
    return x**5 + shift * x + 1j * (5 * x**4 + shift)


@specialize(
    Inline("""
#include <cuda/std/cstdint>

using u64 = cuda::std::uint64_t;
static_assert(sizeof(u64) == 8 && sizeof(cuda::std::int16_t) == 2 && sizeof(cuda::std::uint8_t) == 1, "widths");

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const cuda::std::int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    // One step of splitmix64.
    u64 z = x[i] + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    out[i] = z ^ (z >> 31);
}
""")
)
def fixed_widths(x: UInt64[Array, " N"]) -> UInt64[Array, " N"]:
    """Integers of fixed width from the standard header that NVRTC has; a mixing function of 64 bits."""
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@specialize(
    Inline("""
#ifdef __CUDA_ARCH__
constexpr bool is_device = __CUDA_ARCH__ >= 800;
#else
constexpr bool is_device = false;
#endif

extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(blockDim.x == {{ block.x }} && "the block is as it was planned");
    if (i >= N) return;
    const int root = (int)sqrtf((float)x[i]);
    assert(root >= 0 && root * root <= x[i]);
    if (i == 3) printf("x[%d] = %d, its root %d, a share of %.3f%% %s\\n", i, x[i], root, 100.0 * root / x[i], "of it");
    if (x[i] < 0) __trap();
    out[i] = root + is_device;
}
""")
)
def asserting(x: Int32[Array, " N"]) -> Int32[Array, " N"]:
    """A kernel that prints a line, and whose assertions hold."""
    return np.sqrt(x).astype(np.int32) + 1


CASES = (
    Case(templates, lambda rng: {"x": integers(rng, -2000, 2000, 150)}, label="int"),
    Case(
        templates,
        lambda rng: {"x": integers(rng, -100, 100, 150)},
        {"element": "signed char"},
        label="char",
    ),
    Case(lambdas, lambda rng: {"x": integers(rng, -99, 100, 40, 31)}),
    Case(classes, lambda rng: {"x": normal(rng, 100, dtype="float64")}),
    Case(
        derivative,
        lambda rng: {"x": normal(rng, 150, dtype="float64")},
        near=ulps(8, "a chain of products against a power"),
    ),
    Case(fixed_widths, lambda rng: {"x": integers(rng, 0, 2**64, 150, dtype="uint64")}),
    Case(asserting, lambda rng: {"x": integers(rng, 0, 10**6, 150)}),
)
