// Launched with room for half as many elements.
__global__ void kernel(const float* a, float* out)
{
    extern __shared__ float line[];
#ifdef SOUND
    const int i = threadIdx.x / 2;
    if (threadIdx.x % 2 == 0)
#else
    const int i = threadIdx.x;
#endif
        line[i] = a[i];  // fault
    __syncthreads();
    out[threadIdx.x] = line[0];
}
