// The same by an atomic.
__global__ void kernel(const int* a, int* out)
{
#ifdef SOUND
    atomicAdd(out, a[threadIdx.x]);
#else
    atomicAdd((int*)a, 1);  // fault
    atomicAdd(out, a[threadIdx.x]);
#endif
}
