// __syncwarp where __syncthreads is needed.
__global__ void kernel(const float* a, float* out)
{
    extern __shared__ float line[];
    const int i = threadIdx.x;
    line[i] = a[i];  // other
#ifdef SOUND
    __syncthreads();
#else
    __syncwarp();
#endif
    out[i] = line[(i + 32) % 64];  // fault
}
