// Neighbouring bytes are apart; the same byte is not.
__global__ void kernel(const unsigned char* a, unsigned char* out)
{
    __shared__ unsigned char line[64];
    const int i = threadIdx.x;
    line[i] = a[i];  // other
#ifdef SOUND
    out[i] = line[i];
#else
    out[i] = line[i ^ 1];  // fault
#endif
}
