// embedding kernel: as in gated_act.cuh a block takes a stretch of the output's vectors, counted over all rows. Elements
// are moved, not computed with: one kernel serves every dtype of 2 bytes.
#pragma once

#include "astrai/fused_ops.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"

namespace astrai {

constexpr int kEmbeddingThreads = 128;

template <int kVecLen>
__global__ void __launch_bounds__(kEmbeddingThreads) embedding_kernel(const EmbeddingArgs args) {
  using Group = Vec<uint16_t, kVecLen>;
  const int n_vecs = args.row_len / kVecLen;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kEmbeddingThreads;
  const int64_t first_row = first / n_vecs;
  const int at_in_rows = static_cast<int>(first - first_row * n_vecs) + static_cast<int>(threadIdx.x);
  const int64_t row = first_row + at_in_rows / n_vecs;
  const int at = at_in_rows % n_vecs;
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (row >= args.n_rows) return;

  const int64_t id = args.ids_are_64_bit ? static_cast<const int64_t*>(args.ids)[row]
                                         : static_cast<const int32_t*>(args.ids)[row];
  if (id < 0 || id >= args.n_table_rows) __trap();  // foreign memory would pass as an embedding
  const auto* from = reinterpret_cast<const Group*>(args.table + id * args.table_stride);
  reinterpret_cast<Group*>(args.out + row * args.out_stride)[at] = from[at];
}

}  // namespace astrai
