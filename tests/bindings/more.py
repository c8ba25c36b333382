"""Bindings for the rest of the design's table; annotations are evaluated here, where the functions are defined."""

import enum
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Float64, Int8

from cuplate import Array, Inline, f32, specialize


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    using index_t = {{ index_t }};
    const index_t row = (index_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= R) return;
    float sum = 0;
    {% for i in range(D) %}
    sum += x[row * {{ D }} + {{ i }}] * w[{{ i }}];
    {% endfor %}
    out[row] = sum;
}
"""),
    static="D",
    tiles={"R": 128},
    block=128,
)
def project(x: Float32[Array, "R D"], w: Float32[Array, " D"]) -> Float32[Array, " R"]:
    """x @ w, unrolled over an axis whose size is a constant of the source."""
    return x @ w


def one_block_per_256(sizes: Any) -> int:
    """Blocks for `negate`."""
    return int(-(-sizes.N // sizes.threads))


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * {{ threads }} + threadIdx.x;
    if (i < N) out[i] = -x[i];
}
"""),
    grid=one_block_per_256,
    block="threads",
)
def negate(
    x: Float32[Array, " N"] | Float64[Array, " N"], *, threads: Literal[128, 256] = 128
) -> Float32[Array, " N"] | Float64[Array, " N"]:
    """-x in one of two dtypes, on a grid that a Python function computes."""
    return -x


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    using index_t = {{ index_t }};
    const index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < N; i += step) out[i] = x[i] * x[i];
}
"""),
    grid="min(sm_count, cdiv(N, 256))",
)
def square(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """x * x, by no more blocks than the device has multiprocessors."""
    return x * x


@specialize(
    "total_ordered.cu.j2",
    tiles={"N": "tile"},
    block=32,
    scratch={"partial": ("float32", "max(1, cdiv(N, tile))"), "finished": ("uint32", 1)},
    zeroed="finished",
)
def total_ordered(x: Float32[Array, " N"], *, tile: Literal[16, 64] = 64) -> Float32[Array, ""]:
    """The sum of x in a fixed order, by way of scratch memory."""
    return x.sum()


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    using index_t = {{ index_t }};
    const index_t i = ((index_t)blockIdx.x * blockDim.x + threadIdx.x) * {{ xyz }};
    if (i >= N * {{ xyz }}) return;
    out[i] = a[i + 1] * b[i + 2] - a[i + 2] * b[i + 1];
    out[i + 1] = a[i + 2] * b[i] - a[i] * b[i + 2];
    out[i + 2] = a[i] * b[i + 1] - a[i + 1] * b[i];
}
"""),
    tiles={"N": 256},
)
def cross(a: Float32[Array, "N xyz=3"], b: Float32[Array, "N xyz=3"]) -> Float32[Array, "N xyz=3"]:
    """The cross product of each pair of vectors."""
    return np.cross(a, b)


@specialize("add.cu.j2")
def add(x: Float[Array, " N"], y: Float[Array, " N"]) -> Float[Array, " N"]:
    """x + y in any floating dtype, one dtype a call."""
    return x + y


class Activation(enum.Enum):
    """What `activate` applies."""

    RELU = "relu"
    ABS = "abs"
    NONE = "none"


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    {% if kind.name == "RELU" %}
    out[i] = x[i] > 0 ? x[i] : 0;
    {% elif kind.name == "ABS" %}
    out[i] = fabsf(x[i]);
    {% else %}
    out[i] = x[i];
    {% endif %}
}
""")
)
def activate(x: Float32[Array, " N"], *, kind: Activation = Activation.RELU) -> Float32[Array, " N"]:
    """x after an activation that an Enum names."""
    if kind is Activation.RELU:
        return x.clip(0)
    return abs(x) if kind is Activation.ABS else x + 0


@specialize("cluster_shift.cu.j2", grid="2 * cdiv(N, 2 * tile)", block="tile", cluster=2, require="arch >= 90")
def swap_pairs(x: Float32[Array, " N"], *, tile: Literal[64, 128] = 128) -> Float32[Array, " N"]:
    """Neighbouring tiles of x change places, through the shared memory of a cluster; 0 where x has no element."""
    padded = np.zeros(-(-len(x) // (2 * tile)) * 2 * tile, x.dtype)
    padded[: len(x)] = x
    return padded.reshape(-1, 2, tile)[:, ::-1].reshape(-1)[: len(x)]


@specialize(
    "peak_normalize.cu.j2",
    grid="min(sm_count, cdiv(N, 256))",
    cooperative=True,
    scratch={"peak": ("uint32", 1), "arrived": ("uint32", 1)},
    zeroed=("peak", "arrived"),
)
def peak_normalize(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """x / max|x|, by blocks that wait for each other; zeros stay zeros."""
    peak = np.max(abs(x), initial=0)
    return x / peak if peak > 0 else x * 0


@specialize("scale_vectors.cu.j2", grid="cdiv(N, 4 * 256)")
def scale_vectors(x: Float32[Array, " N"], factor: f32) -> Float32[Array, " N"]:
    """factor * x, four elements at once where the arrays are aligned for it."""
    return factor * x


@specialize("scale_rows.cu.j2", tiles={"C": 64, "R": 1}, block=64)
def scale_rows(x: Float32[Array, "R C"], s: Float32[Array, " R"]) -> Float32[Array, "R C"]:
    """Each row of x times its factor; more than 65535 rows are folded onto the grid's x."""
    return x * s[:, None]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} column = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column < C) out[row * C + column] = x[row * C + column] * s[row];
}
"""),
    tiles={"C": 64, "R": 1},
    block=64,
)
def scale_rows_unfoldable(x: Float32[Array, "R C"], s: Float32[Array, " R"]) -> Float32[Array, "R C"]:
    """As `scale_rows`, with a template that reads blockIdx itself."""
    return x * s[:, None]


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i];
}
""")
)
def copy_bytes(x: Int8[Array, " N"]) -> Int8[Array, " N"]:
    """x; long enough arrays need 64-bit indices."""
    return x + 0


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    float held[96];
    #pragma unroll
    for (int j = 0; j < 96; ++j) held[j] = x[(i + j) % N];
    for (int turn = 0; turn < 3; ++turn) {
        #pragma unroll
        for (int j = 0; j < 96; ++j) held[j] = held[j] * held[(j + 1) % 96] + held[(j + 7) % 96];
    }
    float sum = 0;
    #pragma unroll
    for (int j = 0; j < 96; ++j) sum += held[j];
    if (i < N) out[i] = sum;
}
"""),
    block="threads",
)
def hungry(x: Float32[Array, " N"], *, threads: Literal[128, 1024] = 128) -> Float32[Array, " N"]:
    """A kernel whose registers are too many for the largest block."""
    raise NotImplementedError


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = value;
}
""")
)
def fill(value: f32) -> Float32[Array, " N"]:
    """value everywhere: no array argument gives a size, so ``out=`` does."""
    raise NotImplementedError


MORE = (
    project,
    negate,
    square,
    total_ordered,
    cross,
    add,
    activate,
    swap_pairs,
    peak_normalize,
    scale_vectors,
    scale_rows,
    scale_rows_unfoldable,
    copy_bytes,
)
