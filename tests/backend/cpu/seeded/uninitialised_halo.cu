// The tile's edge is not loaded.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float tile[66];
    tile[threadIdx.x + 1] = a[threadIdx.x];
#ifdef SOUND
    if (threadIdx.x < 2) tile[threadIdx.x * 65] = 0.0f;
#endif
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x] + tile[threadIdx.x + 2];  // fault
}
