// attn_paged_decode, the second kernel: merges the splits of a request, in an order that its number of splits fixes.
#pragma once

#include "attention/attn_paged_decode_merge.cuh"
#include "attention/attn_paged_decode_pairs.cuh"
#include "attention/attn_paged_decode_units.cuh"
#include "common/pdl.cuh"

namespace astrai::paged_decode {

// The splits of one (request, query head). Split i belongs to sum i / 4 % 4; each sum takes its splits in order, and the four
// are added in order: by a warp each, or all by one warp, which gives the same bits. Values are asked for before the
// maxima and sums that weigh them, so that all come in one trip to memory where the splits are few.
template <typename T, int kHeadDim>
struct SplitMerge {
  static constexpr int kSums = 4;
  static constexpr int kRun = 4;  // neighbouring splits of a sum
  static constexpr int kLaneDims = kHeadDim / 32;
  static constexpr int kWarps = Shape<kHeadDim>::kWarps;
  static constexpr int kOwn = 8;  // splits of a sum that are read at once
  static constexpr int kChunk = kSums * kOwn;
  static constexpr int kLaneParts = kChunk / 32;

  const PagedDecodeArgs& args;
  int head;
  int first, n;  // places of the request's splits
  float largest = -INFINITY;
  float2 parts[kLaneParts];  // (max, sum) of splits lane, lane + 32, ... of the first chunk

  // Split i of a sum's own, in a chunk.
  __device__ static int split_of(int which, int i) { return i / kRun * (kSums * kRun) + which * kRun + i % kRun; }

  __device__ int64_t row(int place) const { return static_cast<int64_t>(place) * args.n_heads + head; }

  __device__ float2 part(int place) const { return reinterpret_cast<const float2*>(args.ml_part)[row(place)]; }

  __device__ float value(int place, int dim) const { return args.o_part[row(place) * kHeadDim + dim]; }

  // The values of sum `which` in the chunk of splits from begin on.
  __device__ void load(float (&values)[kOwn][kLaneDims], int which, int begin, int lane) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int split = begin + split_of(which, i);
#pragma unroll
      for (int d = 0; d < kLaneDims; ++d) values[i][d] = split < n ? value(first + split, d * 32 + lane) : 0.0f;
    }
  }

  __device__ void load_parts(float2 (&to)[kLaneParts], int begin, int lane) const {
#pragma unroll
    for (int j = 0; j < kLaneParts; ++j) {
      const int split = begin + j * 32 + lane;
      to[j] = split < n ? part(first + split) : make_float2(-INFINITY, 0.0f);
    }
  }

  __device__ void find_largest(int lane) {
    load_parts(parts, 0, lane);
#pragma unroll
    for (int j = 0; j < kLaneParts; ++j) largest = fmaxf(largest, parts[j].x);
    for (int split = kChunk + lane; split < n; split += 32) largest = fmaxf(largest, part(first + split).x);
    largest = warp_max(largest);
  }

  __device__ void add(const float (&values)[kOwn][kLaneDims], int which, int begin, float& sum, float (&o)[kLaneDims],
                      int lane) const {
    float2 others[kLaneParts];
    if (begin > 0) load_parts(others, begin, lane);
    float weight[kLaneParts], weighted_sum[kLaneParts];
#pragma unroll
    for (int j = 0; j < kLaneParts; ++j) {
      const float2 own = begin > 0 ? others[j] : parts[j];
      weight[j] = part_weight(own.x, largest);
      weighted_sum[j] = weight[j] * own.y;
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int from = split_of(which, i) % 32, j = split_of(0, i) / 32;
      const float factor = __shfl_sync(kAllLanes, weight[j], from);
      sum += __shfl_sync(kAllLanes, weighted_sum[j], from);
#pragma unroll
      for (int d = 0; d < kLaneDims; ++d) o[d] = fmaf(factor, values[i][d], o[d]);
    }
  }

  // Adds all splits of a sum. Call find_largest() between the first load() and this.
  __device__ void add_all(float (&values)[kOwn][kLaneDims], int which, float& sum, float (&o)[kLaneDims], int lane) const {
    for (int begin = 0;; begin += kChunk) {
      add(values, which, begin, sum, o, lane);
      if (begin + kChunk >= n) return;
      load(values, which, begin + kChunk, lane);
    }
  }

  // The same where each split is kWarps parts, of at most kMaxSpreadSplits splits: a lane has the parts of split `lane`.
  __device__ void add_spread(int which, float& sum, float (&o)[kLaneDims], int lane) {
    float2 own[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      own[w] = lane < n ? part((first + lane) * kWarps + w) : make_float2(-INFINITY, 0.0f);
    }
    float values[kRun][kWarps][kLaneDims];
    load_spread(values, which * kRun, lane);
    float most = -INFINITY, split_sum = 0.0f, inner[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, own[w].x);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      inner[w] = part_weight(own[w].x, most);
      split_sum = fmaf(inner[w], own[w].y, split_sum);
    }
    const float max = split_sum == split_sum ? most : split_sum;  // fmaxf() drops a NaN
    largest = warp_max(max);
    const float weight = part_weight(max, largest), weighted_sum = weight * split_sum;
    for (int begin = which * kRun;;) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float factor = __shfl_sync(kAllLanes, weight, begin + i);
        sum += __shfl_sync(kAllLanes, weighted_sum, begin + i);
        float merged[kLaneDims] = {};
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float inner_factor = __shfl_sync(kAllLanes, inner[w], begin + i);
#pragma unroll
          for (int d = 0; d < kLaneDims; ++d) merged[d] = fmaf(inner_factor, values[i][w][d], merged[d]);
        }
#pragma unroll
        for (int d = 0; d < kLaneDims; ++d) o[d] = fmaf(factor, merged[d], o[d]);
      }
      begin += kSums * kRun;
      if (begin >= n) return;
      load_spread(values, begin, lane);
    }
  }

 private:
  __device__ static float warp_max(float x) {
#pragma unroll
    for (int shift = 16; shift > 0; shift /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, shift));
    return x;
  }

  __device__ void load_spread(float (&values)[kRun][kWarps][kLaneDims], int begin, int lane) const {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
#pragma unroll
        for (int d = 0; d < kLaneDims; ++d) {
          values[i][w][d] = begin + i < n ? value((first + begin + i) * kWarps + w, d * 32 + lane) : 0.0f;
        }
      }
    }
  }
};

// Blocks that are on the device before the main kernel ends: the kernel behind them cannot take their place.
constexpr int kFewMergeBlocks = 256;

// Merges one pair's splits by the whole thread block, a warp for each sum.
template <typename T, int kHeadDim>
__device__ void merge_by_block(SplitMerge<T, kHeadDim>& merge, const RowTarget& to, bool is_spread, int warp, int lane) {
  using Merge = SplitMerge<T, kHeadDim>;
  static_assert(Merge::kSums == kMergeWarps, "each warp has a sum");
  __shared__ float shared_o[kMergeWarps][kHeadDim];
  __shared__ float shared_sum[kMergeWarps];
  float sum = 0.0f, o[Merge::kLaneDims] = {};
  if (is_spread) {
    merge.add_spread(warp, sum, o, lane);
  } else {
    float values[Merge::kOwn][Merge::kLaneDims];
    merge.load(values, warp, 0, lane);
    merge.find_largest(lane);
    merge.add_all(values, warp, sum, o, lane);
  }
#pragma unroll
  for (int d = 0; d < Merge::kLaneDims; ++d) shared_o[warp][d * 32 + lane] = o[d];
  if (lane == 0) shared_sum[warp] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) sum += shared_sum[w];
  const float inverse = inverse_or_zero(sum);
  for (int dim = threadIdx.x; dim < kHeadDim; dim += kMergeWarps * 32) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kMergeWarps; ++w) total += shared_o[w][dim];
    write_o<T, kHeadDim>(merge.args, to, dim, total, inverse);
  }
  if (threadIdx.x == 0) write_max_sum(merge.args, to, merge.largest, sum);
}

// Merges one pair's splits by one warp, as many at a time as registers allow: neighbours go to one of its four sums.
template <typename T, int kHeadDim>
__device__ void merge_by_warp(SplitMerge<T, kHeadDim>& merge, const RowTarget& to, int lane) {
  using Merge = SplitMerge<T, kHeadDim>;
  constexpr int kAtOnce = kHeadDim > 128 ? 8 : 16;
  constexpr int kSumsAtOnce = kAtOnce / Merge::kRun;
  static_assert(Merge::kSums % kSumsAtOnce == 0, "a round is whole");
  float values[kAtOnce][Merge::kLaneDims];
  float sum[Merge::kSums] = {}, o[Merge::kSums][Merge::kLaneDims] = {};
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int d = 0; d < Merge::kLaneDims; ++d) {
        values[i][d] = begin + i < merge.n ? merge.value(merge.first + begin + i, d * 32 + lane) : 0.0f;
      }
    }
  };
  load(0);
  merge.find_largest(lane);
#pragma unroll 1
  for (int begin = 0; begin < merge.n;) {
#pragma unroll
    for (int which = 0; which < Merge::kSums; which += kSumsAtOnce) {
      const int own = begin + lane % kAtOnce;
      const float2 part = own < merge.n ? merge.part(merge.first + own) : make_float2(-INFINITY, 0.0f);
      const float weight = part_weight(part.x, merge.largest), weighted_sum = weight * part.y;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int to_sum = which + i / Merge::kRun;
        const float factor = __shfl_sync(kAllLanes, weight, i);
        sum[to_sum] += __shfl_sync(kAllLanes, weighted_sum, i);
#pragma unroll
        for (int d = 0; d < Merge::kLaneDims; ++d) o[to_sum][d] = fmaf(factor, values[i][d], o[to_sum][d]);
      }
      begin += kAtOnce;
      load(begin);
    }
  }
  float total_sum = 0.0f, total[Merge::kLaneDims] = {};
#pragma unroll
  for (int which = 0; which < Merge::kSums; ++which) {
    total_sum += sum[which];
#pragma unroll
    for (int d = 0; d < Merge::kLaneDims; ++d) total[d] += o[which][d];
  }
  const float inverse = inverse_or_zero(total_sum);
#pragma unroll
  for (int d = 0; d < Merge::kLaneDims; ++d) write_o<T, kHeadDim>(merge.args, to, d * 32 + lane, total[d], inverse);
  if (lane == 0) write_max_sum(merge.args, to, merge.largest, total_sum);
}

// Merges the splits of requests that have more than one, and of all where units were spread.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kMergeWarps * 32, kHeadDim > 128 ? 2 : 4)
    merge_kernel(const PagedDecodeArgs args, const int n_head_tiles, const int n_spread_blocks, const int n_block_pairs) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // The kernel before this one is the main one, which does not write what is read here and began when it was complete.
  const MergePair pair = find_pair(args, n_block_pairs, warp, lane);
  const bool is_spread = kCanSpread<kHeadDim> && spread_of(args, args.split_indptr[args.batch], n_head_tiles, n_spread_blocks) > 1;
  const bool is_idle = pair.n <= (is_spread ? 0 : 1);
  // One block that waits is enough for this kernel not to end before the kernels ahead of it.
  if (is_idle && pair.is_of_block && blockIdx.x > 0) return;
  if (gridDim.x <= kFewMergeBlocks) let_next_kernel_start();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (is_idle) return;
  SplitMerge<T, kHeadDim> merge{args, pair.head, pair.first, pair.n};
  const RowTarget to{pair.req, pair.head, -1};
  if (pair.is_of_block) {
    merge_by_block(merge, to, is_spread, warp, lane);
  } else {
    merge_by_warp(merge, to, lane);
  }
}

}  // namespace astrai::paged_decode
