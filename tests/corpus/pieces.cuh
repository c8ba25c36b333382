// Beside the template that includes it.
#pragma once

template <int n, class T>
__device__ T power(T x)
{
    T result(1);
    #pragma unroll
    for (int i = 0; i < n; ++i) result *= x;
    return result;
}
