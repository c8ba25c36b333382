// The source lane has returned already.
__global__ void kernel(const int* a, int* out)
{
    const int lane = threadIdx.x;
    out[lane] = 0;
    if (lane >= 16) return;
#ifdef SOUND
    out[lane] = __shfl_down_sync(0x0000ffffu, a[lane], 8, 16);
#else
    out[lane] = __shfl_down_sync(0xffffffffu, a[lane], 8);  // fault
#endif
}
