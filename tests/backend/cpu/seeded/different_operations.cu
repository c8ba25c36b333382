// Lanes of one mask meet in two operations.
__global__ void kernel(const int* a, int* out)
{
    int x = a[threadIdx.x];
#ifdef SOUND
    x = __shfl_xor_sync(0xffffffffu, x, 1);
#else
    if (threadIdx.x < 16) x = __shfl_xor_sync(0xffffffffu, x, 1);  // other
    else x = __ballot_sync(0xffffffffu, x);  // fault
#endif
    out[threadIdx.x] = x;
}
