// The third kernel of sample(), for wide rows: where top-k and top-p end. One thread block a row, or a cluster of several when
// there are few rows.
//
// top-p alone: a histogram of (max - x) / temperature, in integers, so that neither the order of the additions nor the
// number of blocks changes a bit. Only the tokens of the bin where the mass reaches top_p are then sorted. A bin with too
// many of them is cut into bins once more; what even that cannot settle (many equal logits), and rows with a large top_k,
// go to prefix_end().
#pragma once

#include "common/cluster.cuh"
#include "sampling/prefix_end.cuh"

namespace astrai {

constexpr int kMaxBoundBlocks = 8;  // of a cluster that every device takes

// One bin a thread. Beyond the last bin a token weighs exp(-32): all tokens of a row there are less than 1e-8 of the mass,
// which is more than 1, and a top_p below 1 is at most 1 - 6e-8.
constexpr int kBins = kRowThreads;
constexpr float kBinsAUnit = 32.0f;  // of (max - x) / temperature
constexpr float kLossScale = 262144.0f;  // see Histogram; 2^18 tokens of a bin lose less than 2^32
static_assert(kMaxSampleVocab <= 1 << 18, "a bin's loss fits 32 bits");

// A token of bin b has the weight exp(-b / 32) (1 - loss), where loss < 0.031 is summed in units of 1 / kLossScale.
struct Histogram {
  uint32_t counts[kBins];
  uint32_t losses[kBins];
};
static_assert(sizeof(Histogram) == sizeof(RowScratch::candidates), "the histogram lies where candidates will");

// Bin b of a level holds the tokens with b <= position < b + 1. It falls with the value, equal values share it.
struct BinLevel {
  float max, bins_a_logit;
  float first_bin;  // of the level above, whose one bin the second level cuts into kBins; 0 at the first level
  bool is_second;
  __device__ __forceinline__ float position_of(float value) const {
    const float position = (max - value) * bins_a_logit;
    return is_second ? (position - first_bin) * static_cast<float>(kBins) : position;
  }
  __device__ __forceinline__ float weight_of_bin(int bin) const {
    const auto at = static_cast<float>(bin);
    return expf(-(is_second ? first_bin + at / static_cast<float>(kBins) : at) / kBinsAUnit);
  }
};

// floor(position) for 0 <= position < 2^22.
__device__ __forceinline__ int bin_of(float position) {
  return static_cast<int>(__float_as_uint(__fadd_rd(position, 8388608.0f)) & 0x7fffffu);
}

// Every token of this block's share of the row. The edited ones are the first block's.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_share(const RowTokens<T>& tokens, int rank, int n_blocks, Visit visit) {
#pragma unroll 2
  for (int vec = rank * kRowThreads + threadIdx.x; tokens.has_vec(vec); vec += n_blocks * kRowThreads) {
    tokens.visit_group(vec, visit);
  }
  if (rank == 0) tokens.visit_edited(visit);
}

// One bin of a row.
struct Bin {
  uint32_t count;
  float mass;
};

// This thread's bin of the whole row. Ends with the cluster in step and nobody looking at `histogram`. Not inlined: it is
// needed twice, and the registers of all that is around it would not be left to the loop.
template <bool kIsCluster, typename T>
__device__ __noinline__ Bin fill_bins(const RowTokens<T> tokens, const BinLevel level, Histogram& histogram) {
  const int rank = cluster_rank<kIsCluster>(), n_blocks = cluster_size<kIsCluster>();
  histogram.counts[threadIdx.x] = histogram.losses[threadIdx.x] = 0;
  __syncthreads();
  visit_share(tokens, rank, n_blocks, [&](float value, int) {
    const float position = level.position_of(value);
    if (!(position >= 0.0f && position < static_cast<float>(kBins))) return;
    const int bin = bin_of(position);
    atomicAdd(&histogram.counts[bin], 1u);
    if (level.is_second) return;  // its bins are too narrow for a difference
    const float at = (position - static_cast<float>(bin)) / kBinsAUnit;
    const float loss = at * (1.0f - at * (0.5f - at * 0.16666667f));  // 1 - exp(-at), to 4e-8
    atomicAdd(&histogram.losses[bin], __float2uint_rn(loss * kLossScale));
  });
  sync_cluster<kIsCluster>();
  uint32_t count = 0, losses = 0;
  for (int block = 0; block < n_blocks; ++block) {
    const Histogram* other = in_block<kIsCluster>(&histogram, block);
    count += other->counts[threadIdx.x];
    losses += other->losses[threadIdx.x];
  }
  sync_cluster<kIsCluster>();
  const float weights = static_cast<float>(count) - static_cast<float>(losses) / kLossScale;
  return {count, level.weight_of_bin(threadIdx.x) * weights};
}

// The bin where the mass of the prefix reaches target, which the mass before bin 0 does not.
struct PivotBin {
  int bin, count;
  float mass_before;
};
__device__ __forceinline__ PivotBin pivot_bin(uint32_t count, float mass_before, float target, RowScratch& scratch) {
  const bool is_candidate = count > 0 && mass_before < target;
  const Place last = block_max(is_candidate ? static_cast<Place>(threadIdx.x + 1) << 32 | count : 0, scratch);
  const int bin = static_cast<int>(last >> 32) - 1;
  if (static_cast<int>(threadIdx.x) == bin) scratch.partials[0] = mass_before;
  __syncthreads();
  return {bin, static_cast<int>(last & 0xffffffffu), scratch.partials[0]};
}

// The bound of a row with top_p < 1 and no top_k in every block, or false: prefix_end() has to find it.
template <bool kIsCluster, typename T>
__device__ __forceinline__ bool bound_by_bins(const RowTokens<T>& tokens, const TokenWeight& weight, float top_p,
                                              RowScratch& scratch, Place& bound) {
  auto& histogram = reinterpret_cast<Histogram&>(scratch.candidates);
  const int rank = cluster_rank<kIsCluster>(), n_blocks = cluster_size<kIsCluster>();
  BinLevel level{weight.max, kBinsAUnit / weight.temperature, 0.0f, false};
  Bin own = fill_bins<kIsCluster>(tokens, level, histogram);
  float total;
  float before = exclusive_scan(own.mass, scratch, total);
  const float target = fmaxf(top_p * total, 1e-30f);  // at least the first token
  PivotBin pivot = pivot_bin(own.count, before, target, scratch);
  if (pivot.bin >= 0 && pivot.count > kMaxCandidates) {
    level.first_bin = static_cast<float>(pivot.bin);
    level.is_second = true;
    own = fill_bins<kIsCluster>(tokens, level, histogram);
    before = pivot.mass_before + exclusive_scan(own.mass, scratch, total);
    pivot = pivot_bin(own.count, before, target, scratch);
  }
  if (pivot.bin < 0 || pivot.count > kMaxCandidates) return false;

  if (threadIdx.x == 0) scratch.n_candidates = 0;
  sync_cluster<kIsCluster>();
  RowScratch* first = in_block<kIsCluster>(&scratch, 0);
  visit_share(tokens, rank, n_blocks, [&](float value, int id) {
    const float position = level.position_of(value);
    if (!(position >= 0.0f && position < static_cast<float>(kBins)) || bin_of(position) != pivot.bin) return;
    first->candidates[atomicAdd(&first->n_candidates, 1)] = place_of(key_of(value), id);
  });
  sync_cluster<kIsCluster>();
  if (rank == 0) bound = last_candidate(pivot.count, pivot.mass_before, target, weight, 0, scratch);
  return true;
}

template <bool kIsCluster, typename T>
__global__ void __launch_bounds__(kRowThreads) sample_bound_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ RowScratch scratch;
  __shared__ Place pivots[kBoundPivots];
  __shared__ uint32_t skip_words[kMaxSampleVocab / 32];
  const int row = blockIdx.x / cluster_size<kIsCluster>();
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int k = row_top_k(args, row);
  const float top_p = args.top_p[row];
  if (!args.states[row].is_wide || (k == args.vocab_size && !(top_p < 1.0f))) return;

  const RowTokens<T> tokens = mark_row<T>(args, row, skip_words);
  TokenWeight weight{false, 0, args.states[row].max, fmaxf(args.temperature[row], kMinTemperature)};
  Place bound = 0;
  const bool is_found = k == args.vocab_size && bound_by_bins<kIsCluster>(tokens, weight, top_p, scratch, bound);
  if (cluster_rank<kIsCluster>() != 0) return;  // nobody looks at this block's shared memory any more
  if (!is_found) {
    if (k < args.vocab_size) {
      weight.is_count = true;
      weight.bound = prefix_end(tokens, static_cast<float>(k), weight, scratch, pivots);
      weight.is_count = false;
    }
    bound = weight.bound;
    if (top_p < 1.0f) {
      const float target = fmaxf(top_p * total_weight(tokens, weight, scratch), 1e-30f);  // at least the first token
      bound = prefix_end(tokens, target, weight, scratch, pivots);
    }
  }
  if (threadIdx.x == 0) args.states[row].bound = bound;
}

}  // namespace astrai
