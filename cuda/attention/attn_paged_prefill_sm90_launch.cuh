// The launcher of one attn_paged_prefill_sm90 instance, included by the generated translation units alone.
#pragma once

#include <algorithm>

#include "attention/attn_paged_prefill_list.cuh"
#include "attention/attn_paged_prefill_sm90.cuh"
#include "common/launch.cuh"

namespace astrai {

template <typename T, int kHeadDim>
void launch_prefill_block(const PagedPrefillArgs& args, cudaStream_t stream) {
  using Shape = PrefillSm90Shape<kHeadDim>;
  constexpr auto kernel = attn_paged_prefill_sm90_kernel<T, kHeadDim>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes),
             "attn_paged_prefill");
  const int block_tokens = Shape::kRows / args.heads_per_tile;
  const int n_parts = (args.q_tile_rows + block_tokens - 1) / block_tokens;
  const dim3 grid(static_cast<unsigned>(args.n_tiles * n_parts),
                  static_cast<unsigned>(args.n_heads / args.heads_per_tile));
  kernel<<<grid, Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
  check_cuda(cudaGetLastError(), "attn_paged_prefill");
}

constexpr int kItemsPerHeadGroup = 1000;  // some seven for each of 132 multiprocessors: enough to come out even

inline PrefillSchedule make_prefill_schedule(const PagedPrefillArgs& args, int block_rows) {
  PrefillSchedule schedule{};
  const int block_tokens = block_rows / args.heads_per_tile, n_heads = args.n_heads / args.heads_per_tile;
  schedule.n_tiles = args.n_tiles * ((args.q_tile_rows + block_tokens - 1) / block_tokens);
  schedule.heads_per_group = 1;
  while (schedule.heads_per_group < n_heads && (n_heads % schedule.heads_per_group != 0 ||
                                                schedule.heads_per_group * schedule.n_tiles < kItemsPerHeadGroup)) {
    ++schedule.heads_per_group;
  }
  schedule.n_items = schedule.n_tiles * n_heads;
  return schedule;
}

template <typename T, int kHeadDim>
void launch_prefill_list(const PagedPrefillArgs& args, cudaStream_t stream) {
  using Shape = PrefillListShape<kHeadDim>;
  constexpr auto kernel = attn_paged_prefill_list_kernel<T, kHeadDim>;
  constexpr auto kOp = "attn_paged_prefill";
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes), kOp);
  int device_idx = 0, n_multiprocessors = 0;
  check_cuda(cudaGetDevice(&device_idx), kOp);
  check_cuda(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device_idx), kOp);
  PrefillSchedule schedule = make_prefill_schedule(args, Shape::kRows);
  const int least = (schedule.n_items + Shape::kMaxItems - 1) / Shape::kMaxItems;  // blocks that have room for all
  const int n_blocks = std::max(std::min(schedule.n_items, n_multiprocessors), least);
  schedule.n_rounds = (schedule.n_items + n_blocks - 1) / n_blocks;
  kernel<<<static_cast<unsigned>(n_blocks), Shape::kThreads, Shape::kSharedBytes, stream>>>(args, schedule);
  check_cuda(cudaGetLastError(), kOp);
}

// Which is faster was measured: lists at head_dim 64, a tile a block at 128, where lists won at 1 x 2048 alone. Both give
// the same bits.
template <typename T, int kHeadDim>
void launch_attn_paged_prefill_sm90(const PagedPrefillArgs& args, cudaStream_t stream) {
  if constexpr (kHeadDim == 64) {
    launch_prefill_list<T, kHeadDim>(args, stream);
  } else {
    launch_prefill_block<T, kHeadDim>(args, stream);
  }
}

}  // namespace astrai
