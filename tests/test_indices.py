"""Calls of 2**31 elements and more: what cannot number them is refused, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from jaxtyping import Int8

from cuplate import Array, ArraySpec, Inline, LaunchError, specialize

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { BODY }'
INT, UNSIGNED = 2**31, 2**32
ONE = "if (i < N) out[i] = x[i];"


def bind(body: str, **keywords: Any) -> Any:
    """A function of one int8 array, so that sizes are bytes."""

    @specialize(Inline(KERNEL.replace("BODY", body)), **keywords)
    def f(x: Int8[Array, " N"]) -> Int8[Array, " N"]:
        raise NotImplementedError

    return f


def refusal(f: Any, n: int) -> str | None:
    """First line of the error for `n` elements; None if there is none."""
    try:
        f.inspect(ArraySpec((n,), "int8"), arch="sm_90")
    except LaunchError as error:
        return str(error).splitlines()[0]
    return None


@pytest.mark.parametrize(
    ("index", "most"),
    [
        ("int i = blockIdx.x * blockDim.x + threadIdx.x;", INT),
        ("const int i = (int)blockIdx.x * 256 + threadIdx.x;", INT),
        ("unsigned i = blockIdx.x * blockDim.x + threadIdx.x;", UNSIGNED),
        ("auto i = threadIdx.x + blockDim.x*blockIdx.x;", UNSIGNED),
        ("{{ index_t }} i = blockIdx.x * blockDim.x + threadIdx.x;", UNSIGNED),
        ("long long i = 256 * blockIdx.x + threadIdx.x;", UNSIGNED),
        ("{{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;", None),
        ("{{ index_t }} i = 1LL * blockIdx.x * blockDim.x + threadIdx.x;", None),
        ("size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;", None),
        ("/* blockIdx.x * blockDim.x */ long long i = (long long)blockIdx.x * 256 + threadIdx.x;", None),
    ],
)
def test_an_index_is_refused_past_what_it_can_number(index: str, most: int | None) -> None:
    """Right up to its limit, refused one tile past it: an overflow would give a wrong result without a word."""
    f = bind(f"{index} {ONE}")
    if most is None:
        assert refusal(f, 2 * UNSIGNED) is None
    else:
        assert refusal(f, most) is None
        assert "32-bit integers" in str(refusal(f, most + 257)) or "no 64-bit integer" in str(refusal(f, most + 257))


def test_the_step_of_a_loop_is_a_product_too() -> None:
    """Refused only where the grid makes it large; a grid of few blocks keeps it small."""
    loop = "for (size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; i < N; i += gridDim.x * 256) out[i] = x[i];"
    assert "gridDim.x * 256 is a product of 32-bit integers" in str(refusal(bind(loop), 2 * UNSIGNED))
    assert refusal(bind(loop, grid=1024), 2 * UNSIGNED) is None


def test_an_existing_kernel_of_ints_is_refused_past_them() -> None:
    """Sizes that fit an int each, and a product of them that does not: `row * N + column` would wrap."""

    @specialize(
        Inline("""
extern "C" __global__ void copy(int M, int N, const signed char* x, signed char* out)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column < N) out[row * N + column] = x[row * N + column];
}
"""),
        tiles={"N": 256, "M": 1},
    )
    def copy(x: Int8[Array, "M N"]) -> Int8[Array, "M N"]:
        raise NotImplementedError

    copy.inspect(ArraySpec((40_000, 50_000), "int8"), arch="sm_90")
    with pytest.raises(LaunchError, match="2500000000 elements, and the kernel has no 64-bit integer") as caught:
        copy.inspect(ArraySpec((50_000, 50_000), "int8"), arch="sm_90")
    assert "index_t" in caught.value.try_


def test_the_message_gives_the_remedy() -> None:
    """The product with the cast that it lacks."""
    f = bind(f"{{{{ index_t }}}} i = blockIdx.x * blockDim.x + threadIdx.x; {ONE}")
    with pytest.raises(LaunchError) as caught:
        f.inspect(ArraySpec((UNSIGNED + 1,), "int8"), arch="sm_90")
    assert caught.value.try_ == "({{ index_t }})blockIdx.x * blockDim.x"


def test_a_header_is_taken_for_right() -> None:
    """What it defines is not read, so nothing is said about it."""
    f = bind(f"int i = blockIdx.x * blockDim.x + threadIdx.x; {ONE}")
    assert refusal(f, INT + 1000) is not None
    text = f'#include <cuda_fp16.h>\nextern "C" __global__ void {{{{ kernel }}}}({{{{ args }}}}) {{ int i = 0; {ONE} }}'

    @specialize(Inline(text))
    def g(x: Int8[Array, " N"]) -> Int8[Array, " N"]:
        raise NotImplementedError

    assert refusal(g, INT + 1000) is None


def test_a_view_of_few_bytes_and_many_elements_gets_64_bit_indices() -> None:
    """Broadcast axes count by their elements: a linear index over them does not fit an int."""

    @specialize(
        Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    for ({{ index_t }} i = 0; i < R * C; ++i) out[0] += x[i / C * {{ x.stride(0) }} + i % C * {{ x.stride(1) }}];
}
"""),
        grid=1,
    )
    def add_up(x: Int8[Array, "R C"]) -> Int8[Array, "one=1"]:
        raise NotImplementedError

    small = add_up.inspect(ArraySpec((9, 9), "int8", strides=(0, 1)), arch="sm_90").source
    large = add_up.inspect(ArraySpec((50_000, 50_000), "int8", strides=(0, 1)), arch="sm_90").source
    assert "for (int i" in small and "for (long long i" in large
