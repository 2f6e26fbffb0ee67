// The operations of a decoder between its matrix products, on the CPU. Each takes any number of rows and is one pass
// over them; a row's result depends on that row alone, to the bit.
// x, residual, gate_up and out are all float32 or all bfloat16; arithmetic is float32 and rounded once at the end.
// Thread safe: calls from several threads take turns at the pool. The tensors' memory is the caller's; nothing is kept.
// Tensors are contiguous unless it says otherwise. Throws std::invalid_argument naming the argument that does not fit.
#pragma once

#include <optional>

#include "astrai/cpu_isa.h"
#include "astrai/tensor_view.h"

namespace astrai {

class ThreadPool;

// out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019).
//   x, out    [T, N]; out may be x
//   weight    [N] of the same dtype
//   residual  [T, N]: becomes residual + x, rounded to its dtype, and that sum is what is normalised
void cpu_rms_norm(const TensorView& x, const TensorView& weight, const TensorView& out, float eps,
                  const std::optional<TensorView>& residual, CpuIsa isa, ThreadPool& pool);

// out[t, i] = silu(gate) * up, where gate_up[t] is N gates followed by N ups; silu(g) = g / (1 + exp(-g)).
//   gate_up [T, 2N], out [T, N]
void cpu_silu_mul(const TensorView& gate_up, const TensorView& out, CpuIsa isa, ThreadPool& pool);

// The same with gelu(g) = g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) (Hendrycks and Gimpel, GELUs, 2016).
void cpu_gelu_mul(const TensorView& gate_up, const TensorView& out, CpuIsa isa, ThreadPool& pool);

// Rotates neighbouring pairs: out[2i] = x[2i] cos - x[2i+1] sin, out[2i+1] = x[2i] sin + x[2i+1] cos
// (Su et al., RoFormer, 2021, eq. 34).
//   x      [T, H, D], any stride from token to token, contiguous inside
//   freqs  [T, D/2, 2] float32: cos and sin of each pair
//   out    [T, H, D] contiguous; may be x where that is contiguous
void cpu_rotary_emb(const TensorView& x, const TensorView& freqs, const TensorView& out, ThreadPool& pool);

}  // namespace astrai
