// A function called twice reuses its shared array at once.
__device__ float total(float value)
{
    __shared__ float part[64];
    part[threadIdx.x] = value;  // fault
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < 64; ++k) sum += part[k];  // other
#ifdef SOUND
    __syncthreads();
#endif
    return sum;
}
__global__ void kernel(const float* a, float* out)
{
    const float x = total(a[threadIdx.x]);
    out[threadIdx.x] = total(x);
}
