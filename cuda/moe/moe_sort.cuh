// moe_sort kernel: one thread block an expert, each of which counts all pairs and then places those of its expert. Blocks
// share nothing, so the result is the same every time; ids are few and come from L2, four to a load and several loads at
// once, since their latency is what there is to wait for.
#pragma once

#include "astrai/moe_ops.h"
#include "common/pdl.cuh"

namespace astrai {

constexpr int kMoeSortMaxThreads = 1024, kMoeSortMaxWarps = kMoeSortMaxThreads / 32;
constexpr int kMoeSortLoads = 4;         // at once
constexpr int kMoeSortWarpPairs = 128;   // of a warp's load

// The ids of pairs first to first + 3; -1 beyond the last. first: a multiple of 4.
__device__ __forceinline__ int4 load_pair_ids(const MoeSortArgs& args, int first) {
  if (first + 4 <= args.n_pairs) return *reinterpret_cast<const int4*>(args.ids + first);
  int4 ids = make_int4(-1, -1, -1, -1);
  if (first < args.n_pairs) ids.x = args.ids[first];
  if (first + 1 < args.n_pairs) ids.y = args.ids[first + 1];
  if (first + 2 < args.n_pairs) ids.z = args.ids[first + 2];
  return ids;
}

// Calls visit(first, ids) with the four ids from the lane's pair first on, for the warp's pairs [begin, end) in ascending
// order, by all lanes together. Both are multiples of kMoeSortWarpPairs.
template <typename Visit>
__device__ __forceinline__ void visit_pair_ids(const MoeSortArgs& args, int begin, int end, Visit visit) {
  for (int at = begin + static_cast<int>(threadIdx.x % 32) * 4; at < end; at += kMoeSortLoads * kMoeSortWarpPairs) {
    int4 loads[kMoeSortLoads];
#pragma unroll
    for (int i = 0; i < kMoeSortLoads; ++i) {
      const int first = at + i * kMoeSortWarpPairs;
      if (first < end) loads[i] = load_pair_ids(args, first);
    }
#pragma unroll
    for (int i = 0; i < kMoeSortLoads; ++i) {
      if (at + i * kMoeSortWarpPairs >= end) break;  // for the whole warp
      const int ids[4] = {loads[i].x, loads[i].y, loads[i].z, loads[i].w};
      visit(at + i * kMoeSortWarpPairs, ids);
    }
  }
}

// Threads: whole warps, up to kMoeSortMaxThreads.
__global__ void __launch_bounds__(kMoeSortMaxThreads) moe_sort_kernel(const MoeSortArgs args) {
  extern __shared__ int counts[];              // [n_experts] pairs of each
  __shared__ int own_pairs[kMoeSortMaxWarps];  // of this block's expert in each warp's stretch
  __shared__ int sums[kMoeSortMaxWarps][3];
  constexpr unsigned kAll = 0xffffffffu;
  const int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int n_threads = static_cast<int>(blockDim.x), n_warps = n_threads / 32;
  for (int i = threadIdx.x; i < args.n_experts; i += n_threads) counts[i] = 0;
  wait_for_previous_kernel();
  __syncthreads();

  const int round_pairs = n_warps * kMoeSortWarpPairs;
  const int stretch = (args.n_pairs + round_pairs - 1) / round_pairs * kMoeSortWarpPairs;
  const int n_loads = (args.n_pairs + kMoeSortWarpPairs - 1) / kMoeSortWarpPairs;
  const int begin = warp * stretch, end = min(begin + stretch, n_loads * kMoeSortWarpPairs);
  int n_own = 0;
  visit_pair_ids(args, begin, end, [&](int first, const int (&ids)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= args.n_pairs) continue;
      if (static_cast<unsigned>(ids[i]) >= static_cast<unsigned>(args.n_experts)) __trap();
      atomicAdd(&counts[ids[i]], 1);  // a count is the same in any order
      n_own += ids[i] == expert;
    }
  });
  n_own = __reduce_add_sync(kAll, n_own);
  if (lane == 0) own_pairs[warp] = n_own;
  __syncthreads();

  int pairs_before = 0, tiles_before = 0, n_tiles = 0;  // before: of lower experts
  for (int i = threadIdx.x; i < args.n_experts; i += n_threads) {
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
  for (int i = 0; i < n_warps; ++i) {
    pairs_before += sums[i][0];
    tiles_before += sums[i][1];
    n_tiles += sums[i][2];
    place += i < warp ? own_pairs[i] : 0;
  }
  place += pairs_before;

  if (n_own > 0) {
    const unsigned lower_lanes = (1u << lane) - 1;
    visit_pair_ids(args, begin, end, [&](int first, const int (&ids)[4]) {
      int own = place, n_here = 0;  // the lane's next place, and pairs of all lanes
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned mask = __ballot_sync(kAll, ids[i] == expert);
        own += __popc(mask & lower_lanes);
        n_here += __popc(mask);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (ids[i] == expert) args.order[own++] = first + i;
      }
      place += n_here;
    });
  }
  int4* const tiles = reinterpret_cast<int4*>(args.tiles);
  const int behind = pairs_before + counts[expert];
  for (int i = threadIdx.x; pairs_before + i * args.tile_rows < behind; i += n_threads) {
    const int first = pairs_before + i * args.tile_rows;
    tiles[tiles_before + i] = make_int4(expert, first, min(first + args.tile_rows, behind), 0);
  }
  if (expert == args.n_experts - 1) {
    for (int i = n_tiles + threadIdx.x; i < args.n_tiles; i += n_threads) tiles[i] = make_int4(-1, 0, 0, 0);
  }
  __threadfence();
  __syncthreads();
  let_next_kernel_start();  // not before: the products read order and tiles ahead of their wait
}

}  // namespace astrai
