"""A kernel that runs until the host lets it go: what tells, without a clock, that a call came back before its end."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float32, Int32

from cuplate import Array, Inline, i64, specialize

LONG, SHORT = 6_000_000_000, 200_000_000  # clock cycles: three seconds and a tenth of one
TEXT = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    if (blockIdx.x || threadIdx.x) return;
    const volatile int* open = flag;
    const long long start = clock64();
    while (!*open && clock64() - start < cycles) {}
    out[0] = *open;
}
"""


@specialize(Inline(TEXT), grid=1, block=32)
def wait(cycles: i64, flag: Int32[Array, " F"]) -> Int32[Array, "one=1"]:
    """1 once the flag is 1, and 0 if that takes more than so many cycles."""
    raise NotImplementedError


class Gate:
    """A flag in host memory that a kernel reads while it runs.

    Attributes
    ----------
    array : cupy.ndarray, int32, shape (1,)
    """

    def __init__(self, cp: Any) -> None:
        import numpy as np

        self._memory = cp.cuda.alloc_pinned_memory(64)
        self._host = np.frombuffer(self._memory, np.int32, 1)
        self._host[0] = 0
        memory = cp.cuda.UnownedMemory(self._memory.ptr, 64, self, 0)
        self.array = cp.ndarray((1,), cp.int32, cp.cuda.MemoryPointer(memory, 0))

    def open(self) -> None:
        """Let every kernel go that waits."""
        self._host[0] = 1

    def close(self) -> None:
        """Let kernels wait again."""
        self._host[0] = 0


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] * {{ factor }};
}
""")
)
def times(x: Float32[Array, " N"], *, factor: int) -> Float32[Array, " N"]:
    """x times a constant of the text: each factor is a kernel of its own."""
    return x * factor
