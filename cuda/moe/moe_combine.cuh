// moe_combine kernel: a thread sums 8 columns of a row over the row's experts.
#pragma once

#include "astrai/moe_ops.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"

namespace astrai {

constexpr int kMoeCombineThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kMoeCombineThreads) moe_combine_kernel(const MoeCombineArgs args) {
  using Group = Vec<T, 8>;
  const int n_vecs = args.row_len / 8;
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kMoeCombineThreads + threadIdx.x;
  const int64_t row = place / n_vecs;
  const int at = static_cast<int>(place % n_vecs);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (row >= args.n_rows) return;

  const int64_t pair = row * args.n_active;
  const Group* parts = static_cast<const Group*>(args.parts) + pair * n_vecs + at;
  float sums[8] = {};
  for (int j = 0; j < args.n_active; ++j) {
    const float weight = args.weights[pair + j];
    const Group part = parts[static_cast<int64_t>(j) * n_vecs];
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[e] = fmaf(weight, to_float(part.elements[e]), sums[e]);
  }
  Group result;
#pragma unroll
  for (int e = 0; e < 8; ++e) result.elements[e] = from_float<T>(sums[e]);
  static_cast<Group*>(args.out)[row * n_vecs + at] = result;
}

}  // namespace astrai
