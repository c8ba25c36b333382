// A width of nought.
__global__ void kernel(const int* a, int* out, int width)
{
#ifdef SOUND
    out[threadIdx.x] = width ? a[threadIdx.x] / width : 0;
#else
    out[threadIdx.x] = a[threadIdx.x] / width;  // fault
#endif
}
