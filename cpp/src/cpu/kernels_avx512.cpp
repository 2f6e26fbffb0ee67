// Kernels for AVX-512 as every server processor with it has: F, BW, DQ and VL.
#include "cpu/kernels.h"

#ifdef ASTRAI_X86_KERNELS
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "astrai/cpu_attention.h"
#include "cpu/bf16.h"

#define ASTRAI_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))

namespace astrai {
namespace avx512 {
namespace {

constexpr int kLanes = 16;
typedef __m512 Vec;
ASTRAI_TARGET inline Vec fused_multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

#include "cpu/vec.inl"
// What follows needs it.
#include "cpu/attention.inl"
#include "cpu/linear.inl"
#include "cpu/rowwise.inl"

}  // namespace
}  // namespace avx512

const CpuKernels kAvx512Kernels = {
    avx512::kLinearFloat32, avx512::kLinearBFloat16, avx512::kLinearBFloat16,
    avx512::kTypedKernels<float>, avx512::kTypedKernels<uint16_t>,
};

}  // namespace astrai
#endif  // ASTRAI_X86_KERNELS
