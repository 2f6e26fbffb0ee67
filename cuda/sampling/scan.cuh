// The first kernel of a sampling call: reads every logit once and leaves the largest key of each subset (32 logits that
// one thread held). The k-th largest of these keys is a lower bound of the k-th largest logit, and only the few subsets
// that reach it have to be looked at again.
#pragma once

#include "common/pdl.cuh"
#include "common/reduce.cuh"
#include "sampling/order.cuh"
#include "sampling/row.cuh"

namespace astrai {

// NaN if either is.
__device__ __forceinline__ float max_with_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// Marks the edited tokens of this chunk: bit i of bits for token first + i. Ends with the block in step.
__device__ __forceinline__ void mark_edits(const SampleArgs& args, EditRange range, int first, uint32_t* bits) {
  bits[threadIdx.x] = 0;
  __syncthreads();
  for (int entry = range.begin + threadIdx.x; entry < range.end; entry += kScanThreads) {
    const int at = args.edits.ids[entry] - first;
    if (at >= 0 && at < kChunkTokens) atomicOr(&bits[at / 32], 1u << at % 32);
  }
  __syncthreads();
}

// Bit e: logit e of vector `vec` of the row is edited or forbidden. bits: of the chunk that starts at vector first_vec.
__device__ __forceinline__ uint32_t skipped_bits(const uint8_t* allowed, const uint32_t* bits, bool has_edits, int vec,
                                                 int first_vec, int n_vecs) {
  uint32_t skipped = 0;
  if (has_edits) skipped |= reinterpret_cast<const uint8_t*>(bits)[vec - first_vec];
  if (allowed != nullptr && vec < n_vecs) skipped |= ~allowed[vec] & 0xffu;
  return skipped;
}

template <typename T>
__global__ void __launch_bounds__(kScanThreads) sample_scan_kernel(const SampleArgs args) {
  static_assert(kChunkTokens / 32 == kScanThreads, "mark_edits clears one word a thread");
  __shared__ uint32_t edited_bits[kScanThreads], keys[kScanThreads];
  const int row = blockIdx.y, first_vec = blockIdx.x * (kChunkTokens / kGroup);
  const int n_vecs = (args.vocab_size + kGroup - 1) / kGroup;
  const T* logits = static_cast<const T*>(args.logits) + row * args.logits_stride;
  wait_for_previous_kernel();
  let_next_kernel_start();

  float values[kSubsetVecs][kGroup];
#pragma unroll
  for (int j = 0; j < kSubsetVecs; ++j) {
    load_group(logits, first_vec + j * kScanThreads + threadIdx.x, args.vocab_size, args.is_vectorizable, values[j]);
  }
  const EditRange edits = edit_range(args, row);
  const bool has_edits = edits.begin < edits.end;
  const uint8_t* allowed = allowed_bits(args, row);
  if (has_edits) mark_edits(args, edits, first_vec * kGroup, edited_bits);

  float largest = __int_as_float(0xff800000);
#pragma unroll
  for (int j = 0; j < kSubsetVecs; ++j) {
    const uint32_t skipped =
        skipped_bits(allowed, edited_bits, has_edits, first_vec + j * kScanThreads + threadIdx.x, first_vec, n_vecs);
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      if ((skipped >> e & 1) == 0) largest = max_with_nan(largest, values[j][e]);
    }
  }
  uint32_t key = key_of(largest);
  if (has_edits) {
    keys[threadIdx.x] = key;
    __syncthreads();
    for (int entry = edits.begin + threadIdx.x; entry < edits.end; entry += kScanThreads) {
      const int id = args.edits.ids[entry], at = id - first_vec * kGroup;
      if (at < 0 || at >= kChunkTokens || id >= args.vocab_size || !is_allowed(allowed, id)) continue;
      atomicMax(&keys[at / kGroup % kScanThreads], key_of(edited_value(args, row, logits, entry)));
    }
    __syncthreads();
    key = keys[threadIdx.x];
  }
  args.subset_keys[(static_cast<int64_t>(row) * gridDim.x + blockIdx.x) * kScanThreads + threadIdx.x] = key;
}

// The same for top_logprobs, without edits, and each chunk's part of the sum of exponentials.
template <typename T>
__global__ void __launch_bounds__(kScanThreads) logprobs_scan_kernel(const TopLogprobsArgs args) {
  __shared__ float partials[kWarpSize];
  __shared__ uint32_t largest_key;
  const int row = blockIdx.y, first_vec = blockIdx.x * (kChunkTokens / kGroup);
  const T* logits = static_cast<const T*>(args.logits) + row * args.logits_stride;
  wait_for_previous_kernel();
  let_next_kernel_start();

  float values[kSubsetVecs][kGroup];
#pragma unroll
  for (int j = 0; j < kSubsetVecs; ++j) {
    load_group(logits, first_vec + j * kScanThreads + threadIdx.x, args.vocab_size, args.is_vectorizable, values[j]);
  }
  if (threadIdx.x == 0) largest_key = 0;
  float largest = __int_as_float(0xff800000);
#pragma unroll
  for (int j = 0; j < kSubsetVecs; ++j) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) largest = max_with_nan(largest, values[j][e]);
  }
  const uint32_t key = key_of(largest);
  __syncthreads();
  const uint32_t warp_key = __reduce_max_sync(kWholeWarp, key);
  if (threadIdx.x % kWarpSize == 0) atomicMax(&largest_key, warp_key);
  __syncthreads();
  const float chunk_max = value_of(largest_key);

  float sum = 0.0f;  // a chunk of -inf alone has no share
  if (largest_key > kKeyOfNegInf) {
#pragma unroll
    for (int j = 0; j < kSubsetVecs; ++j) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) sum += expf(values[j][e] - chunk_max);
    }
  }
  sum = sum_over_block(sum, partials);
  const int64_t chunk = static_cast<int64_t>(row) * gridDim.x + blockIdx.x;
  args.subset_keys[chunk * kScanThreads + threadIdx.x] = key;
  if (threadIdx.x == 0) {
    args.chunk_stats[2 * chunk] = chunk_max;
    args.chunk_stats[2 * chunk + 1] = sum;
  }
}

}  // namespace astrai
