// The sum is read before all have added.
__global__ void kernel(const int* a, int* out)
{
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, a[threadIdx.x]);  // other
#ifdef SOUND
    __syncthreads();
#endif
    out[threadIdx.x] = sum;  // fault
}
