// A fresh output is not zero.
__global__ void kernel(const float* a, float* out)
{
    const int i = threadIdx.x;
#ifdef SOUND
    out[i] = a[i];
#else
    out[i] += a[i];  // fault
#endif
}
