// attn_paged_prefill, merging what prefill_splits.cuh leaves: in the order of the splits, so that a row has the same bits
// each time (Dao et al., Flash-Decoding, 2023). A thread owns four elements of a row.
#pragma once

#include "attention/prefill_splits.cuh"
#include "common/pdl.cuh"
#include "common/warp_mma.cuh"

namespace astrai {

constexpr int kPrefillMergeThreads = 128;

// Grid: (rows of a block * head_dim / 4 / threads, n_blocks * n_head_groups).
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kPrefillMergeThreads)
    attn_paged_prefill_merge_kernel(const __grid_constant__ PagedPrefillArgs args, const PrefillSplits splits) {
  constexpr int kRowThreads = kHeadDim / 4;
  const int place = blockIdx.x * kPrefillMergeThreads + threadIdx.x;
  const int row = place / kRowThreads, dim = place % kRowThreads * 4;
  const int block = blockIdx.y / splits.n_head_groups, group = blockIdx.y % splits.n_head_groups;
  const int token = row / args.heads_per_tile, head = group * args.heads_per_tile + row % args.heads_per_tile;
  // Ahead of the wait: the kernel before is attention, which began after all that writes the index arrays had ended.
  const PrefillWork work = find_prefill_work(args, block, splits.block_rows / args.heads_per_tile);
  const int n_splits = token < work.n_tokens ? count_splits(splits, work) : 1;
  wait_for_previous_kernel();
  if (n_splits == 1) return;

  const int first_part = part_row(splits, block, group, 0) + row;
  const float2* max_sum = splits.max_sum + first_part;
  const auto* parts = reinterpret_cast<const float4*>(splits.o + static_cast<int64_t>(first_part) * kHeadDim + dim);
  float largest = -INFINITY;
#pragma unroll 8
  for (int i = 0; i < n_splits; ++i) largest = fmaxf(largest, __ldcg(max_sum + i * splits.tile_rows).x);
  float sum = 0.f;
  float4 o{};
#pragma unroll 8
  for (int i = 0; i < n_splits; ++i) {
    const float2 own = __ldcg(max_sum + i * splits.tile_rows);
    const float4 part = __ldcg(parts + static_cast<int64_t>(i) * splits.tile_rows * kRowThreads);
    // 0 for a part without keys, also beside others without; a NaN of o or sum stays one.
    const float weight = own.x == -INFINITY ? 0.f : exp2_approx(__fsub_rn(own.x, largest));
    sum = __fmaf_rn(weight, own.y, sum);
    o.x = __fmaf_rn(weight, part.x, o.x);
    o.y = __fmaf_rn(weight, part.y, o.y);
    o.z = __fmaf_rn(weight, part.z, o.z);
    o.w = __fmaf_rn(weight, part.w, o.w);
  }
  const float factor = sum == 0.f ? 0.f : 1.f / sum;  // a row that saw no key gives 0
  const int64_t q_row = work.first_row + token;
  T* out = static_cast<T*>(args.out) + q_row * args.out_strides[0] + head * args.out_strides[1] + dim;
  *reinterpret_cast<uint2*>(out) =
      make_uint2(pack_2<T>(o.x * factor, o.y * factor), pack_2<T>(o.z * factor, o.w * factor));
  if (args.lse != nullptr && dim == 0) {
    args.lse[q_row * args.n_heads + head] = sum == 0.f ? -INFINITY : largest * kLn2 + logf(sum);
  }
}

// Of the kernel's blocks of block_tokens tokens, with its tiles of key_tile keys; n_blocks is 0 where nothing is split.
inline PrefillSplits make_prefill_splits(const PagedPrefillArgs& args, int block_tokens, int key_tile) {
  PrefillSplits splits{};
  splits.n_head_groups = args.n_heads / args.heads_per_tile;
  splits.n_splits = 1;
  if (args.n_split_tiles == 0) return splits;
  splits.n_tile_blocks = (args.q_tile_rows + block_tokens - 1) / block_tokens;
  splits.n_blocks = args.n_split_tiles * splits.n_tile_blocks;
  splits.n_splits = args.n_splits;
  splits.split_len = (args.split_len + key_tile - 1) / key_tile * key_tile;
  splits.key_tile = key_tile;
  splits.block_rows = block_tokens * args.heads_per_tile;
  splits.tile_rows = args.q_tile_rows * args.heads_per_tile;
  splits.o = args.workspace;
  const int64_t n_rows = static_cast<int64_t>(args.n_split_tiles) * splits.n_head_groups * splits.n_splits * splits.tile_rows;
  splits.max_sum = reinterpret_cast<float2*>(args.workspace + n_rows * args.head_dim);
  return splits;
}

// Launches behind the kernel that left the parts; defined once for each (dtype, head_dim).
template <typename T, int kHeadDim>
void launch_attn_paged_prefill_merge(const PagedPrefillArgs& args, const PrefillSplits& splits, cudaStream_t stream);

}  // namespace astrai
