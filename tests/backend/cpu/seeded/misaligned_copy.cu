// From vector to vector, with nothing in between.
__global__ void kernel(const float* a, float* out, int begin)
{
#ifdef SOUND
    begin = begin / 4 * 4;
#endif
    *reinterpret_cast<int4*>(out) = *reinterpret_cast<const int4*>(a + begin);  // fault
}
