"""Drawn calls: shapes, layouts, dtypes, parameters and scalars of a few kernels, compared with NumPy on any backend.

Few kernels and few dtypes, so that a thousand calls are a handful of compiles: strides arrive as run-time integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st
from jaxtyping import Float32, Int32, Int64, Shaped

from cuplate import Array, CuplateError, Inline, LayoutError, f32, i32, specialize
from tests.layouts import Library

DTYPES = ("float32", "int8", "float16", "complex64", "bool", "uint16", "int64", "uint64", "float64", "complex128")
STEPS = (1, 2, 3, -1, -2)

COMBINE = """
{% if a.dtype == "float16" %}
#include <cuda_fp16.h>
{% endif %}
extern "C" __global__ void {{ kernel }}(
    const {{ a.ctype }}* a, {{ index_t }} a0, {{ index_t }} a1, const {{ b.ctype }}* b, {{ index_t }} b0,
    {{ index_t }} b1, {{ out.ctype }}* out, {{ index_t }} o0, {{ index_t }} o1, {{ index_t }} M, {{ index_t }} N)
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.y * {{ block.x }} + threadIdx.y;
    const {{ index_t }} j = ({{ index_t }})blockIdx.x * {{ block.x }} + threadIdx.x;
    if (i >= M || j >= N) return;
    const {{ a.ctype }} x = a[i * a0 + j * a1], y = b[i * b0 + j * b1];
    {{ out.ctype }}& z = out[i * o0 + j * o1];
{% if op == "first" %}
    z = x;
{% elif a.dtype == "complex64" or a.dtype == "complex128" %}
    z.x = x.x - y.x;
    z.y = x.y - y.y;
{% elif a.dtype == "bool" %}
    z = x != y;
{% else %}
    z = x - y;
{% endif %}
}
"""


@specialize(
    Inline(COMBINE),
    args="a a.stride(0) a.stride(1) b b.stride(0) b.stride(1) out out.stride(0) out.stride(1) M N",
    tiles={"N": 8, "M": 8},
    block=(8, 8),
)
def combine(a: Shaped[Array, "M N"], b: Shaped[Array, "M N"], *, op: Literal["first", "minus"]) -> Shaped[Array, "M N"]:
    """``a``, or ``a - b``."""
    raise NotImplementedError


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}(
    const int* x, {{ index_t }} x0, {{ index_t }} x1, int weight, long long* out, {{ index_t }} M, {{ index_t }} N)
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M) return;
    long long sum = {{ start }};
    for ({{ index_t }} j = 0; j < N; ++j) sum += (long long)weight * x[i * x0 + j * x1];
    out[i] = sum;
}
"""),
    args="x x.stride(0) x.stride(1) weight out M N",
    tiles={"M": "threads"},
    block="threads",
)
def total(
    x: Int32[Array, "M N"], weight: i32, *, start: Literal[0, 7] = 0, threads: Literal[32, 128] = 32
) -> Int64[Array, " M"]:
    """``start`` and the weighted sum of each row, which may be empty."""
    raise NotImplementedError


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
{% if x.aligned(16) and out.aligned(16) %}
    const {{ index_t }} first = 4 * i;
    if (first + 3 < N) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];
        reinterpret_cast<float4*>(out)[i] =
            make_float4(__fmul_rn(alpha, v.x), __fmul_rn(alpha, v.y), __fmul_rn(alpha, v.z), __fmul_rn(alpha, v.w));
        return;
    }
    for ({{ index_t }} j = first; j < N; ++j) out[j] = __fmul_rn(alpha, x[j]);
{% else %}
    if (i < N) out[i] = __fmul_rn(alpha, x[i]);
{% endif %}
}
""")
)
def scaled(alpha: f32, x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """``alpha * x``, four at once where the addresses allow it."""
    raise NotImplementedError


@dataclass(frozen=True)
class Layout:
    """How a view of two axes is cut from its memory.

    Attributes
    ----------
    offset : tuple of int
        Elements before it on each axis of the memory.
    steps : tuple of int
        Negative ones run backwards.
    transposed : bool
    broadcast : tuple of bool
        Axes that repeat one element.
    """

    offset: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (1, 1)
    transposed: bool = False
    broadcast: tuple[bool, bool] = (False, False)

    def memory(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Shape of the memory."""
        own = [1 if b else n for n, b in zip(shape, self.broadcast, strict=True)]
        own = own[::-1] if self.transposed else own
        m, n = (o + abs(s) * k + 1 for o, s, k in zip(self.offset, self.steps, own, strict=True))
        return m, n

    def of(self, memory: Any, shape: tuple[int, int], library: Library) -> Any:
        """The view."""
        own = [1 if b else n for n, b in zip(shape, self.broadcast, strict=True)]
        own = own[::-1] if self.transposed else own
        parts = [_part(o, s, k) for o, s, k in zip(self.offset, self.steps, own, strict=True)]
        view = memory[tuple(parts)]
        view = view.T if self.transposed else view
        return library.broadcast(view, shape) if any(self.broadcast) else view


def _part(offset: int, step: int, count: int) -> slice:
    if step > 0:
        return slice(offset, offset + step * count, step)
    last = offset - step * (count - 1)
    return slice(last, offset - 1 if offset else None, step) if count else slice(offset, offset)


def layouts(*, negative: bool, broadcast: bool) -> st.SearchStrategy[Layout]:
    """Layouts that a library has."""
    steps = st.sampled_from(STEPS if negative else [s for s in STEPS if s > 0])
    small = st.integers(0, 2)
    flags = st.tuples(st.booleans(), st.booleans()) if broadcast else st.just((False, False))
    plain = st.just(Layout())
    return plain | st.builds(Layout, st.tuples(small, small), st.tuples(steps, steps), st.booleans(), flags)


sizes = st.integers(0, 5) | st.integers(0, 40)
"""Sizes of an axis, empty ones among them."""


def values(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Drawn values whose differences are exact in their dtype, but for integers, which wrap."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        low = max(np.iinfo(kind).min // 2, -(2**40))
        return rng.integers(low, min(np.iinfo(kind).max // 2, 2**40), shape).astype(kind)
    whole = rng.integers(-500, 500, shape).astype(kind)
    return whole + 1j * rng.integers(-500, 500, shape).astype(whole.real.dtype) if kind.kind == "c" else whole


def minus(a: Any, b: Any) -> Any:
    """``a - b`` as the kernel computes it: bools differ, unsigned integers wrap."""
    return a != b if a.dtype == bool else (a - b).astype(a.dtype)


def check_combine(library: Library, data: Any, dtypes: tuple[str, ...] = DTYPES[:5]) -> None:
    """One drawn call of `combine`, with ``out=`` or without: NumPy's result, and nothing around the output touched."""
    dtype, shape = data.draw(st.sampled_from(dtypes), "dtype"), (data.draw(sizes, "M"), data.draw(sizes, "N"))
    op = data.draw(st.sampled_from(["first", "minus"]), "op")
    cut = {n: data.draw(layouts(negative=library.negative, broadcast=n != "out"), n) for n in ("a", "b", "out")}
    give_out = not library.allocates or data.draw(st.booleans(), "out=")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    memory = {n: values(c.memory(shape), dtype, seed + i) for i, (n, c) in enumerate(cut.items())}
    own = {n: library.put(m) for n, m in memory.items()}
    given = {n: library.wrap(c.of(own[n], shape, library)) for n, c in cut.items()}
    host = {n: c.of(memory[n], shape, Library()) for n, c in cut.items()}
    right = host["a"].copy() if op == "first" else minus(host["a"], host["b"])
    for _ in range(2):
        got = combine(given["a"], given["b"], op=op, **({"out": given["out"]} if give_out else {}))
        if give_out:
            assert got is given["out"]
            host["out"][...] = right
            np.testing.assert_array_equal(library.get(own["out"]), memory["out"])
        else:
            np.testing.assert_array_equal(library.get(got), right)
    for name in ("a", "b"):
        np.testing.assert_array_equal(library.get(own[name]), memory[name])


def check_total(library: Library, data: Any) -> None:
    """One drawn call of `total`: a row of nothing sums to the start, and weights are exact or refused."""
    shape = (data.draw(sizes, "M"), data.draw(sizes, "N"))
    cut = data.draw(layouts(negative=library.negative, broadcast=True), "x")
    start, threads = data.draw(st.sampled_from([0, 7]), "start"), data.draw(st.sampled_from([32, 128]), "threads")
    weight = data.draw(st.integers(-(2**31) - 2, 2**31 + 1) | st.integers(-3, 3).map(np.int8), "weight")
    memory = values(cut.memory(shape), "int32", data.draw(st.integers(0, 2**32 - 1), "seed")) % 1000
    view = cut.of(library.put(memory), shape, library)
    right = start + (cut.of(memory, shape, Library()).astype(np.int64) * int(weight)).sum(axis=1)
    out = library.put(np.full(shape[0], -1, np.int64))
    try:
        total(library.wrap(view), weight, start=start, threads=threads, out=library.wrap(out))
    except OverflowError:
        assert not -(2**31) <= weight < 2**31
    else:
        assert -(2**31) <= weight < 2**31
        np.testing.assert_array_equal(library.get(out), right)


def check_scaled(library: Library, data: Any) -> None:
    """One drawn call of `scaled`: any offset of either array, a step that is refused, a float rounded once."""
    n, start, to = data.draw(sizes, "N"), data.draw(st.integers(0, 5), "start"), data.draw(st.integers(0, 5), "to")
    step = data.draw(st.sampled_from([1, 1, 1, 2]), "step")
    alpha = data.draw(st.floats(allow_nan=False) | st.floats(-2, 2) | st.integers(-9, 9), "alpha")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    memory = np.random.default_rng(seed).integers(-9, 9, 2 * n + 6).astype(np.float32)
    place = np.full(n + 6, 77, np.float32)
    own, own_out = library.put(memory), library.put(place)
    part = slice(start, start + step * n, step)
    out = own_out[to : to + n]
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.float32(alpha)
        place[to : to + n] = rounded * memory[part]
    overflow = bool(np.isinf(rounded)) and abs(alpha) != float("inf")
    for _ in range(2):
        try:
            scaled(alpha, library.wrap(own[part]), out=library.wrap(out))
        except CuplateError as error:
            assert isinstance(error, LayoutError) == (step > 1 and n > 1)
            assert isinstance(error, OverflowError) == (not isinstance(error, LayoutError))
            assert isinstance(error, LayoutError) or overflow
        else:
            assert not overflow and (step == 1 or n < 2)
            np.testing.assert_array_equal(library.get(own_out), place)
