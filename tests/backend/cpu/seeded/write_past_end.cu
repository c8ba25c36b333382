// The guard is off by one.
__global__ void kernel(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef SOUND
    if (i < n)
#else
    if (i <= n)
#endif
        out[i] = 1.0f;  // fault
}
