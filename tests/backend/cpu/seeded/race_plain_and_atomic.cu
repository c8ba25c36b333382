// The counter is set while others count already.
__global__ void kernel(const int* a, int* out)
{
    __shared__ int count;
#ifdef SOUND
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
#else
    if (threadIdx.x == 0) count = 0;  // other
#endif
    if (a[threadIdx.x] > 0) atomicAdd(&count, 1);  // fault
    __syncthreads();
    if (threadIdx.x == 0) out[0] = count;
}
