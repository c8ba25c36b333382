// Bytes: the last word is taken whole.
__global__ void kernel(const unsigned char* a, unsigned char* out, int n)
{
    const int begin = threadIdx.x * 4;
#ifdef SOUND
    for (int k = begin; k < begin + 4 && k < n; ++k)
#else
    for (int k = begin; k < begin + 4; ++k)
#endif
        out[k] = a[k];  // fault
}
