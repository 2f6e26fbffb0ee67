// Kernels for AVX2 with FMA. The target attribute is on each function, not on the file, so that inline functions of the
// standard library are compiled for the baseline wherever they end up.
#include "cpu/kernels.h"

#ifdef ASTRAI_X86_KERNELS
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "astrai/cpu_attention.h"
#include "cpu/bf16.h"

#define ASTRAI_TARGET __attribute__((target("avx2,fma")))

namespace astrai {
namespace avx2 {
namespace {

constexpr int kLanes = 8;
typedef __m256 Vec;
ASTRAI_TARGET inline Vec fused_multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

#include "cpu/vec.inl"
// What follows needs it.
#include "cpu/attention.inl"
#include "cpu/linear.inl"
#include "cpu/rowwise.inl"

}  // namespace
}  // namespace avx2

const CpuKernels kAvx2Kernels = {
    avx2::kLinearFloat32, avx2::kLinearBFloat16, avx2::kLinearBFloat16,
    avx2::kTypedKernels<float>, avx2::kTypedKernels<uint16_t>,
};

}  // namespace astrai
#endif  // ASTRAI_X86_KERNELS
