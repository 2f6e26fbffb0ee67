// The second kernel of sample(): one thread block a row. A row that is greedy or has a small top_k is drawn here from its
// few candidates; any other ("wide") row is left to sample_bound.cuh and sample_wide.cuh.
#pragma once

#include "common/pdl.cuh"
#include "sampling/generator.cuh"
#include "sampling/select.cuh"

namespace astrai {

// Below this a float32 temperature could round to 0 and divide 0 by 0; as on the CPU.
constexpr float kMinTemperature = 1e-6f;

__device__ __forceinline__ float score_of(float value, float max, float temperature) {
  return __fdiv_rn(__fsub_rn(value, max), temperature);
}

// The sum of the values of the threads before this one; total: of all. In a fixed order.
__device__ __forceinline__ float exclusive_scan(float value, RowScratch& scratch, float& total) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  float sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const float other = __shfl_up_sync(kWholeWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == kWarpSize - 1) scratch.partials[warp] = sum;
  __syncthreads();
  float warp_sum = scratch.partials[lane];
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const float other = __shfl_up_sync(kWholeWarp, warp_sum, offset);
    if (lane >= offset) warp_sum += other;
  }
  total = __shfl_sync(kWholeWarp, warp_sum, kWarpSize - 1);
  const float before_warp = __shfl_sync(kWholeWarp, warp_sum, warp == 0 ? 0 : warp - 1);
  const float before_lane = __shfl_up_sync(kWholeWarp, sum, 1);
  return (warp == 0 ? 0.0f : before_warp) + (lane == 0 ? 0.0f : before_lane);
}

// Draws from the n sorted candidates; returns the id.
__device__ __forceinline__ int draw_candidate(const SampleArgs& args, int row, float max, int n, RowScratch& scratch) {
  const float temperature = fmaxf(args.temperature[row], kMinTemperature);
  const float top_p = args.top_p[row];
  const int rank = threadIdx.x;
  bool is_kept = rank < n;
  const Place place = is_kept ? scratch.candidates[rank] : 0;
  const float score = is_kept ? score_of(value_of(key_of_place(place)), max, temperature) : 0.0f;
  if (top_p < 1.0f) {
    float total;
    const float before = exclusive_scan(is_kept ? expf(score) : 0.0f, scratch, total);
    is_kept = is_kept && (rank == 0 || before < top_p * total);
  }
  is_kept = is_kept && score >= logf(args.min_p[row]);
  Place best = 0;
  if (is_kept) {
    const uint64_t key = row_key(args.seeds[row], args.positions[row]);
    best = place_of(key_of(__fadd_rn(score, gumbel_noise(noise_bits(key, id_of(place))))), rank);
  }
  best = block_max(best, scratch);
  return id_of(scratch.candidates[id_of(best)]);
}

// Tokens that temperature and top_k let through at most.
__device__ __forceinline__ int row_top_k(const SampleArgs& args, int row) {
  if (args.temperature[row] == 0.0f) return 1;
  const int top_k = args.top_k[row];
  return top_k >= 1 && top_k < args.vocab_size ? top_k : args.vocab_size;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads) sample_row_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ RowScratch scratch;
  __shared__ uint32_t skip_words[kMaxSampleVocab / 32];
  const int row = blockIdx.x;
  const int n_subsets = static_cast<int>(n_chunks_of(args.vocab_size)) * kScanThreads;
  wait_for_previous_kernel();
  let_next_kernel_start();

  const bool is_sound = __syncthreads_and(static_cast<int>(lists_are_sound(args, row, kRowThreads))) != 0;
  const SubsetKeys mine = load_subset_keys(args.subset_keys + static_cast<int64_t>(row) * n_subsets, n_subsets);
  const int k = row_top_k(args, row);
  const bool is_greedy = k == 1, is_wide = k > kMaxNarrowTopK;
  uint32_t top_key = 0;
#pragma unroll
  for (int i = 0; i < kKeysAThread; ++i) top_key = max(top_key, mine.keys[i]);
  top_key = key_of_place(block_max(static_cast<Place>(top_key) << 32, scratch));
  const bool is_faulty =
      !is_sound || top_key <= kKeyOfNegInf || top_key >= kKeyOfPosInf || (is_wide && !args.has_wide_rows);

  int id = 0;
  if (!is_faulty && !is_wide) {
    const RowTokens<T> tokens = mark_row<T>(args, row, skip_words);
    const int n = select_first(tokens, mine, top_key, k, scratch);
    id = is_greedy ? id_of(scratch.candidates[0]) : draw_candidate(args, row, value_of(top_key), n, scratch);
  }
  if (threadIdx.x != 0) return;
  args.is_faulty[row] = is_faulty;
  if (is_faulty || !is_wide) {
    if (args.token_ids_are_64_bit) {
      static_cast<int64_t*>(args.token_ids)[row] = id;
    } else {
      static_cast<int32_t*>(args.token_ids)[row] = id;
    }
  }
  args.states[row] = {0, 0, value_of(top_key), !is_faulty && is_wide, 0, 0};
}

}  // namespace astrai
