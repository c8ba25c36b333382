// The warp reduction of before Volta: volatile instead of __syncwarp.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float part[64];
    const int i = threadIdx.x;
    part[i] = a[i];
    part[i + 32] = a[i + 32];
    __syncthreads();
#ifdef SOUND
    for (int step = 32; step > 0; step /= 2) {
        const float x = part[i] + part[i + step];
        __syncwarp();
        part[i] = x;
        __syncwarp();
    }
#else
    volatile float* v = part;
    v[i] += v[i + 32];  // other
    v[i] += v[i + 16];
    v[i] += v[i + 8];
    v[i] += v[i + 4];
    v[i] += v[i + 2];
    v[i] += v[i + 1];  // fault
#endif
    if (i == 0) out[0] = part[0];
}
