// Every second byte is set.
__global__ void kernel(const unsigned char* a, unsigned char* out)
{
    extern __shared__ unsigned char bytes[];
#ifdef SOUND
    bytes[threadIdx.x] = a[threadIdx.x];
#else
    if (threadIdx.x % 2 == 0) bytes[threadIdx.x] = a[threadIdx.x];
#endif
    __syncthreads();
    out[threadIdx.x] = bytes[threadIdx.x];  // fault
}
