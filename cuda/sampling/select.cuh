// The first k tokens of a row by one thread block, from the subset keys that a scan left. Every function here is called
// by all threads of a block of kRowThreads and leaves them in step.
#pragma once

#include "common/reduce.cuh"
#include "sampling/order.cuh"
#include "sampling/row.cuh"

namespace astrai {

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / kWarpSize;
constexpr int kKeysAThread = kMaxSampleVocab / (kSubsetVecs * kGroup) / kRowThreads;
constexpr int kMaxCandidates = 1024;
constexpr int kPivots = 7;
static_assert(kMaxNarrowTopK * 2 <= kMaxCandidates, "the k-th key admits some tokens more than k");

struct RowScratch {
  Place candidates[kMaxCandidates];
  uint16_t subsets[kMaxCandidates];  // subsets to look at again
  int n_candidates, n_subsets;       // may exceed the arrays: then these hold the first comers
  uint32_t words[2][kRowWarps][(kPivots + 1) / 2];
  float partials[kWarpSize];
  int counts[kRowWarps];
  Place best[kRowWarps];
};

// This thread's keys: subsets threadIdx.x, + kRowThreads, ...; 0, below every key, past the row's end.
struct SubsetKeys {
  uint32_t keys[kKeysAThread];
  const uint32_t* row_keys;  // [n_subsets], the same in memory
  int n_subsets;
};

__device__ __forceinline__ SubsetKeys load_subset_keys(const uint32_t* row_keys, int n_subsets) {
  SubsetKeys mine;
  mine.row_keys = row_keys;
  mine.n_subsets = n_subsets;
#pragma unroll
  for (int i = 0; i < kKeysAThread; ++i) {
    const int at = threadIdx.x + i * kRowThreads;
    mine.keys[i] = at < n_subsets ? row_keys[at] : 0;
  }
  return mine;
}

__device__ __forceinline__ int block_sum(int value, RowScratch& scratch) {
  __syncthreads();
  value = __reduce_add_sync(kWholeWarp, value);
  if (threadIdx.x % kWarpSize == 0) scratch.counts[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  return __reduce_add_sync(kWholeWarp, scratch.counts[threadIdx.x % kWarpSize]);
}

__device__ __forceinline__ Place block_max(Place value, RowScratch& scratch) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const Place other = __shfl_xor_sync(kWholeWarp, value, offset);
    if (other > value) value = other;
  }
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) scratch.best[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = scratch.best[threadIdx.x % kWarpSize];
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const Place other = __shfl_xor_sync(kWholeWarp, value, offset);
    if (other > value) value = other;
  }
  return value;
}

// How many subset keys of the row reach each pivot. round: counts the calls, its parity picks the scratch words.
__device__ __forceinline__ void count_keys(const SubsetKeys& mine, const uint32_t (&pivots)[kPivots], int round,
                                           RowScratch& scratch, int (&counts)[kPivots]) {
  constexpr int kWords = (kPivots + 1) / 2;  // two counts of 16 bits a word: a block's are at most 8192
  uint32_t packed[kWords] = {};
#pragma unroll
  for (int p = 0; p < kPivots; ++p) {
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kKeysAThread; ++i) count += mine.keys[i] >= pivots[p];
    packed[p / 2] += count << 16 * (p % 2);
  }
  auto& words = scratch.words[round % 2];
#pragma unroll
  for (int w = 0; w < kWords; ++w) packed[w] = __reduce_add_sync(kWholeWarp, packed[w]);
  if (threadIdx.x % kWarpSize == 0) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[threadIdx.x / kWarpSize][w] = packed[w];
  }
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWords; ++w) packed[w] = __reduce_add_sync(kWholeWarp, words[threadIdx.x % kWarpSize][w]);
#pragma unroll
  for (int p = 0; p < kPivots; ++p) counts[p] = static_cast<int>(packed[p / 2] >> 16 * (p % 2) & 0xffffu);
}

// A key that at least k subsets reach, or the lowest finite one when fewer are finite; at most k + k / 4 + 8 reach it
// unless equal keys leave no such choice. top_key: the largest of the row.
__device__ __forceinline__ uint32_t threshold_key(const SubsetKeys& mine, uint32_t top_key, int k, RowScratch& scratch) {
  if (k == 1) return top_key;
  const int limit = k + k / 4 + 8;
  uint32_t low = kKeyOfNegInf + 1, high = top_key;  // count(low) >= k or low is the lowest; count(high + 1) < k
  uint32_t pivots[kPivots];
  int counts[kPivots];
  // The first pivots are at distances of the values, which a few bits of the keys say badly around 0.
  const float top = value_of(top_key);
#pragma unroll
  for (int p = 0; p < kPivots; ++p) {
    const uint32_t key = key_of(top - 0.5f * static_cast<float>(1 << 2 * p) * 0.25f);
    pivots[kPivots - 1 - p] = key > low ? key : low;
  }
  int low_count = kMaxCandidates * kKeysAThread;  // not counted yet: surely above the limit
  for (int round = 0; low < high && low_count > limit; ++round) {
    count_keys(mine, pivots, round, scratch, counts);
    // Pivots rise and counts fall: the last pivot that k subsets reach is the new low.
    uint32_t new_low = low, new_high = high;
#pragma unroll
    for (int p = 0; p < kPivots; ++p) {
      if (counts[p] >= k) {
        if (pivots[p] >= new_low) {
          new_low = pivots[p];
          low_count = counts[p];
        }
      } else if (pivots[p] - 1 < new_high) {
        new_high = pivots[p] - 1;
      }
    }
    low = new_low;
    high = new_high > low ? new_high : low;
    const uint64_t width = high - low;
#pragma unroll
    for (int p = 0; p < kPivots; ++p) {
      pivots[p] = low + static_cast<uint32_t>((width * (p + 1) + kPivots - 1) / kPivots);
    }
  }
  return low;
}

// What a row's tokens are read from. skip_bits: bit i set where token i is edited or forbidden; null when none is.
template <typename T>
struct RowTokens {
  const SampleArgs* args;  // null: no edits, no bitmask
  const T* logits;
  int row, vocab_size;
  bool is_vectorizable;
  const uint8_t* skip_bits;
  const uint8_t* allowed;
  EditRange edits;

  // Calls visit(value, id) for every token of vector vec that is neither edited nor forbidden nor -inf.
  template <typename Visit>
  __device__ __forceinline__ void visit_group(int vec, Visit visit) const {
    float values[kGroup];
    load_group(logits, vec, vocab_size, is_vectorizable, values);
    const uint32_t skipped = skip_bits == nullptr ? 0 : skip_bits[vec];
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      if ((skipped >> e & 1) == 0 && values[e] > __int_as_float(0xff800000)) visit(values[e], vec * kGroup + e);
    }
  }
  // The same for the edited tokens, spread over the block's threads.
  template <typename Visit>
  __device__ __forceinline__ void visit_edited(Visit visit) const {
    for (int entry = edits.begin + threadIdx.x; entry < edits.end; entry += kRowThreads) {
      const int id = args->edits.ids[entry];
      const float value = edited_value(*args, row, logits, entry);
      if (is_allowed(allowed, id) && value > __int_as_float(0xff800000)) visit(value, id);
    }
  }
  // Vector j of subset s.
  __device__ __forceinline__ static int vec_of(int subset, int j) {
    return (subset / kScanThreads * kSubsetVecs + j) * kScanThreads + subset % kScanThreads;
  }
  __device__ __forceinline__ bool has_vec(int vec) const { return vec * kGroup < vocab_size; }

  // Every token of the subsets whose key reaches `key`, each by one thread. subsets: the block's list of them when there
  // are n_listed <= kMaxCandidates, else all keys are walked.
  template <typename Visit>
  __device__ __forceinline__ void visit_subsets(const SubsetKeys& mine, uint32_t key, const uint16_t* listed, int n_listed,
                                                Visit visit) const {
    if (n_listed <= kMaxCandidates) {
      for (int item = threadIdx.x; item < n_listed * kSubsetVecs; item += kRowThreads) {
        const int vec = vec_of(listed[item / kSubsetVecs], item % kSubsetVecs);
        if (has_vec(vec)) visit_group(vec, visit);
      }
    } else {
      for (int item = threadIdx.x; item < mine.n_subsets * kSubsetVecs; item += kRowThreads) {
        const int subset = item % mine.n_subsets, vec = vec_of(subset, item / mine.n_subsets);
        if (mine.row_keys[subset] >= key && has_vec(vec)) visit_group(vec, visit);
      }
    }
    visit_edited(visit);
  }
};

// The tokens of a row, with the edited and the forbidden marked in skip_words [kMaxSampleVocab / 32] where there are any.
template <typename T>
__device__ __forceinline__ RowTokens<T> mark_row(const SampleArgs& args, int row, uint32_t* skip_words) {
  RowTokens<T> tokens{};
  tokens.args = &args;
  tokens.logits = static_cast<const T*>(args.logits) + row * args.logits_stride;
  tokens.row = row;
  tokens.vocab_size = args.vocab_size;
  tokens.is_vectorizable = args.is_vectorizable;
  tokens.allowed = allowed_bits(args, row);
  tokens.edits = edit_range(args, row);
  if (tokens.allowed == nullptr && tokens.edits.begin >= tokens.edits.end) return tokens;
  const auto* allowed_words = reinterpret_cast<const uint32_t*>(tokens.allowed);
  for (int word = threadIdx.x; word < (args.vocab_size + 31) / 32; word += kRowThreads) {
    skip_words[word] = allowed_words == nullptr ? 0 : ~allowed_words[word];
  }
  __syncthreads();
  for (int entry = tokens.edits.begin + threadIdx.x; entry < tokens.edits.end; entry += kRowThreads) {
    const int id = args.edits.ids[entry];
    atomicOr(&skip_words[id / 32], 1u << id % 32);
  }
  __syncthreads();
  tokens.skip_bits = reinterpret_cast<const uint8_t*>(skip_words);
  return tokens;
}

// Sorts candidates[0, n) by falling place; n up to kMaxCandidates. Bitonic, Batcher 1968.
__device__ __forceinline__ void sort_candidates(RowScratch& scratch, int n) {
  int width = 2;
  while (width < n) width *= 2;
  for (int i = n + threadIdx.x; i < width; i += kRowThreads) scratch.candidates[i] = 0;
  __syncthreads();
  for (int size = 2; size <= width; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      const int a = 2 * threadIdx.x - (threadIdx.x & (stride - 1)), b = a + stride;
      if (b < width) {
        const Place first = scratch.candidates[a], second = scratch.candidates[b];
        if (((a & size) == 0) == (first < second)) {
          scratch.candidates[a] = second;
          scratch.candidates[b] = first;
        }
      }
      __syncthreads();
    }
  }
}

// Leaves the first k tokens of the row, fewer when fewer are finite, in falling order in scratch.candidates; returns how
// many. 1 <= k <= kMaxNarrowTopK; top_key is finite.
template <typename T>
__device__ int select_first(const RowTokens<T>& tokens, const SubsetKeys& mine, uint32_t top_key, int k,
                            RowScratch& scratch) {
  const uint32_t key = threshold_key(mine, top_key, k, scratch);
  if (threadIdx.x == 0) scratch.n_candidates = scratch.n_subsets = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kKeysAThread; ++i) {
    if (mine.keys[i] < key) continue;
    const int at = atomicAdd(&scratch.n_subsets, 1);
    if (at < kMaxCandidates) scratch.subsets[at] = static_cast<uint16_t>(threadIdx.x + i * kRowThreads);
  }
  __syncthreads();
  const int n_subsets = scratch.n_subsets;

  // Candidates are the tokens whose place reaches the bound. They arrive in any order; their set and the sort do not
  // depend on it.
  Place bound = static_cast<Place>(key) << 32;
  const auto collect = [&] {
    tokens.visit_subsets(mine, key, scratch.subsets, n_subsets, [&](float value, int id) {
      const Place place = place_of(key_of(value), id);
      if (place < bound) return;
      const int at = atomicAdd(&scratch.n_candidates, 1);
      if (at < kMaxCandidates) scratch.candidates[at] = place;
    });
    __syncthreads();
  };
  collect();
  if (scratch.n_candidates > kMaxCandidates) {
    // Many tokens share a subset or a value. Halve the range of places, all different, until few enough reach its end.
    Place low = bound, high = place_of(top_key, 0);  // at least k reach low, fewer reach high + 1
    int low_count = scratch.n_candidates;
    while (low < high && low_count > kMaxCandidates) {
      const Place middle = low + (high - low + 1) / 2;
      int count = 0;
      tokens.visit_subsets(mine, key, scratch.subsets, n_subsets,
                           [&](float value, int id) { count += place_of(key_of(value), id) >= middle; });
      count = block_sum(count, scratch);
      if (count >= k) {
        low = middle;
        low_count = count;
      } else {
        high = middle - 1;
      }
    }
    bound = low;
    __syncthreads();
    if (threadIdx.x == 0) scratch.n_candidates = 0;
    __syncthreads();
    collect();
  }
  const int n = scratch.n_candidates;
  sort_candidates(scratch, n);
  return n < k ? n : k;
}

}  // namespace astrai
