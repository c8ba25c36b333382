// A register array with one element too few.
__global__ void kernel(const float* a, float* out, int n)
{
#ifdef SOUND
    float acc[5];
#else
    float acc[4];
#endif
    for (int k = 0; k < n; ++k) acc[k] = a[threadIdx.x] * k;  // fault
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) sum += acc[k];
    out[threadIdx.x] = sum;
}
