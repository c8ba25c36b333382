// A table in device memory.
__device__ float table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__global__ void kernel(const float* a, float* out)
{
    const float* p = table;
#ifdef SOUND
    out[threadIdx.x] = p[threadIdx.x % 8];
#else
    out[threadIdx.x] = p[threadIdx.x];  // fault
#endif
    if (a[0] < 0.0f) table[0] = a[0];
}
