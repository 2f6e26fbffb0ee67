// embedding kernel: as in gated_act.cuh a block takes a stretch of the output's vectors, counted over all rows. Elements
// are moved, not computed with: one kernel serves every dtype of 2 bytes.
#pragma once

#include "astrai/fused_ops.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"

namespace astrai {

constexpr int kEmbeddingThreads = 128;

// kVecs vectors of kVecLen elements a thread, kEmbeddingThreads apart.
template <int kVecLen, int kVecs>
__global__ void __launch_bounds__(kEmbeddingThreads) embedding_kernel(const EmbeddingArgs args) {
  using Group = Vec<uint16_t, kVecLen>;
  const int n_vecs = args.row_len / kVecLen;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kEmbeddingThreads * kVecs);
  const int64_t first_row = first / n_vecs;
  const int first_in_rows = static_cast<int>(first - first_row * n_vecs) + static_cast<int>(threadIdx.x);
  wait_for_previous_kernel();
  let_next_kernel_start();

  // Each kind of load for all vectors before the next kind: ids, table rows, then the stores.
  int64_t rows[kVecs], ids[kVecs];
  int ats[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = first_in_rows + i * kEmbeddingThreads;
    rows[i] = first_row + at / n_vecs;
    ats[i] = at % n_vecs;
    ids[i] = 0;
    if (rows[i] >= args.n_rows) continue;
    ids[i] = args.ids_are_64_bit ? static_cast<const int64_t*>(args.ids)[rows[i]]
                                 : static_cast<const int32_t*>(args.ids)[rows[i]];
  }
  Group groups[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    if (rows[i] >= args.n_rows) continue;
    if (ids[i] < 0 || ids[i] >= args.n_table_rows) __trap();  // foreign memory would pass as an embedding
    groups[i] = reinterpret_cast<const Group*>(args.table + ids[i] * args.table_stride)[ats[i]];
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    if (rows[i] < args.n_rows) reinterpret_cast<Group*>(args.out + rows[i] * args.out_stride)[ats[i]] = groups[i];
  }
}

}  // namespace astrai
