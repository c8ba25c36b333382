// Shared memory does not last from one block to the next.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float scale;
#ifdef SOUND
    if (threadIdx.x == 0) scale = a[0];
#else
    if (threadIdx.x == 0 && blockIdx.x == 0) scale = a[0];
#endif
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = scale * a[i];  // fault
}
