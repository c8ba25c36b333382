// Every thread writes, but the ticket is drawn without waiting for them.
__global__ void kernel(const float* a, float* parts, unsigned* tickets, float* out)
{
    __shared__ bool last;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    parts[i] = a[i];  // other
#ifdef SOUND
    __syncthreads();
#endif
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last) {
        float sum = 0.0f;
        for (unsigned k = threadIdx.x; k < gridDim.x * blockDim.x; k += blockDim.x) sum += parts[k];  // fault
        out[threadIdx.x] = sum;
    }
}
