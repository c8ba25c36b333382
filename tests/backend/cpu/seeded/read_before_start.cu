// The stencil's left edge.
__global__ void kernel(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
#ifdef SOUND
    const float left = i > 0 ? a[i - 1] : 0.0f;
#else
    const float left = a[i - 1];  // fault
#endif
    out[i] = left;
}
