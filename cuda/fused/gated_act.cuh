// silu_mul and gelu_mul kernels: a block takes a stretch of the output's vectors, counted over all rows, so that rows of
// any length fill it.
#pragma once

#include "astrai/fused_ops.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"

namespace astrai {

constexpr int kGatedActThreads = 256;

enum class GatedAct { kSilu, kGelu };

// x * sigmoid(z): z is x itself for SiLU. The tanh of GELU is a sigmoid too: (1 + tanh(u)) / 2 = sigmoid(2 u).
template <GatedAct kAct>
__device__ __forceinline__ float activate(float x) {
  constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
  const float z = kAct == GatedAct::kSilu ? x : kTwoSqrtTwoOverPi * (x + 0.044715f * x * x * x);
  return x / (1.0f + __expf(-z));
}

// kVecLen elements at a time: 8 when every row is on 16 bytes and a whole number of them, else 1.
template <typename T, GatedAct kAct, int kVecLen>
__global__ void __launch_bounds__(kGatedActThreads) gated_act_kernel(const GatedActArgs args) {
  using Group = Vec<T, kVecLen>;
  const int n_vecs = args.row_len / kVecLen;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGatedActThreads;
  const int64_t first_row = first / n_vecs;
  const int at_in_rows = static_cast<int>(first - first_row * n_vecs) + static_cast<int>(threadIdx.x);
  const int64_t row = first_row + at_in_rows / n_vecs;
  const int at = at_in_rows % n_vecs;
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (row >= args.n_rows) return;

  const T* gate_row = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
  const Group gate = reinterpret_cast<const Group*>(gate_row)[at];
  const Group up = reinterpret_cast<const Group*>(gate_row + args.row_len)[at];
  Group result;
#pragma unroll
  for (int e = 0; e < kVecLen; ++e) {
    result.elements[e] = from_float<T>(activate<kAct>(to_float(gate.elements[e])) * to_float(up.elements[e]));
  }
  reinterpret_cast<Group*>(static_cast<T*>(args.out) + row * args.out_stride)[at] = result;
}

}  // namespace astrai
