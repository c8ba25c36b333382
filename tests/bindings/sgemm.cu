// A kernel as people have it: its own names, its own order, leading dimensions; nothing in it knows of cuplate.
// C <- alpha * A @ B, row-major.
extern "C" __global__ void sgemm_nn(int m, int n, int k, float alpha, const float *A, int lda, const float *B, int ldb,
                                    float *C, long long ldc)
{
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    int i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= m || j >= n) return;
    float sum = 0.0f;
    for (int p = 0; p < k; ++p) sum += A[(size_t)i * lda + p] * B[(size_t)p * ldb + j];
    C[i * ldc + j] = alpha * sum;
}
