// Four floats at a time, but n is no multiple of four.
__global__ void kernel(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float4* v = reinterpret_cast<const float4*>(a);
#ifdef SOUND
    const int count = n / 4;
#else
    const int count = (n + 3) / 4;
#endif
    if (i >= count) return;
    const float4 x = v[i];  // fault
    out[i] = x.x + x.y + x.z + x.w;
}
