// Half a warp waits at the barrier, the other half for it in a shuffle.
__global__ void kernel(const int* a, int* out)
{
    int x = a[threadIdx.x];
#ifdef SOUND
    x += __shfl_down_sync(0xffffffffu, x, 1);
    __syncthreads();
#else
    if (threadIdx.x < 16) x += __shfl_down_sync(0xffffffffu, x, 1);  // fault
    __syncthreads();  // other
#endif
    out[threadIdx.x] = x;
}
