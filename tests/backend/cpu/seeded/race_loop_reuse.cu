// The second barrier of a tile loop is missing: the next tile overwrites one that is still being read.
__global__ void kernel(const float* a, float* out, int tiles)
{
    __shared__ float tile[64];
    float sum = 0.0f;
    for (int t = 0; t < tiles; ++t) {
        tile[threadIdx.x] = a[t * 64 + threadIdx.x];  // fault
        __syncthreads();
        sum += tile[63 - threadIdx.x];  // other
#ifdef SOUND
        __syncthreads();
#endif
    }
    out[threadIdx.x] = sum;
}
