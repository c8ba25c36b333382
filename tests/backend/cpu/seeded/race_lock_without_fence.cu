// A lock keeps others out, but without fences they need not see what was done inside.
__global__ void kernel(const int* a, int* lock, int* sum)
{
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {
        }
#ifdef SOUND
        __threadfence();
#endif
        *sum += a[blockIdx.x];  // fault other
#ifdef SOUND
        __threadfence();
#endif
        atomicExch(lock, 0);
    }
}
