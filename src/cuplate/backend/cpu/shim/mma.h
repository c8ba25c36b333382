// Warp matrix operations (nvcuda::wmma) on half, bfloat16, 8-bit integers, tf32 and double.
//
// Which lane holds which element is unspecified in CUDA; here lane l holds the elements l*n .. l*n + n - 1 in
// row-major
// order, n of them. Fragments have as many elements as on a GPU, where some hold the same matrix element twice; so do
// these. Products are exact, sums are formed in double and rounded once: a GPU's own order of additions is
// unspecified.
#ifndef CUPLATE_MMA_H
#define CUPLATE_MMA_H

#include "cuda_bf16.h"
#include "cuplate_copies.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

namespace details {

template <class T>
struct element {
    typedef T type;
};
template <>
struct element<precision::tf32> {
    typedef float type;
};

// Shapes that exist, by what is multiplied.
template <class T, int M, int N, int K>
struct is_shape {
    static constexpr bool wide = K == 16 && ((M == 16 && N == 16) || (M == 32 && N == 8) || (M == 8 && N == 32));
    static constexpr bool value = wide;
};
template <int M, int N, int K>
struct is_shape<precision::tf32, M, N, K> {
    static constexpr bool value = M == 16 && N == 16 && K == 8;
};
template <int M, int N, int K>
struct is_shape<double, M, N, K> {
    static constexpr bool value = M == 8 && N == 8 && K == 4;
};
// An accumulator belongs to any of them.
template <class T, int M, int N, int K>
struct is_accumulator_shape {
    static constexpr bool value = is_shape<__half, M, N, K>::value || is_shape<precision::tf32, M, N, K>::value;
};
template <int M, int N, int K>
struct is_accumulator_shape<double, M, N, K> : is_shape<double, M, N, K> {};

template <class T>
struct is_operand {
    static constexpr bool value = false;
};
template <class T>
struct is_result {
    static constexpr bool value = false;
};
#define CUPLATE_WMMA_TYPE(WHICH, TYPE)                                                             \
    template <>                                                                                    \
    struct WHICH<TYPE> {                                                                           \
        static constexpr bool value = true;                                                        \
    };
CUPLATE_WMMA_TYPE(is_operand, __half)
CUPLATE_WMMA_TYPE(is_operand, __nv_bfloat16)
CUPLATE_WMMA_TYPE(is_operand, signed char)
CUPLATE_WMMA_TYPE(is_operand, unsigned char)
CUPLATE_WMMA_TYPE(is_operand, precision::tf32)
CUPLATE_WMMA_TYPE(is_operand, double)
CUPLATE_WMMA_TYPE(is_result, __half)
CUPLATE_WMMA_TYPE(is_result, float)
CUPLATE_WMMA_TYPE(is_result, int)
CUPLATE_WMMA_TYPE(is_result, double)
#undef CUPLATE_WMMA_TYPE

// Elements of one lane: `Own` distinct ones, in `Count` places.
template <class T, int Own, int Count>
struct storage {
    enum { num_elements = Count, num_storage_elements = Count };
    typedef T element_type;
    typedef T storage_element_type;
    static constexpr int own = Own;
    T x[Count];
};

template <class T>
struct places {
    static constexpr int of(int own) { return own; }
};
template <>
struct places<__half> {
    static constexpr int of(int) { return 16; }
};

}  // namespace details

template <class Use, int M, int N, int K, class T, class Layout = void>
class fragment;

#define CUPLATE_FRAGMENT(USE, ROWS, COLUMNS)                                                       \
    template <int M, int N, int K, class T, class Layout>                                          \
    class fragment<USE, M, N, K, T, Layout>                                                        \
        : public details::storage<typename details::element<T>::type, (ROWS) * (COLUMNS) / 32,     \
                                  details::places<T>::of((ROWS) * (COLUMNS) / 32)> {               \
        static_assert(details::is_operand<T>::value && details::is_shape<T, M, N, K>::value,       \
                      "no such matrix fragment: see the table of types and shapes in the CUDA C++ guide"); \
                                                                                                   \
      public:                                                                                      \
        static constexpr int rows = ROWS, columns = COLUMNS;                                       \
    };
CUPLATE_FRAGMENT(matrix_a, M, K)
CUPLATE_FRAGMENT(matrix_b, K, N)
#undef CUPLATE_FRAGMENT
template <int M, int N, int K, class T>
class fragment<accumulator, M, N, K, T, void> : public details::storage<T, M * N / 32, M * N / 32> {
    static_assert(details::is_result<T>::value && details::is_accumulator_shape<T, M, N, K>::value,
                  "no such accumulator fragment: see the table of types and shapes in the CUDA C++ guide");

  public:
    static constexpr int rows = M, columns = N;
};

namespace details {

template <class Layout>
struct is_row_major {
    static constexpr bool value = false;
};
template <>
struct is_row_major<row_major> {
    static constexpr bool value = true;
};

template <class Fragment>
CUPLATE_SHIM size_t offset(int place, unsigned stride, bool by_rows) {
    unsigned index = ::cuplate::lane() * Fragment::own + (unsigned)(place % Fragment::own);
    unsigned row = index / Fragment::columns, column = index % Fragment::columns;
    return by_rows ? (size_t)row * stride + column : (size_t)column * stride + row;
}
template <class Fragment, class T>
CUPLATE_SHIM void load(Fragment& fragment, const T* from, unsigned stride, bool by_rows, ::cuplate::Site site) {
    ::cuplate::cuplate_rendezvous(~0u, 0, ::cuplate::OP_COLLECTIVE, site);
    for (int e = 0; e < Fragment::own; ++e) {
        fragment.x[e] = ::cuplate::fetched(from + offset<Fragment>(e, stride, by_rows), site);
    }
    for (int e = Fragment::own; e < Fragment::num_elements; ++e) fragment.x[e] = fragment.x[e % Fragment::own];
}

template <class T>
CUPLATE_SHIM double factor(T value) { return (double)(float)value; }
CUPLATE_SHIM double factor(double value) { return value; }
// tf32 keeps 10 digits after the point; the hardware ignores the others.
template <class T>
CUPLATE_SHIM double operand(typename element<T>::type value) { return factor(value); }
template <>
inline double operand<precision::tf32>(float value) {
    return (double)__uint_as_float(__float_as_uint(value) & 0xffffe000u);
}

template <class T>
CUPLATE_SHIM T rounded(double sum, bool) { return T(sum); }
// Integers wrap, unless they are asked to saturate.
template <>
inline int rounded<int>(double sum, bool saturate) {
    if (saturate) return __double2int_rz(sum);
    return (int)(unsigned int)(long long)sum;
}

}  // namespace details

template <class Use, int M, int N, int K, class T, class Layout, class Value>
CUPLATE_SHIM void fill_fragment(fragment<Use, M, N, K, T, Layout>& a, const Value& value) {
    typedef typename fragment<Use, M, N, K, T, Layout>::element_type element_type;
    for (int e = 0; e < a.num_elements; ++e) a.x[e] = static_cast<element_type>(value);
}

template <class Use, int M, int N, int K, class T, class Layout>
CUPLATE_SHIM void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& a,
                                   const typename details::element<T>::type* from, unsigned stride, CUPLATE_SITE) {
    details::load(a, from, stride, details::is_row_major<Layout>::value, site);
}
template <int M, int N, int K, class T>
CUPLATE_SHIM void load_matrix_sync(fragment<accumulator, M, N, K, T>& a, const T* from, unsigned stride, layout_t layout,
                                   CUPLATE_SITE) {
    details::load(a, from, stride, layout == mem_row_major, site);
}
template <int M, int N, int K, class T>
CUPLATE_SHIM void store_matrix_sync(T* to, const fragment<accumulator, M, N, K, T>& a, unsigned stride, layout_t layout,
                                    CUPLATE_SITE) {
    typedef fragment<accumulator, M, N, K, T> Fragment;
    ::cuplate::cuplate_rendezvous(~0u, 0, ::cuplate::OP_COLLECTIVE, site);
    for (int e = 0; e < Fragment::num_elements; ++e) {
        ::cuplate::stored(to + details::offset<Fragment>(e, stride, layout == mem_row_major), a.x[e], site);
    }
}

// d = a*b + c, by all 32 lanes: each shows the others its fragments, and works out its own elements of d.
template <int M, int N, int K, class TA, class LA, class TB, class LB, class TC, class TD>
CUPLATE_SHIM void mma_sync(fragment<accumulator, M, N, K, TD>& d, const fragment<matrix_a, M, N, K, TA, LA>& a,
                           const fragment<matrix_b, M, N, K, TB, LB>& b, const fragment<accumulator, M, N, K, TC>& c,
                           bool saturate = false, CUPLATE_SITE) {
    static_assert(sizeof(TA) == sizeof(TB), "both matrices are of one type");
    typedef fragment<matrix_a, M, N, K, TA, LA> A;
    typedef fragment<matrix_b, M, N, K, TB, LB> B;
    typedef fragment<accumulator, M, N, K, TD> D;
    static_assert(N % D::own == 0, "a lane's elements lie in one row of the result");
    int first = (int)::cuplate::lane() * D::own, row = first / N, column = first % N;

    double left[K];
    unsigned present = ::cuplate::cuplate_rendezvous(~0u, (::cuplate::u64)&a, ::cuplate::OP_COLLECTIVE, site);
    for (int k = 0; k < K; ++k) {
        int index = row * K + k, l = index / A::own;
        const A* other = (present >> l) & 1u ? (const A*)::cuplate::brought()[l] : &a;
        left[k] = details::operand<TA>(other->x[index % A::own]);
    }
    double sums[D::own];
    for (int e = 0; e < D::own; ++e) sums[e] = (double)c.x[e];
    present = ::cuplate::cuplate_rendezvous(~0u, (::cuplate::u64)&b, ::cuplate::OP_COLLECTIVE, site);
    for (int k = 0; k < K; ++k) {
        for (int e = 0; e < D::own; ++e) {
            int index = k * N + column + e, l = index / B::own;
            const B* other = (present >> l) & 1u ? (const B*)::cuplate::brought()[l] : &b;
            sums[e] += left[k] * details::operand<TB>(other->x[index % B::own]);
        }
    }
    D result;
    for (int e = 0; e < D::own; ++e) result.x[e] = details::rounded<TD>(sums[e], saturate);
    // No lane may change its fragments while another still reads them.
    ::cuplate::cuplate_rendezvous(~0u, 0, ::cuplate::OP_COLLECTIVE, site);
    d = result;
}

CUPLATE_SHIM float __float_to_tf32(float value) {
    unsigned bits = __float_as_uint(value);
    return value == value ? __uint_as_float((bits + 0x1000u) & 0xffffe000u) : value;
}

}  // namespace wmma
}  // namespace nvcuda
#endif
