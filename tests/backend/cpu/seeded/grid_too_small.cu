// One element a thread, but fewer threads than elements.
__global__ void kernel(const float* a, float* out, int n)
{
#ifdef SOUND
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = a[i];
#else
    const int i = threadIdx.x;
    if (i < n) out[i] = a[i];
#endif
}
