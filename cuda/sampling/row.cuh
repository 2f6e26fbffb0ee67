// A row's logits as the sampler sees them: groups of 8 in float32, what is edited or forbidden, and edited values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "astrai/sampling_ops.h"
#include "common/vec.cuh"

namespace astrai {

constexpr int kGroup = 8;  // logits of one vector

__device__ __forceinline__ float to_float(float value) { return value; }

// Vector i of a row: logits 8 i .. 8 i + 7, -inf past the end of the vocabulary.
template <typename T>
__device__ __forceinline__ void load_group(const T* row, int i, int vocab_size, bool is_vectorizable, float* values) {
  constexpr int kPerLoad = kElementsPer16Bytes<T>;
  using Load = Vec<T, kPerLoad>;
  const int first = i * kGroup;
  if (is_vectorizable && first + kGroup <= vocab_size) {
#pragma unroll
    for (int at = 0; at < kGroup; at += kPerLoad) {
      const Load load = *reinterpret_cast<const Load*>(row + first + at);
#pragma unroll
      for (int e = 0; e < kPerLoad; ++e) values[at + e] = to_float(load.elements[e]);
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < kGroup; ++e) {
    values[e] = first + e < vocab_size ? to_float(row[first + e]) : __int_as_float(0xff800000);
  }
}

// The row's bits of allowed tokens, null when all are.
__device__ __forceinline__ const uint8_t* allowed_bits(const SampleArgs& args, int row) {
  if (args.bitmask == nullptr) return nullptr;
  const int mask_row = args.bitmask_rows == nullptr ? row : args.bitmask_rows[row];
  return mask_row < 0 ? nullptr : args.bitmask + mask_row * args.bitmask_stride;
}

__device__ __forceinline__ bool is_allowed(const uint8_t* allowed, int id) {
  return allowed == nullptr || (allowed[id / 8] >> (id % 8) & 1) != 0;
}

// The entries of the row's edit list.
struct EditRange {
  int begin, end;
};
__device__ __forceinline__ EditRange edit_range(const SampleArgs& args, int row) {
  if (args.edits.indptr == nullptr) return {0, 0};
  return {args.edits.indptr[row], args.edits.indptr[row + 1]};
}

// Logit of the entry's token after bias and penalties, rounded after each step as the CPU rounds.
template <typename T>
__device__ float edited_value(const SampleArgs& args, int row, const T* logits, int entry) {
  const float repetition = args.edits.penalties[3 * row], frequency = args.edits.penalties[3 * row + 1],
              presence = args.edits.penalties[3 * row + 2];
  const float count = args.edits.counts[entry];
  float value = __fadd_rn(to_float(logits[args.edits.ids[entry]]), args.edits.bias[entry]);
  if (count < 0.0f) return value;
  value = value > 0.0f ? __fdiv_rn(value, repetition) : __fmul_rn(value, repetition);
  return __fsub_rn(value, __fadd_rn(__fmul_rn(frequency, count), count > 0.0f ? presence : 0.0f));
}

}  // namespace astrai
