"""A kernel that ends every worker which imports it, as a compiler that crashes would."""

import os
import signal

from jaxtyping import Float32

from cuplate import Array, Inline, specialize

if os.environ.get("CUPLATE_TEST_DEADLY"):  # in workers only: who sends it imports it too
    os.kill(os.getpid(), signal.SIGKILL)


@specialize(
    Inline("""
extern "C" __global__ void {{ kernel }}({{ args }})
{
    if (blockIdx.x * blockDim.x + threadIdx.x < N) out[blockIdx.x * blockDim.x + threadIdx.x] = 0;
}
""")
)
def nothing(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """0, if it comes to that."""
    return 0 * x
