// A C++ function template: the binding names the instance that it wants.
template <int tile>
__global__ void __launch_bounds__(tile * tile)
sgemm(float* __restrict__ out, const float* __restrict__ a, const float* __restrict__ b, int M, int N, int K)
{
    __shared__ float a_tile[tile][tile], b_tile[tile][tile];
    const int column = blockIdx.x * tile + threadIdx.x, row = blockIdx.y * tile + threadIdx.y;
    float value = 0;
    for (int k = 0; k < K; k += tile) {
        const int a_column = k + threadIdx.x, b_row = k + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = row < M && a_column < K ? a[(size_t)row * K + a_column] : 0;
        b_tile[threadIdx.y][threadIdx.x] = b_row < K && column < N ? b[(size_t)b_row * N + column] : 0;
        __syncthreads();
        for (int i = 0; i < tile; ++i) value += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
        __syncthreads();
    }
    if (row < M && column < N) out[(size_t)row * N + column] = value;
}
