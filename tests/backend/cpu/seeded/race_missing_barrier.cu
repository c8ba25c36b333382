// Read a neighbour's element without waiting for it.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float line[64];
    const int i = threadIdx.x;
    line[i] = a[i];  // other
#ifdef SOUND
    __syncthreads();
#endif
    out[i] = line[i / 2];  // fault
}
