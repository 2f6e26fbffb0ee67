// Kernels for AVX-512 with the bfloat16 dot product (Cooper Lake, Sapphire Rapids, Zen 4 and later): one instruction
// multiplies 32 pairs and adds them to 16 float32 sums.
#include "cpu/kernels.h"

#ifdef ASTRAI_X86_KERNELS
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "astrai/cpu_attention.h"
#include "cpu/bf16.h"

#define ASTRAI_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))

namespace astrai {
namespace avx512bf16 {
namespace {

constexpr int kLanes = 16;
typedef __m512 Vec;
ASTRAI_TARGET inline Vec fused_multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

#include "cpu/vec.inl"
// What follows needs it.
#include "cpu/attention.inl"
#include "cpu/linear.inl"
#include "cpu/rowwise.inl"

// bfloat16 weights and bfloat16 x, both in order.
struct BFloat16PairFormat {
  using Weight = uint16_t;
  using X = uint16_t;
  static constexpr int kStep = 2 * kLanes;
  using Loaded = __m512i;
  ASTRAI_INLINE static Loaded load_weight(const uint16_t* w) { return _mm512_loadu_si512(w); }
  ASTRAI_INLINE static Vec multiply_add(Loaded w, const uint16_t* x, Vec sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_loadu_si512(x));
  }
};

ASTRAI_TARGET inline void pack_bfloat16(const void* x, bool, int64_t m, int64_t k, int64_t stride, void* packed) {
  pack_in_order(x, m, k, stride, static_cast<uint16_t*>(packed));
}

constexpr LinearKernel kLinearBFloat16Pair = {BFloat16PairFormat::kStep, XLayout::kBFloat16, pack_bfloat16,
                                              linear_columns<BFloat16PairFormat>};

}  // namespace
}  // namespace avx512bf16

const CpuKernels kAvx512Bf16Kernels = {
    avx512bf16::kLinearFloat32, avx512bf16::kLinearBFloat16, avx512bf16::kLinearBFloat16Pair,
    avx512bf16::kTypedKernels<float>, avx512bf16::kTypedKernels<uint16_t>,
};

}  // namespace astrai
#endif  // ASTRAI_X86_KERNELS
