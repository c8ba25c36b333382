// Through a pointer, where the array's type is not seen.
__device__ __noinline__ float last(const float* values, int n)
{
#ifdef SOUND
    return values[n - 1];
#else
    return values[n];  // fault
#endif
}
__global__ void kernel(const float* a, float* out, int n)
{
    __shared__ float line[64];
    line[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = last(line, n);
}
