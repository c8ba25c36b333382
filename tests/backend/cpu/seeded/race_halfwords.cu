// The same for two bytes, in an array of the caller.
__global__ void kernel(unsigned short* a)
{
    const int i = threadIdx.x;
    const unsigned short x = a[i];  // other
#ifdef SOUND
    a[i] = x + 1;
#else
    a[i ^ 1] = x + 1;  // fault
#endif
}
