// The mask orders each half of the warp, not the two.
__global__ void kernel(const int* a, int* out)
{
    __shared__ int part[32];
    const int i = threadIdx.x;
    part[i] = a[i];  // other
#ifdef SOUND
    __syncwarp();
#else
    __syncwarp(i < 16 ? 0x0000ffffu : 0xffff0000u);
#endif
    out[i] = part[31 - i];  // fault
}
