// A float4 that begins at any float.
__global__ void kernel(const float* a, float* out, int begin)
{
#ifdef SOUND
    begin = begin / 4 * 4;
#endif
    const float4 x = *reinterpret_cast<const float4*>(a + begin);  // fault
    out[threadIdx.x] = x.x + x.w;
}
