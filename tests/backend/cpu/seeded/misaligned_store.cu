// The same for a store.
__global__ void kernel(const float* a, float* out, int begin)
{
#ifdef SOUND
    begin = begin / 2 * 2;
#endif
    float2 x = make_float2(a[0], a[1]);
    *reinterpret_cast<float2*>(out + begin) = x;  // fault
}
