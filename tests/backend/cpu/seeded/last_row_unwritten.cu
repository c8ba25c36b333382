// The loop ends one row early.
__global__ void kernel(const float* a, float* out, int rows, int columns)
{
    const int x = threadIdx.x;
#ifdef SOUND
    for (int y = 0; y < rows; ++y)
#else
    for (int y = 0; y < rows - 1; ++y)
#endif
        out[y * columns + x] = a[y * columns + x];
}
