// Dual numbers: a value and its derivative.
#pragma once
#include "real.cuh"

namespace algebra {

template <class T>
struct Dual {
    T value, slope;

    __host__ __device__ constexpr Dual(T value, T slope = 0) : value(value), slope(slope) {}

    __device__ Dual operator+(const Dual& o) const { return Dual(value + o.value, slope + o.slope); }
    __device__ Dual operator*(const Dual& o) const
    {
        // What is fused is said here: a sum of two products may be fused in two ways.
        return Dual(real::product(value, o.value), real::madd(value, o.slope, real::product(slope, o.value)));
    }
    __device__ Dual& operator*=(const Dual& o) { return *this = *this * o; }
};

}  // namespace algebra
