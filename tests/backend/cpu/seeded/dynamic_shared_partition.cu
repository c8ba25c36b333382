// The second part begins one element too late.
__global__ void kernel(const int* a, int* out, int n)
{
    extern __shared__ int parts[];
    int* first = parts;
#ifdef SOUND
    int* second = parts + n;
#else
    int* second = parts + n + 1;
#endif
    first[threadIdx.x] = a[threadIdx.x];
    second[threadIdx.x] = -a[threadIdx.x];  // fault
    __syncthreads();
    out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}
