// The last warp of 40 threads has 8 lanes.
__global__ void kernel(const int* a, int* out)
{
    const int x = a[threadIdx.x];
#ifdef SOUND
    out[threadIdx.x] = __shfl_sync(0xffffffffu, x, 0);
#else
    out[threadIdx.x] = __shfl_sync(0xffffffffu, x, 12);  // fault
#endif
}
