// Kernels in 4-lane vectors without a target attribute: whatever the compiler's baseline is (SSE2 on x86-64, NEON on
// aarch64).
#include <cstdint>
#include <cstring>

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
// needs vec.inl
#include "cpu/linear.inl"

}  // namespace
}  // namespace portable

const CpuKernels kPortableKernels = {portable::kLinearFloat32, portable::kLinearBFloat16, portable::kLinearBFloat16};

}  // namespace astrai
