// The second kernel of top_logprobs: one thread block a row joins the chunks' sums and picks the first tokens.
#pragma once

#include "common/pdl.cuh"
#include "sampling/select.cuh"

namespace astrai {

constexpr float kLogprobFloor = -9999.0f;  // JSON has no -Infinity

template <typename T>
__global__ void __launch_bounds__(kRowThreads) top_logprobs_row_kernel(const TopLogprobsArgs args) {
  __shared__ RowScratch scratch;
  const int row = blockIdx.x;
  const int n_chunks = static_cast<int>(n_chunks_of(args.vocab_size)), n_subsets = n_chunks * kScanThreads;
  wait_for_previous_kernel();
  let_next_kernel_start();

  const SubsetKeys mine = load_subset_keys(args.subset_keys + static_cast<int64_t>(row) * n_subsets, n_subsets);
  uint32_t top_key = 0;
#pragma unroll
  for (int i = 0; i < kKeysAThread; ++i) top_key = max(top_key, mine.keys[i]);
  top_key = key_of_place(block_max(static_cast<Place>(top_key) << 32, scratch));
  const bool is_finite = top_key > kKeyOfNegInf && top_key < kKeyOfPosInf;
  const float max = value_of(top_key);

  // At most 32 chunks: every warp joins them by itself, in the same order.
  static_assert(n_chunks_of(kMaxSampleVocab) <= kWarpSize, "one lane a chunk");
  const int chunk = threadIdx.x % kWarpSize;
  float part = 0.0f;
  if (chunk < n_chunks) {
    const float* stats = args.chunk_stats + 2 * (static_cast<int64_t>(row) * n_chunks + chunk);
    part = stats[1] == 0.0f ? 0.0f : stats[1] * expf(stats[0] - max);
  }
  const float log_sum = logf(sum_over_lanes(part, kWarpSize));
  const auto logprob_of = [&](float value) { return is_finite ? fmaxf(value - max - log_sum, kLogprobFloor) : kLogprobFloor; };

  RowTokens<T> tokens{};
  tokens.logits = static_cast<const T*>(args.logits) + row * args.logits_stride;
  tokens.vocab_size = args.vocab_size;
  tokens.is_vectorizable = args.is_vectorizable;
  if (threadIdx.x == 0) {
    const int64_t id = args.token_ids_are_64_bit ? static_cast<const int64_t*>(args.token_ids)[row]
                                                 : static_cast<const int32_t*>(args.token_ids)[row];
    if (id < 0 || id >= args.vocab_size) __trap();
    args.chosen[row] = logprob_of(to_float(tokens.logits[id]));
  }
  if (args.n_top == 0) return;
  const int n = is_finite ? select_first(tokens, mine, top_key, args.n_top, scratch) : 0;
  if (threadIdx.x >= args.n_top) return;
  const int64_t at = static_cast<int64_t>(row) * args.n_top + threadIdx.x;
  const bool is_there = static_cast<int>(threadIdx.x) < n;
  const Place place = is_there ? scratch.candidates[threadIdx.x] : 0;
  args.top_ids[at] = is_there ? id_of(place) : -1;
  args.top_logprobs[at] = is_there ? logprob_of(value_of(key_of_place(place))) : kLogprobFloor;
}

}  // namespace astrai
