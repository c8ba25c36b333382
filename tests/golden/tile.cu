using T = float;
constexpr float half_value = 0.1f;

extern "C" __global__ void __launch_bounds__(256) f(const float* a, int N)
{
    __shared__ float a_tile[16][16];
    constexpr float weights[] = {0.25, 0.5};
    int row = blockIdx.y * 16 + threadIdx.y;
    double value = (-1.0/0.0);
    float4 a0 = {};
    // "a0"
    float4 a1 = {};
    // "a1"
    value = value > 0 ? value : 0;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; }" :: "r"({ row }[0]));
}
