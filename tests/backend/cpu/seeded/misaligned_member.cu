// One member of a vector.
__global__ void kernel(const float* a, float* out, int begin)
{
    const float4* v = reinterpret_cast<const float4*>(a);
#ifdef SOUND
    out[threadIdx.x] = v->y;
#else
    v = reinterpret_cast<const float4*>(a + begin);
    out[threadIdx.x] = v->y;  // fault
#endif
}
