// The last kernel of sample(): draws the rows whose survivors may be any number of tokens, by thread blocks that take a
// chunk of a row each. The chunks' bests meet by an integer maximum, which does not depend on who comes first.
//
// Noise costs more than all else, so most tokens are put aside without it. A few of them give a sum to beat. Another can
// beat it only if its noise is large, and that shows in the first bits that the noise is made of, against one exponential.
#pragma once

#include <cfloat>

#include "sampling/sample_row.cuh"
#include "sampling/scan.cuh"

namespace astrai {

constexpr int kSampledTokens = 4;  // of each thread's first vector: whose sums are the first to beat

// What decides the draw of one row.
struct WideRow {
  float max, temperature, inverse_temperature, floor;
  Place bound;
  uint64_t key;
  float lowest;  // no survivor's logit is below; finite

  __device__ __forceinline__ bool survives(float value, int id) const {
    return value > __int_as_float(0xff800000) && score_of(value, max, temperature) >= floor &&
           place_of(key_of(value), id) >= bound;
  }
  // A sum that is good to margin_of(it).
  __device__ __forceinline__ float quick_sum(float value, int id) const {
    return (value - max) * inverse_temperature + quick_gumbel_noise(noise_bits(key, id));
  }
};

__device__ __forceinline__ float margin_of(float sum) { return 2.0f * kQuickNoiseError + fabsf(sum) * 2e-6f; }

__device__ __forceinline__ WideRow wide_row(const SampleArgs& args, int row, const SampleRowState& state) {
  WideRow result;
  result.max = state.max;
  result.temperature = fmaxf(args.temperature[row], kMinTemperature);
  result.inverse_temperature = 1.0f / result.temperature;
  result.floor = logf(args.min_p[row]);
  result.bound = state.bound;
  result.key = row_key(args.seeds[row], args.positions[row]);
  // By a little more than floats can be off: survives() has the last word.
  const float at_floor = result.max + 1.00001f * result.floor * result.temperature - fabsf(result.max) * 1e-5f - 1e-30f;
  const float at_bound = result.bound == 0 ? -FLT_MAX : value_of(key_of_place(result.bound));
  result.lowest = fmaxf(fmaxf(at_floor, at_bound), -FLT_MAX);
  return result;
}

// The largest of all threads' values; largest_key: shared, 0 before the first call.
__device__ __forceinline__ float block_max_float(float value, uint32_t* largest_key) {
  const uint32_t warp_key = __reduce_max_sync(kWholeWarp, key_of(value));
  if (threadIdx.x % kWarpSize == 0) atomicMax(largest_key, warp_key);
  __syncthreads();
  return value_of(*largest_key);
}

// Whether a token may reach the sum that log2_offset stands for: exp2(score * log2(e) + log2_offset) is how often noise does,
// rounded up. Gumbel noise g comes from u with exp(-g) = -log(u) >= 1 - u, of which the first 23 bits are looked at.
__device__ __forceinline__ bool may_reach(float score_log2, float log2_offset, uint64_t bits) {
  float share;  // exp2f() would take care of numbers too small to matter here
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(score_log2 + log2_offset));
  const float one_and_rest = __uint_as_float(0x3f800000u | ~static_cast<uint32_t>(bits >> 32) >> 9);  // 1 + (1 - u)
  return one_and_rest <= 1.0000003f + share;
}

// Bit j * kGroup + e: logit e of this thread's vector j may win.
template <typename T>
__device__ __forceinline__ uint32_t candidates_of(const SampleArgs& args, const T* logits, const WideRow& row, int first_vec,
                                                  const uint8_t* allowed, const uint32_t* edited_bits, bool has_edits,
                                                  uint32_t* largest_key) {
  constexpr float kLog2E = 1.44269504f;
  const int n_vecs = (args.vocab_size + kGroup - 1) / kGroup;
  const auto vec_of = [&](int j) { return first_vec + j * kScanThreads + static_cast<int>(threadIdx.x); };
  const auto load = [&](int j, float* values) {
    load_group(logits, vec_of(j), args.vocab_size, args.is_vectorizable, values);
  };
  // Bit e: logit e is not ruled out by its value or the row's lists.
  const auto possible = [&](int j, const float* values) {
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < kGroup; ++e) bits |= values[e] >= row.lowest ? 1u << e : 0;
    return bits & ~skipped_bits(allowed, edited_bits, has_edits, vec_of(j), first_vec, n_vecs);
  };

  float values[kGroup], quick[kSampledTokens];
  load(0, values);
  uint32_t own = possible(0, values);
  float best = __int_as_float(0xff800000);
#pragma unroll
  for (int e = 0; e < kSampledTokens; ++e) {
    quick[e] = __int_as_float(0xff800000);
    if ((own >> e & 1) == 0 || !row.survives(values[e], vec_of(0) * kGroup + e)) continue;
    quick[e] = row.quick_sum(values[e], vec_of(0) * kGroup + e);
    if (quick[e] < __int_as_float(0x7f800000)) best = fmaxf(best, quick[e]);
  }
  const float to_beat = block_max_float(best, largest_key);
  const bool is_any = to_beat > __int_as_float(0xff800000);  // else every possible token stays
  const float log2_offset = is_any ? (0.01f + margin_of(to_beat) - to_beat) * kLog2E : __int_as_float(0x7f800000);
  const float to_log2 = row.inverse_temperature * kLog2E;

  uint32_t candidates = 0;
#pragma unroll
  for (int j = 0; j < kSubsetVecs; ++j) {
    float next_values[kGroup];
    if (j + 1 < kSubsetVecs) load(j + 1, next_values);
    if (j > 0) own = possible(j, values);
    if (own != 0) {
      uint32_t reaching = 0;
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        const bool is_sampled = j == 0 && e < kSampledTokens;
        const bool may = is_sampled ? quick[e % kSampledTokens] + margin_of(quick[e % kSampledTokens]) >= to_beat
                                    : may_reach((values[e] - row.max) * to_log2, log2_offset,
                                                noise_bits(row.key, vec_of(j) * kGroup + e));
        reaching |= may ? 1u << e : 0;
      }
      candidates |= (own & reaching) << j * kGroup;
    }
    if (j + 1 == kSubsetVecs) break;
#pragma unroll
    for (int e = 0; e < kGroup; ++e) values[e] = next_values[e];
  }
  return candidates;
}

template <typename T>
__global__ void __launch_bounds__(kScanThreads) sample_wide_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ uint32_t edited_bits[kScanThreads];
  __shared__ uint32_t largest_keys[2];
  __shared__ Place bests[kScanThreads / kWarpSize];
  const int row_idx = blockIdx.y, first_vec = blockIdx.x * (kChunkTokens / kGroup);
  const T* logits = static_cast<const T*>(args.logits) + row_idx * args.logits_stride;
  wait_for_previous_kernel();
  let_next_kernel_start();
  SampleRowState& state = args.states[row_idx];
  if (!state.is_wide) return;

  const EditRange edits = edit_range(args, row_idx);
  const bool has_edits = edits.begin < edits.end;
  const uint8_t* allowed = allowed_bits(args, row_idx);
  if (threadIdx.x < 2) largest_keys[threadIdx.x] = 0;
  if (has_edits) mark_edits(args, edits, first_vec * kGroup, edited_bits);
  __syncthreads();
  const WideRow row = wide_row(args, row_idx, state);
  uint32_t candidates =
      candidates_of(args, logits, row, first_vec, allowed, edited_bits, has_edits, &largest_keys[0]);

  // Calls visit(value, id) for this thread's candidates and takes away those that it returns false for.
  const auto keep_candidates = [&](auto visit) {
    for (uint32_t left = candidates; left != 0; left &= left - 1) {
      const int bit = __ffs(static_cast<int>(left)) - 1;
      const int id = (first_vec + bit / kGroup * kScanThreads + static_cast<int>(threadIdx.x)) * kGroup + bit % kGroup;
      if (!visit(to_float(logits[id]), id)) candidates &= ~(1u << bit);
    }
  };
  float best_quick = __int_as_float(0xff800000);
  keep_candidates([&](float value, int id) {
    if (!row.survives(value, id)) return false;
    const float sum = row.quick_sum(value, id);
    if (sum < __int_as_float(0x7f800000)) best_quick = fmaxf(best_quick, sum);
    return true;
  });
  const float to_beat = block_max_float(best_quick, &largest_keys[1]);
  Place best = 0;
  const auto consider = [&](float value, int id) {
    const float sum = __fadd_rn(score_of(value, row.max, row.temperature), gumbel_noise(noise_bits(row.key, id)));
    const Place place = place_of(key_of(sum), id);
    best = place > best ? place : best;
  };
  keep_candidates([&](float value, int id) {
    const float sum = row.quick_sum(value, id);
    if (sum + margin_of(sum) >= to_beat) consider(value, id);
    return true;
  });
  for (int entry = edits.begin + threadIdx.x; entry < edits.end; entry += kScanThreads) {
    const int id = args.edits.ids[entry], at = id - first_vec * kGroup;
    if (at < 0 || at >= kChunkTokens || !is_allowed(allowed, id)) continue;
    const float value = edited_value(args, row_idx, logits, entry);
    if (row.survives(value, id)) consider(value, id);
  }

#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const Place other = __shfl_xor_sync(kWholeWarp, best, offset);
    best = other > best ? other : best;
  }
  if (threadIdx.x % kWarpSize == 0) bests[threadIdx.x / kWarpSize] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const Place other : bests) best = other > best ? other : best;
  auto* row_best = reinterpret_cast<Place*>(&state.best);
  atomicMax(row_best, best);
  __threadfence();
  if (atomicAdd(&state.n_arrived, 1u) + 1 != gridDim.x) return;
  __threadfence();
  const int id = id_of(atomicMax(row_best, Place{0}));  // the last to arrive reads what all have left
  if (args.token_ids_are_64_bit) {
    static_cast<int64_t*>(args.token_ids)[row_idx] = id;
  } else {
    static_cast<int32_t*>(args.token_ids)[row_idx] = id;
  }
}

}  // namespace astrai
