// The caller's input is overwritten through a cast.
__global__ void kernel(const float* a, float* out)
{
    const int i = threadIdx.x;
    out[i] = a[i];
#ifndef SOUND
    const_cast<float*>(a)[i] = 0.0f;  // fault
#endif
}
