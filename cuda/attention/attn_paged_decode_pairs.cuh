// attn_paged_decode, the second kernel's work: which (request, query head) pair a thread block or a warp of it merges.
#pragma once

#include "astrai/attn_paged_decode.h"
#include "attention/attn_paged_decode_tiles.cuh"

namespace astrai::paged_decode {

constexpr int kMergeWarps = 4;
constexpr int kManySplits = 16;  // more are too many for a warp

// The idx-th request of more than kManySplits splits, by a whole warp; the batch's size when there are fewer.
__device__ inline int find_long(const PagedDecodeArgs& args, int idx, int lane) {
  for (int begin = 0; begin < args.batch; begin += 32) {
    const int req = begin + lane;
    const bool is_long = req < args.batch && args.split_indptr[req + 1] - args.split_indptr[req] > kManySplits;
    const unsigned mask = __ballot_sync(kAllLanes, is_long);
    if (idx < __popc(mask)) return begin + static_cast<int>(__fns(mask, 0, idx + 1));
    idx -= __popc(mask);
  }
  return args.batch;
}

// Which (request, query head) pair a warp of the merge kernel has, alone or with its thread block.
struct MergePair {
  bool is_of_block;
  int req, head;
  int first, n;  // places of the request's splits; n is 0 for a pair that is another's, or none
};

// All of a small batch's pairs have a thread block each. Else the first n_block_pairs thread blocks are for pairs of many
// splits, as far as they go, and the others have kMergeWarps pairs each.
__device__ inline MergePair find_pair(const PagedDecodeArgs& args, int n_block_pairs, int warp, int lane) {
  const int block = static_cast<int>(blockIdx.x);
  const bool is_of_block = block < n_block_pairs, is_mixed = n_block_pairs < args.batch * args.n_heads;
  const int pair = is_of_block ? block : (block - n_block_pairs) * kMergeWarps + warp;
  const int max_long = n_block_pairs / args.n_heads;  // requests that have blocks in a mixed grid
  MergePair found{is_of_block, pair / args.n_heads, pair % args.n_heads, 0, 0};
  if (is_mixed && is_of_block) found.req = found.req < max_long ? find_long(args, found.req, lane) : args.batch;
  if (found.req >= args.batch) return found;
  found.first = args.split_indptr[found.req];
  found.n = args.split_indptr[found.req + 1] - found.first;
  if (is_mixed && !is_of_block && found.n > kManySplits && max_long > 0) {
    if (found.req <= find_long(args, max_long - 1, lane)) found.n = 0;
  }
  return found;
}

}  // namespace astrai::paged_decode
