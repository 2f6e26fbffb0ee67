// Kernels in 4-lane vectors without a target attribute: whatever the compiler's baseline is (SSE2 on x86-64, NEON on
// aarch64).
#include <cmath>
#include <cstdint>
#include <cstring>

#include "astrai/cpu_attention.h"
#include "cpu/bf16.h"
#include "cpu/kernels.h"

#define ASTRAI_TARGET

namespace astrai {
namespace portable {
namespace {

constexpr int kLanes = 4;
typedef float Vec __attribute__((vector_size(4 * kLanes)));
inline Vec fused_multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }

#include "cpu/vec.inl"
// What follows needs it.
#include "cpu/attention.inl"
#include "cpu/linear.inl"
#include "cpu/rowwise.inl"

}  // namespace
}  // namespace portable

const CpuKernels kPortableKernels = {
    portable::kLinearFloat32, portable::kLinearBFloat16, portable::kLinearBFloat16,
    portable::kTypedKernels<float>, portable::kTypedKernels<uint16_t>,
};

}  // namespace astrai
