// Where a prefix of a row's order ends, for any weights: one thread block narrows the range of places by pivots, one reading of
// the row a round, until the end lies among few enough tokens to sort. Slow and always right; sample_bound.cuh comes here
// with what its histogram cannot settle.
#pragma once

#include "sampling/sample_row.cuh"

namespace astrai {

constexpr int kBoundPivots = 4;

// Every token of the row, in an order that is fixed for each thread.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_row(const RowTokens<T>& tokens, Visit visit) {
  for (int vec = threadIdx.x; tokens.has_vec(vec); vec += kRowThreads) tokens.visit_group(vec, visit);
  tokens.visit_edited(visit);
}

__device__ __forceinline__ float block_sum(float value, RowScratch& scratch) {
  __syncthreads();
  return sum_over_block(value, scratch.partials);
}

// How much a token counts: 1, or its share of the probability when it is not behind the first bound.
struct TokenWeight {
  bool is_count;
  Place bound;
  float max, temperature;
  __device__ __forceinline__ float operator()(float value, Place place) const {
    if (is_count) return 1.0f;
    return place >= bound ? expf(score_of(value, max, temperature)) : 0.0f;
  }
};

template <typename T>
__device__ __noinline__ float total_weight(const RowTokens<T>& tokens, const TokenWeight& weight, RowScratch& scratch) {
  float total = 0.0f;
  visit_row(tokens, [&](float value, int id) { total += weight(value, place_of(key_of(value), id)); });
  return block_sum(total, scratch);
}

// The n candidates are those of the row's order from one place on, and the weight before them is less than target. Sorts
// them and returns the last that the shortest prefix reaching target needs; `otherwise` where n is 0.
inline __device__ __noinline__ Place last_candidate(int n, float weight_before, float target, const TokenWeight& weight,
                                             Place otherwise, RowScratch& scratch) {
  sort_candidates(scratch, n);
  const int rank = threadIdx.x;
  const Place place = rank < n ? scratch.candidates[rank] : 0;
  float total;
  const float before = exclusive_scan(rank < n ? weight(value_of(key_of_place(place)), place) : 0.0f, scratch, total);
  const bool is_kept = rank < n && (rank == 0 || weight_before + before < target);
  const int n_kept = block_sum(static_cast<int>(is_kept), scratch);
  return n_kept == 0 ? otherwise : scratch.candidates[n_kept - 1];
}

// The last place of the shortest prefix of the row's order whose weights reach target > 0. pivots: [kBoundPivots] shared.
template <typename T>
__device__ __noinline__ Place prefix_end(const RowTokens<T>& tokens, float target, const TokenWeight& weight,
                                         RowScratch& scratch, Place* pivots) {
  if (weight.is_count && total_weight(tokens, weight, scratch) <= target) return 0;  // every token is among the first
  // The prefix ends in [low, high]: the weight above high is less than target, above low - 1 it is not (or low is 0).
  Place low = 0, high = place_of(key_of(weight.max), 0);
  float weight_above_high = 0.0f;
  int n_from_low = kMaxSampleVocab, n_above_high = 0;
  if (threadIdx.x < kBoundPivots) {
    // A first guess of how far below the largest value the end lies.
    const float spread = weight.is_count ? 0.125f : 0.125f * weight.temperature;
    const float distance = spread * static_cast<float>(1 << (kBoundPivots - 1 - threadIdx.x));
    pivots[threadIdx.x] = place_of(key_of(weight.max - distance), 0);
  }
  __syncthreads();
  // low == high: nothing is left to narrow, and no weight reaches the target.
  while (low < high && n_from_low - n_above_high > kMaxCandidates) {
    float weights[kBoundPivots] = {};
    int counts[kBoundPivots] = {};
    visit_row(tokens, [&](float value, int id) {
      const Place place = place_of(key_of(value), id);
      const float w = weight(value, place);
#pragma unroll
      for (int p = 0; p < kBoundPivots; ++p) {
        if (place > pivots[p]) {
          weights[p] += w;
          ++counts[p];
        }
      }
    });
    Place new_low = low, new_high = high;
    int n_from_new_low = n_from_low, n_above_new_high = n_above_high;
    float weight_above_new_high = weight_above_high;
    bool is_found = false;
#pragma unroll
    for (int p = 0; p < kBoundPivots; ++p) {  // pivots rise, the weights above them fall
      const float above = block_sum(weights[p], scratch);
      const int count = block_sum(counts[p], scratch);
      if (is_found) continue;
      if (above < target) {
        is_found = true;
        new_high = pivots[p];
        weight_above_new_high = above;
        n_above_new_high = count;
      } else {
        new_low = pivots[p] + 1;
        n_from_new_low = count;
      }
    }
    low = new_low;
    high = new_high;
    n_from_low = n_from_new_low;
    n_above_high = n_above_new_high;
    weight_above_high = weight_above_new_high;
    __syncthreads();
    if (threadIdx.x < kBoundPivots) pivots[threadIdx.x] = low + (high - low) / (kBoundPivots + 1) * (threadIdx.x + 1);
    __syncthreads();
  }

  if (threadIdx.x == 0) scratch.n_candidates = 0;
  __syncthreads();
  visit_row(tokens, [&](float value, int id) {
    const Place place = place_of(key_of(value), id);
    if (place < low || place > high) return;
    scratch.candidates[atomicAdd(&scratch.n_candidates, 1)] = place;
  });
  __syncthreads();
  return last_candidate(scratch.n_candidates, weight_above_high, target, weight, high, scratch);
}

}  // namespace astrai
