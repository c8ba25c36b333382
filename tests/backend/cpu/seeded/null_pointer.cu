// An optional argument that is not there.
__global__ void kernel(const float* bias, float* out)
{
    const int i = threadIdx.x;
#ifdef SOUND
    out[i] = bias ? bias[i] : 0.0f;
#else
    out[i] = bias[i];  // fault
#endif
}
