// The last block adds up what the others wrote; without a fence the ticket may overtake it.
__global__ void kernel(const float* a, float* parts, unsigned* tickets, float* out)
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = a[blockIdx.x];  // other
#ifdef SOUND
        __threadfence();
#endif
        last = atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0.0f;
        for (unsigned k = 0; k < gridDim.x; ++k) sum += parts[k];  // fault
        out[0] = sum;
    }
}
