// A counter that begins anywhere in bytes.
__global__ void kernel(unsigned char* a, int begin)
{
#ifdef SOUND
    begin = begin / 4 * 4;
#endif
    atomicAdd(reinterpret_cast<unsigned*>(a + begin), 1u);  // fault
}
