// Each thread reads its element without asking whether there is one.
__global__ void kernel(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef SOUND
    if (i >= n) return;
#endif
    float x = a[i];  // fault
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    if (i < n) out[i] = x;
}
