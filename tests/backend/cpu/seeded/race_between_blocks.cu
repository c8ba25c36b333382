// In place across blocks, which no barrier can make sound.
__global__ void kernel(const float* a, float* b, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    b[i] = a[i];  // other
    __syncthreads();
#ifdef SOUND
    out[i] = b[i];
#else
    out[i] = b[i > 0 ? i - 1 : 0];  // fault
#endif
}
