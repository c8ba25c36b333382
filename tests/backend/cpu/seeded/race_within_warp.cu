// A reduction of one warp that trusts in lockstep.
__global__ void kernel(const float* a, float* out)
{
    __shared__ float part[32];
    const int i = threadIdx.x;
    part[i] = a[i];  // other
    __syncwarp();
    for (int step = 16; step > 0; step /= 2) {
        float x = i < step ? part[i + step] : 0.0f;
#ifdef SOUND
        __syncwarp();
#endif
        if (i < step) part[i] += x;  // fault
#ifdef SOUND
        __syncwarp();
#endif
    }
    if (i == 0) out[0] = part[0];
}
