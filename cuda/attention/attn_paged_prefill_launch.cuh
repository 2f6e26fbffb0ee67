// The launcher of one attn_paged_prefill instance, included by the generated translation units alone.
#pragma once

#include <algorithm>

#include "attention/attn_paged_prefill.cuh"
#include "attention/attn_paged_prefill_merge.cuh"
#include "common/launch.cuh"

namespace astrai {

template <typename T, int kHeadDim>
void launch_attn_paged_prefill_merge(const PagedPrefillArgs& args, const PrefillSplits& splits, cudaStream_t stream) {
  const int n_threads = std::min(splits.block_rows, splits.tile_rows) * (kHeadDim / 4);
  const dim3 grid(static_cast<unsigned>((n_threads + kPrefillMergeThreads - 1) / kPrefillMergeThreads),
                  static_cast<unsigned>(splits.n_blocks * splits.n_head_groups));
  launch_overlapped<attn_paged_prefill_merge_kernel<T, kHeadDim>>("attn_paged_prefill", grid, dim3(kPrefillMergeThreads), 0,
                                                                  stream, args, splits);
}

template <typename T, int kHeadDim>
void launch_attn_paged_prefill(const PagedPrefillArgs& args, cudaStream_t stream) {
  using Shape = PrefillShape<kHeadDim>;
  constexpr auto kernel = attn_paged_prefill_kernel<T, kHeadDim>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes),
             "attn_paged_prefill");
  const int block_tokens = Shape::kRows / args.heads_per_tile;
  const int n_tile_blocks = (args.q_tile_rows + block_tokens - 1) / block_tokens;
  const PrefillSplits splits = make_prefill_splits(args, block_tokens, Shape::kKeys);
  const dim3 grid(static_cast<unsigned>(args.n_tiles * n_tile_blocks + splits.n_blocks * (splits.n_splits - 1)),
                  static_cast<unsigned>(splits.n_head_groups));
  kernel<<<grid, Shape::kThreads, Shape::kSharedBytes, stream>>>(args, splits);
  check_cuda(cudaGetLastError(), "attn_paged_prefill");
  if (splits.n_blocks > 0) launch_attn_paged_prefill_merge<T, kHeadDim>(args, splits, stream);
}

}  // namespace astrai
