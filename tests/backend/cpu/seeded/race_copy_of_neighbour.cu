// memcpy reads what another thread has just written.
__global__ void kernel(const int* a, int* out)
{
    __shared__ int line[64];
    const int i = threadIdx.x;
    line[i] = a[i];  // other
#ifdef SOUND
    __syncthreads();
#endif
    if (i == 63) memcpy(out, line, 64 * sizeof(int));  // fault
}
