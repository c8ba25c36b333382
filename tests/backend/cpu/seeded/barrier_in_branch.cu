// Half of the block waits for a barrier that the other half meets elsewhere.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float line[64];
    line[threadIdx.x] = a[threadIdx.x];
#ifdef SOUND
    __syncthreads();
    out[threadIdx.x] = threadIdx.x < 32 ? line[0] : line[1];
#else
    if (threadIdx.x < 32) {
        __syncthreads();  // other
        out[threadIdx.x] = line[0];
    } else {
        __syncthreads();  // fault
        out[threadIdx.x] = line[1];
    }
#endif
}
