// Linear layer for few rows on the CPU: the decode step of a language model, where reading the weights is the cost.
// Thread safe: calls from several threads take turns at the pool. The tensors' memory is the caller's; nothing is kept.
#pragma once

#include <cstdint>
#include <optional>

#include "astrai/cpu_isa.h"
#include "astrai/tensor_view.h"

namespace astrai {

class ThreadPool;

// The rows this kernel is made for: it holds no blocks of weights for reuse by more. Any number is accepted.
constexpr int64_t kCpuLinearMaxRows = 16;

// out[m, n] = sum over k of x[m, k] * weight[n, k] (+ bias[n]), accumulated in float32.
//   x       [M, K] float32 or bfloat16; float32 where weight is
//   weight  [N, K] float32 or bfloat16
//   out     [M, N] float32 or bfloat16; float32 where weight is. Overwritten; must not overlap the inputs
//   bias    [N]    float32 or bfloat16
// All contiguous, on the CPU; any alignment; M, N and K may be 0.
// A row of out depends on its row of x, weight and bias alone: not on M, the other rows or the number of threads, to
// the bit. (isa kAvx512Bf16 treats subnormal bfloat16 as zero when x and weight are bfloat16.)
// Throws std::invalid_argument naming the argument when a shape, dtype, device or stride is not as above.
void cpu_linear(const TensorView& x, const TensorView& weight, const TensorView& out,
                const std::optional<TensorView>& bias, CpuIsa isa, ThreadPool& pool);

}  // namespace astrai
