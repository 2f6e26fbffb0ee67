// moe_sort kernel: one thread block an expert, each of which counts all pairs and then places those of its expert. Blocks
// share nothing, so the result is the same every time; ids are few and come from L2.
#pragma once

#include "astrai/moe_ops.h"
#include "common/pdl.cuh"

namespace astrai {

constexpr int kMoeSortThreads = 512, kMoeSortWarps = kMoeSortThreads / 32;

__global__ void __launch_bounds__(kMoeSortThreads) moe_sort_kernel(const MoeSortArgs args) {
  extern __shared__ int counts[];            // [n_experts] pairs of each
  __shared__ int own_pairs[kMoeSortWarps];   // of this block's expert in each warp's stretch
  __shared__ int sums[kMoeSortWarps][3];
  constexpr unsigned kAll = 0xffffffffu;
  const int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < args.n_experts; i += kMoeSortThreads) counts[i] = 0;
  wait_for_previous_kernel();
  let_next_kernel_start();
  __syncthreads();

  const int stretch = (args.n_pairs + kMoeSortThreads - 1) / kMoeSortThreads * 32;
  const int begin = warp * stretch, end = min(begin + stretch, args.n_pairs);
  int n_own = 0;
  for (int first = begin; first < end; first += 32) {
    const int id = first + lane < end ? args.ids[first + lane] : -1;
    if (first + lane < end) {
      if (static_cast<unsigned>(id) >= static_cast<unsigned>(args.n_experts)) __trap();
      atomicAdd(&counts[id], 1);  // a count is the same in any order
    }
    n_own += __popc(__ballot_sync(kAll, id == expert));
  }
  if (lane == 0) own_pairs[warp] = n_own;
  __syncthreads();

  int pairs_before = 0, tiles_before = 0, n_tiles = 0;  // before: of lower experts
  for (int i = threadIdx.x; i < args.n_experts; i += kMoeSortThreads) {
    const int tiles = (counts[i] + args.tile_rows - 1) / args.tile_rows;
    n_tiles += tiles;
    pairs_before += i < expert ? counts[i] : 0;
    tiles_before += i < expert ? tiles : 0;
  }
  sums[warp][0] = __reduce_add_sync(kAll, pairs_before);
  sums[warp][1] = __reduce_add_sync(kAll, tiles_before);
  sums[warp][2] = __reduce_add_sync(kAll, n_tiles);
  __syncthreads();
  pairs_before = tiles_before = n_tiles = 0;
  int place = 0;  // of the next pair of this warp
  for (int i = 0; i < kMoeSortWarps; ++i) {
    pairs_before += sums[i][0];
    tiles_before += sums[i][1];
    n_tiles += sums[i][2];
    place += i < warp ? own_pairs[i] : 0;
  }
  place += pairs_before;

  if (n_own > 0) {
    for (int first = begin; first < end; first += 32) {
      const bool is_own = first + lane < end && args.ids[first + lane] == expert;
      const unsigned mask = __ballot_sync(kAll, is_own);
      if (is_own) args.order[place + __popc(mask & ((1u << lane) - 1))] = first + lane;
      place += __popc(mask);
    }
  }
  int4* const tiles = reinterpret_cast<int4*>(args.tiles);
  const int behind = pairs_before + counts[expert];
  for (int i = threadIdx.x; pairs_before + i * args.tile_rows < behind; i += kMoeSortThreads) {
    const int first = pairs_before + i * args.tile_rows;
    tiles[tiles_before + i] = make_int4(expert, first, min(first + args.tile_rows, behind), 0);
  }
  if (expert == args.n_experts - 1) {
    for (int i = n_tiles + threadIdx.x; i < args.n_tiles; i += kMoeSortThreads) tiles[i] = make_int4(-1, 0, 0, 0);
  }
}

}  // namespace astrai
