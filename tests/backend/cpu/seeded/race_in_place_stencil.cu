// In place within one block.
__global__ void kernel(float* a, int n)
{
    const int i = threadIdx.x;
    const float left = i > 0 ? a[i - 1] : 0.0f;  // fault
#ifdef SOUND
    __syncthreads();
#endif
    a[i] += left;  // other
}
