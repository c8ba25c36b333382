// memcpy by count of elements of the wrong array.
__global__ void kernel(const int* a, int* out, int n)
{
    __shared__ int line[32];
#ifdef SOUND
    n = n < 32 ? n : 32;
#endif
    if (threadIdx.x == 0) memcpy(line, a, n * sizeof(int));  // fault
    __syncthreads();
    out[threadIdx.x] = line[threadIdx.x];
}
