// The caller is not in its own mask.
__global__ void kernel(const int* a, int* out)
{
#ifdef SOUND
    const unsigned mask = 0xffffffffu;
#else
    const unsigned mask = 0x0000ffffu;
#endif
    out[threadIdx.x] = __shfl_sync(mask, a[threadIdx.x], 0);  // fault
}
