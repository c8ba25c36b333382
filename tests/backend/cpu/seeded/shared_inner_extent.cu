// Past the end of a row of a shared tile, which is the next row.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float tile[8][8];
    const int x = threadIdx.x, y = threadIdx.y;
    tile[y][x] = a[y * 8 + x];
    __syncthreads();
#ifdef SOUND
    out[y * 8 + x] = tile[y][(x + 1) % 8];
#else
    out[y * 8 + x] = tile[y][x + 1];  // fault
#endif
}
