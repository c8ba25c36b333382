// All threads add to one element.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
#ifdef SOUND
    atomicAdd(&sum, a[threadIdx.x]);
#else
    sum += a[threadIdx.x];  // fault other
#endif
    __syncthreads();
    if (threadIdx.x == 0) out[0] = sum;
}
