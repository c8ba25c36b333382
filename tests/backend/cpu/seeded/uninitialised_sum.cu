// Shared memory is not zero at the start.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float line[64];
#ifdef SOUND
    line[threadIdx.x] = 0.0f;
#endif
    for (int k = 0; k < 4; ++k) line[threadIdx.x] += a[threadIdx.x];  // fault
    out[threadIdx.x] = line[threadIdx.x];
}
