// The row is scaled by the count of rows instead of columns.
__global__ void kernel(const float* a, float* out, int rows, int columns)
{
    const int x = threadIdx.x, y = threadIdx.y;
#ifdef SOUND
    const int i = y * columns + x;
#else
    const int i = y * rows + x;
#endif
    out[y * columns + x] = a[i];  // fault
}
