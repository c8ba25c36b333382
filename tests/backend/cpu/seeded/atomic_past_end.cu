// A value that has no bin.
__global__ void kernel(const int* a, int* bins, int n)
{
    const int i = threadIdx.x;
#ifdef SOUND
    if (a[i] < n)
#endif
        atomicAdd(&bins[a[i]], 1);  // fault
}
