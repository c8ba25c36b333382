// One thread of each block adds to one element.
__global__ void kernel(const float* a, float* sum)
{
#ifdef SOUND
    if (threadIdx.x == 0) atomicAdd(sum, a[blockIdx.x]);
#else
    if (threadIdx.x == 0) *sum += a[blockIdx.x];  // fault other
#endif
}
