// attn_paged_prefill where a tile's keys are spread over several thread blocks: which keys a block takes, and the part that
// it leaves for attn_paged_prefill_merge.cuh. A split is whole key tiles, counted from the first that a block's rows see.
//
// A part of a row is (o, max, sum): the weighted sum of values and the sum of weights relative to the largest score, that
// score in log2 units. A row that sees no key of a split leaves (0, -inf, 0).
#pragma once

#include "attention/prefill_work.cuh"

namespace astrai {

// How the keys of a launch's costliest tiles are split. Blocks are counted as find_prefill_work() does.
struct PrefillSplits {
  int n_blocks;       // the first ones, whose keys are split; 0 for none
  int n_splits;       // at most, of one block
  int split_len;      // keys, a multiple of key_tile
  int key_tile;       // keys of the kernel's tile
  int n_head_groups;  // n_heads / heads_per_tile
  int n_tile_blocks;  // blocks of a tile
  int block_rows;     // rows of a block
  int tile_rows;      // rows of a tile, for which the workspace has a place each
  float* o;           // [n_tiles][n_head_groups][n_splits][tile_rows][head_dim]
  float2* max_sum;    // [n_tiles][n_head_groups][n_splits][tile_rows]
};

// A block, or one of its splits.
struct PrefillPart {
  int block, split;
  int row;  // of the workspace, for the block's first row; -1 where the block is not split
};

// Row of the workspace for the first row of a block's split.
__device__ __forceinline__ int part_row(const PrefillSplits& splits, int block, int group, int split) {
  const int tile = block / splits.n_tile_blocks, within = splits.n_tile_blocks - 1 - block % splits.n_tile_blocks;
  return ((tile * splits.n_head_groups + group) * splits.n_splits + split) * splits.tile_rows + within * splits.block_rows;
}

// The index-th part of a group of heads: the splits of the first blocks come first, then the other blocks.
__device__ __forceinline__ PrefillPart find_prefill_part(const PrefillSplits& splits, int index, int group) {
  const int n_parts = splits.n_blocks * splits.n_splits;
  if (index >= n_parts) return {index - n_parts + splits.n_blocks, 0, -1};
  const int block = index / splits.n_splits, split = index % splits.n_splits;
  return {block, split, part_row(splits, block, group, split)};
}

// Splits that the keys of a block make: at most n_splits, of which the last then takes all that is left.
__device__ __forceinline__ int count_splits(const PrefillSplits& splits, const PrefillWork& work) {
  const int n_keys = work.key_end - work.key_begin / splits.key_tile * splits.key_tile;
  return max(1, min(splits.n_splits, (n_keys + splits.split_len - 1) / splits.split_len));
}

// Leaves work the keys of its split, or nothing to do where there is no such split. A block with one split alone is not
// split, and its result goes to out.
__device__ __forceinline__ void take_split(const PrefillSplits& splits, PrefillPart& part, PrefillWork& work) {
  if (part.row < 0 || work.n_tokens == 0) return;
  const int n_splits = count_splits(splits, work);
  if (part.split >= n_splits) work.n_tokens = 0;
  if (n_splits == 1) {
    part.row = -1;
    return;
  }
  const int begin = work.key_begin / splits.key_tile * splits.key_tile + part.split * splits.split_len;
  if (part.split < n_splits - 1) work.key_end = begin + splits.split_len;
  work.key_begin = max(work.key_begin, begin);
}

// Writes a row's part. o(pair): the lane's elements 2 * (lane % 4) and the next of the row's eight from 8 * pair on. sum: of
// all lanes of the row. scale: of the scores, to log2 units.
template <int kHeadDim, typename Pairs>
__device__ __forceinline__ void store_part(const PrefillSplits& splits, int row, const Pairs& o, const RowSoftmax& softmax,
                                           float sum, float scale) {
  const int lane = threadIdx.x % 32;
  float* to = splits.o + static_cast<int64_t>(row) * kHeadDim + lane % 4 * 2;
#pragma unroll
  for (int pair = 0; pair < kHeadDim / 8; ++pair) *reinterpret_cast<float2*>(to + pair * 8) = o(pair);
  if (lane % 4 == 0) splits.max_sum[row] = make_float2(softmax.max * scale, sum);
}

}  // namespace astrai
