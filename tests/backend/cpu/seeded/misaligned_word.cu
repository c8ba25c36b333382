// A word in the middle of bytes.
__global__ void kernel(const unsigned char* a, unsigned* out, int begin)
{
#ifdef SOUND
    begin = begin / 4 * 4;
#endif
    out[threadIdx.x] = *reinterpret_cast<const unsigned*>(a + begin);  // fault
}
