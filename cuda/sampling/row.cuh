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

// The row's bits of allowed tokens, null when all are, and for a faulty row that names no row of the bitmask.
__device__ __forceinline__ const uint8_t* allowed_bits(const SampleArgs& args, int row) {
  if (args.bitmask == nullptr) return nullptr;
  const int mask_row = args.bitmask_rows == nullptr ? row : args.bitmask_rows[row];
  return mask_row < 0 || mask_row >= args.n_bitmask_rows ? nullptr : args.bitmask + mask_row * args.bitmask_stride;
}

__device__ __forceinline__ bool is_allowed(const uint8_t* allowed, int id) {
  return allowed == nullptr || (allowed[id / 8] >> (id % 8) & 1) != 0;
}

// The row's edit list, -1 for none.
__device__ __forceinline__ int edit_list(const SampleArgs& args, int row) {
  return args.edits.rows == nullptr ? -1 : max(args.edits.rows[row], -1);
}

// The entries of the row's edit list; none for a faulty row whose list is not one of the lists, or longer than they are.
struct EditRange {
  int begin, end;
};
__device__ __forceinline__ EditRange edit_range(const SampleArgs& args, int row) {
  const int list = edit_list(args, row);
  if (list < 0 || list >= args.edits.n_lists) return {0, 0};
  const int len = args.edits.lens[list], begin = list * args.edits.capacity;
  return len < 0 || len > args.edits.capacity ? EditRange{0, 0} : EditRange{begin, begin + len};
}

// Whether this thread, one of n_threads, finds nothing in the row's lists that lies outside the tensors they point into. A
// row where one does is faulty; until that is known nothing outside is touched.
inline __device__ __noinline__ bool lists_are_sound(const SampleArgs& args, int row, int n_threads) {
  bool is_sound = args.bitmask_rows == nullptr || args.bitmask_rows[row] < args.n_bitmask_rows;
  const int list = edit_list(args, row);
  if (list < 0) return is_sound;
  if (list >= args.edits.n_lists) return false;
  const int len = args.edits.lens[list];
  is_sound = is_sound && len >= 0 && len <= args.edits.capacity;
  const EditRange range = edit_range(args, row);
  for (int entry = range.begin + static_cast<int>(threadIdx.x); entry < range.end; entry += n_threads) {
    const int id = args.edits.ids[entry];
    is_sound = is_sound && id >= 0 && id < args.vocab_size;
  }
  return is_sound;
}

// Logit of the entry's token after bias and penalties, rounded after each step as the CPU rounds.
template <typename T>
__device__ float edited_value(const SampleArgs& args, int row, const T* logits, int entry) {
  const float* penalties = args.edits.penalties + 3 * args.edits.rows[row];
  const float repetition = penalties[0], frequency = penalties[1], presence = penalties[2];
  const float count = args.edits.counts[entry];
  float value = __fadd_rn(to_float(logits[args.edits.ids[entry]]), args.edits.bias[entry]);
  if (count < 0.0f) return value;
  value = value > 0.0f ? __fdiv_rn(value, repetition) : __fmul_rn(value, repetition);
  return __fsub_rn(value, __fadd_rn(__fmul_rn(frequency, count), count > 0.0f ? presence : 0.0f));
}

}  // namespace astrai
