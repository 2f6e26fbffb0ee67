// The launcher of one attn_paged_prefill_sm90 instance, included by the generated translation units alone.
#pragma once

#include <algorithm>

#include "attention/attn_paged_prefill_merge.cuh"
#include "attention/attn_paged_prefill_sm90.cuh"
#include "common/launch.cuh"

namespace astrai {

template <typename T, int kHeadDim>
void launch_attn_paged_prefill_sm90(const PagedPrefillArgs& args, cudaStream_t stream) {
  using Shape = PrefillSm90Shape<kHeadDim>;
  using Memory = PrefillSm90Memory<kHeadDim>;
  constexpr auto kernel = attn_paged_prefill_sm90_kernel<T, kHeadDim>;
  constexpr auto kOp = "attn_paged_prefill";
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Memory::kBytes), kOp);
  int device_idx = 0, n_multiprocessors = 0;
  check_cuda(cudaGetDevice(&device_idx), kOp);
  check_cuda(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device_idx), kOp);
  const int block_tokens = Shape::kRows / args.heads_per_tile;
  const int n_tile_blocks = (args.q_tile_rows + block_tokens - 1) / block_tokens;
  const PrefillSplits splits = make_prefill_splits(args, block_tokens, Shape::kKeys);
  PrefillSchedule schedule{};
  schedule.n_items = (args.n_tiles * n_tile_blocks + splits.n_blocks * (splits.n_splits - 1)) * splits.n_head_groups;
  // As many waves of one block a multiprocessor as it takes for their lists to hold all.
  const int wave_items = n_multiprocessors * Memory::kMaxItems;
  const int n_blocks = std::min(schedule.n_items, (schedule.n_items + wave_items - 1) / wave_items * n_multiprocessors);
  schedule.n_rounds = (schedule.n_items + n_blocks - 1) / n_blocks;
  kernel<<<static_cast<unsigned>(n_blocks), Shape::kThreads, Memory::kBytes, stream>>>(args, schedule, splits);
  check_cuda(cudaGetLastError(), kOp);
  if (splits.n_blocks > 0) launch_attn_paged_prefill_merge<T, kHeadDim>(args, splits, stream);
}

}  // namespace astrai
