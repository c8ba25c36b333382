// The array is in a function template, one per instance.
template <class T, int N>
__device__ T spread(T value)
{
    __shared__ T box[N];
    T* p = box;
#ifdef SOUND
    if (threadIdx.x < N) p[threadIdx.x] = value;
#else
    p[threadIdx.x] = value;  // fault
#endif
    __syncthreads();
    return box[0];
}
__global__ void kernel(const float* a, float* out)
{
    const float x = spread<float, 16>(a[threadIdx.x]);
    if (threadIdx.x == 0) out[0] = x;
}
