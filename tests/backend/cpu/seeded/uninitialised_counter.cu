// An atomic reads as well.
__global__ void kernel(const int* a, int* out)
{
    __shared__ int count;
#ifdef SOUND
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
#endif
    atomicAdd(&count, a[threadIdx.x]);  // fault
    __syncthreads();
    if (threadIdx.x == 0) out[0] = count;
}
