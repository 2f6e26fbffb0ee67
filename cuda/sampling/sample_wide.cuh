// The last kernel of sample(): draws the rows whose survivors may be any number of tokens, by thread blocks that take some
// chunks of a row each. The blocks' bests meet by an integer maximum, which does not depend on who comes first.
//
// Noise costs more than all else, so most tokens are put aside without it. A few of them give a sum to beat. Another can
// beat it only if its noise is large, and that shows in the first bits that the noise is made of, against one exponential.
#pragma once

#include <cfloat>
#include <limits>

#include "sampling/sample_row.cuh"
#include "sampling/scan.cuh"

namespace astrai {

// What decides the draw of one row.
struct WideRow {
  float max, temperature, inverse_temperature, floor;
  Place bound;
  uint64_t key;
  float lowest;  // no survivor's logit is below; finite
  bool has_limit;  // else all finite tokens survive

  __device__ __forceinline__ bool survives(float value, int id) const {
    if (!(value > __int_as_float(0xff800000))) return false;
    return !has_limit || (score_of(value, max, temperature) >= floor && place_of(key_of(value), id) >= bound);
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
  result.has_limit = result.bound > 0 || result.floor > __int_as_float(0xff800000);
  return result;
}

// The largest of all threads' values, none of which ever falls; largest_key: shared, 0 before the first call, not that of the
// call before.
__device__ __forceinline__ float block_max_float(float value, uint32_t* largest_key) {
  const uint32_t warp_key = __reduce_max_sync(kWholeWarp, key_of(value));
  if (threadIdx.x % kWarpSize == 0) atomicMax(largest_key, warp_key);
  __syncthreads();
  return value_of(*largest_key);
}

// Whether a token may reach a sum that noise reaches in a share of exp2(log2_share), rounded up. Gumbel noise g comes from u
// with exp(-g) = -log(u) >= 1 - u, of which the first 23 bits are looked at. head: noise_head().
__device__ __forceinline__ bool may_reach(float log2_share, uint32_t head) {
  float share;  // exp2f() would take care of numbers too small to matter here
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(log2_share));
  const float one_and_rest = __uint_as_float(0x3f800000u | ~head >> 9);  // 1 + (1 - u)
  return one_and_rest <= 1.0000003f + share;
}

// Bit j * kGroup + e: logit e of this thread's vector j of the chunk may win over the sum to beat. values: of vector 0.
template <typename T>
__device__ __forceinline__ uint32_t candidates_of(const SampleArgs& args, const T* logits, const WideRow& row, int first_vec,
                                                  const uint8_t* allowed, const uint32_t* edited_bits, bool has_edits,
                                                  float (&values)[kGroup], float to_beat) {
  constexpr float kLog2E = 1.44269504f;
  const int n_vecs = (args.vocab_size + kGroup - 1) / kGroup;
  const bool is_any = to_beat > __int_as_float(0xff800000);  // else every possible token stays
  const float log2_offset = is_any ? (0.01f + margin_of(to_beat) - to_beat) * kLog2E : __int_as_float(0x7f800000);
  const float to_log2 = row.inverse_temperature * kLog2E;
  uint32_t candidates = 0;
#pragma unroll
  for (int j = 0; j < kSubsetVecs; ++j) {
    const int vec = first_vec + j * kScanThreads + static_cast<int>(threadIdx.x);
    float next_values[kGroup];
    if (j + 1 < kSubsetVecs) {
      load_group(logits, vec + kScanThreads, args.vocab_size, args.is_vectorizable, next_values);
    }
    // Logits that are there and not ruled out by their values, if there is a limit, or by the row's lists.
    uint32_t possible = (1u << max(0, min(kGroup, args.vocab_size - vec * kGroup))) - 1;
    possible &= ~skipped_bits(allowed, edited_bits, has_edits, vec, first_vec, n_vecs);
    if (row.has_limit) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) possible &= values[e] >= row.lowest ? ~0u : ~(1u << e);
    }
    if (possible != 0) {
      const uint64_t first_bits = row.key + static_cast<uint64_t>(vec * kGroup) * kGolden;
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        const float log2_share = fmaf(values[e] - row.max, to_log2, log2_offset);
        if (!may_reach(log2_share, noise_head(first_bits + e * kGolden))) possible &= ~(1u << e);
      }
      candidates |= possible << j * kGroup;
    }
#pragma unroll
    for (int e = 0; e < kGroup; ++e) values[e] = next_values[e];
  }
  return candidates;
}

// Thread blocks that share a row: as many as take the least time on a large device, where what a block pays for the row's
// constants and its first sum to beat counts like a chunk.
inline int wide_blocks_of(int batch, int n_chunks) {
  constexpr int kBlocksAtOnce = 4 * 132;
  int best = 1, least = std::numeric_limits<int>::max();
  for (int n_blocks = 1; n_blocks <= n_chunks; ++n_blocks) {
    const int n_rounds = (batch * n_blocks - 1) / kBlocksAtOnce + 1;
    const int time = n_rounds * ((n_chunks - 1) / n_blocks + 2);
    if (time < least) best = n_blocks, least = time;
  }
  return best;
}

template <typename T>
__global__ void __launch_bounds__(kScanThreads) sample_wide_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ uint32_t edited_bits[kScanThreads];
  __shared__ uint32_t largest_keys[2];
  __shared__ Place bests[kScanThreads / kWarpSize];
  constexpr int kChunkVecs = kChunkTokens / kGroup;
  const int row_idx = blockIdx.y;
  const T* logits = static_cast<const T*>(args.logits) + row_idx * args.logits_stride;
  wait_for_previous_kernel();
  let_next_kernel_start();
  SampleRowState& state = args.states[row_idx];
  if (!state.is_wide) return;

  const EditRange edits = edit_range(args, row_idx);
  const bool has_edits = edits.begin < edits.end;
  const uint8_t* allowed = allowed_bits(args, row_idx);
  if (threadIdx.x < 2) largest_keys[threadIdx.x] = 0;
  __syncthreads();
  const WideRow row = wide_row(args, row_idx, state);
  const int n_vecs = (args.vocab_size + kGroup - 1) / kGroup;
  const int n_chunks = (n_vecs + kChunkVecs - 1) / kChunkVecs;
  const int n_block_chunks = (n_chunks + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int begin_vec = blockIdx.x * n_block_chunks * kChunkVecs;
  const int end_vec = min(begin_vec + n_block_chunks * kChunkVecs, n_vecs);
  float best_quick = __int_as_float(0xff800000);
  Place best = 0;
  const auto consider = [&](float value, int id) {
    const float sum = __fadd_rn(score_of(value, row.max, row.temperature), gumbel_noise(noise_bits(row.key, id)));
    const Place place = place_of(key_of(sum), id);
    best = place > best ? place : best;
  };
  const auto raise_quick = [&](float value, int id) {
    const float sum = row.quick_sum(value, id);
    if (sum < __int_as_float(0x7f800000)) best_quick = fmaxf(best_quick, sum);
  };

  float to_beat;
  int turn = 0;
  for (int first_vec = begin_vec; first_vec < end_vec; first_vec += kChunkVecs) {
    const int vec = first_vec + static_cast<int>(threadIdx.x);
    float values[kGroup];
    load_group(logits, vec, args.vocab_size, args.is_vectorizable, values);
    if (has_edits) mark_edits(args, edits, first_vec * kGroup, edited_bits);
    if (first_vec == begin_vec) {  // a token of each thread gives the first sum to beat
      const int id = vec * kGroup;
      if (id < args.vocab_size && (skipped_bits(allowed, edited_bits, has_edits, vec, first_vec, n_vecs) & 1) == 0 &&
          row.survives(values[0], id)) {
        raise_quick(values[0], id);
      }
      to_beat = block_max_float(best_quick, &largest_keys[turn]);
    }
    uint32_t candidates = candidates_of(args, logits, row, first_vec, allowed, edited_bits, has_edits, values, to_beat);

    // Calls visit(value, id) for this thread's candidates and takes away those that it returns false for.
    const auto keep_candidates = [&](auto visit) {
      for (uint32_t left = candidates; left != 0; left &= left - 1) {
        const int bit = __ffs(static_cast<int>(left)) - 1;
        const int id = (first_vec + bit / kGroup * kScanThreads + static_cast<int>(threadIdx.x)) * kGroup + bit % kGroup;
        if (!visit(to_float(logits[id]), id)) candidates &= ~(1u << bit);
      }
    };
    keep_candidates([&](float value, int id) {
      if (!row.survives(value, id)) return false;
      raise_quick(value, id);
      return true;
    });
    turn ^= 1;
    to_beat = block_max_float(best_quick, &largest_keys[turn]);
    keep_candidates([&](float value, int id) {
      const float sum = row.quick_sum(value, id);
      if (sum + margin_of(sum) >= to_beat) consider(value, id);
      return true;
    });
  }
  for (int entry = edits.begin + threadIdx.x; entry < edits.end; entry += kScanThreads) {
    const int id = args.edits.ids[entry], vec = id / kGroup;
    if (vec < begin_vec || vec >= end_vec || !is_allowed(allowed, id)) continue;
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
