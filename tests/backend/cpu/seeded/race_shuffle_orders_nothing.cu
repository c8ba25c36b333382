// A shuffle exchanges registers; it is no barrier for memory.
__global__ void kernel(const int* a, int* out)
{
    __shared__ int part[32];
    const int i = threadIdx.x;
    part[i] = a[i];  // other
    const int x = __shfl_xor_sync(0xffffffffu, a[i], 1);
#ifdef SOUND
    __syncwarp();
#endif
    out[i] = x + part[i ^ 1];  // fault
}
