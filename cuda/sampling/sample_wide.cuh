// The last kernel of sample(): draws the rows whose survivors may be any number of tokens, by thread blocks that take a
// chunk of a row each. The chunks' bests meet by an integer maximum, which does not depend on who comes first.
#pragma once

#include "sampling/sample_row.cuh"
#include "sampling/scan.cuh"

namespace astrai {

template <typename T>
__global__ void __launch_bounds__(kScanThreads) sample_wide_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ uint32_t edited_bits[kScanThreads];
  __shared__ uint32_t best_quick_key;
  __shared__ Place bests[kScanThreads / kWarpSize];
  const int row = blockIdx.y, first_vec = blockIdx.x * (kChunkTokens / kGroup);
  const int n_vecs = (args.vocab_size + kGroup - 1) / kGroup;
  const T* logits = static_cast<const T*>(args.logits) + row * args.logits_stride;
  wait_for_previous_kernel();
  let_next_kernel_start();
  SampleRowState& state = args.states[row];
  if (!state.is_wide) return;

  const EditRange edits = edit_range(args, row);
  const bool has_edits = edits.begin < edits.end;
  const uint8_t* allowed = allowed_bits(args, row);
  if (threadIdx.x == 0) best_quick_key = 0;
  if (has_edits) mark_edits(args, edits, first_vec * kGroup, edited_bits);
  __syncthreads();
  const float temperature = fmaxf(args.temperature[row], kMinTemperature);
  const float max = state.max, floor = logf(args.min_p[row]);
  const Place bound = state.bound;
  const uint64_t key = row_key(args.seeds[row], args.positions[row]);
  const float neg_inf = __int_as_float(0xff800000), pos_inf = __int_as_float(0x7f800000);

  // First a quick sum of every survivor's score and noise, good to kQuickNoiseError and the sum's own rounding; then the
  // exact one of those few that the quick ones leave in the running.
  const auto margin_of = [](float sum) { return 2.0f * kQuickNoiseError + fabsf(sum) * 1e-6f; };
  float quick[kSubsetVecs][kGroup];
  float best_quick = neg_inf;
#pragma unroll
  for (int j = 0; j < kSubsetVecs; ++j) {
    const int vec = first_vec + j * kScanThreads + threadIdx.x;
    float values[kGroup];
    load_group(logits, vec, args.vocab_size, args.is_vectorizable, values);
    const uint32_t skipped = skipped_bits(allowed, edited_bits, has_edits, vec, first_vec, n_vecs);
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      const int id = vec * kGroup + e;
      const float score = score_of(values[e], max, temperature);
      const bool survives = (skipped >> e & 1) == 0 && values[e] > neg_inf && score >= floor &&
                            place_of(key_of(values[e]), id) >= bound;
      quick[j][e] = survives ? score + quick_gumbel_noise(noise_bits(key, id)) : neg_inf;
      if (quick[j][e] < pos_inf) best_quick = fmaxf(best_quick, quick[j][e]);
    }
  }
  const uint32_t warp_key = __reduce_max_sync(kWholeWarp, key_of(best_quick));
  if (threadIdx.x % kWarpSize == 0) atomicMax(&best_quick_key, warp_key);
  __syncthreads();
  const float to_beat = value_of(best_quick_key);

  Place best = 0;
  const auto consider = [&](float value, int id) {
    const float sum = __fadd_rn(score_of(value, max, temperature), gumbel_noise(noise_bits(key, id)));
    const Place place = place_of(key_of(sum), id);
    best = place > best ? place : best;
  };
#pragma unroll
  for (int j = 0; j < kSubsetVecs; ++j) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      if (quick[j][e] == neg_inf || quick[j][e] + margin_of(quick[j][e]) < to_beat) continue;
      const int id = (first_vec + j * kScanThreads + threadIdx.x) * kGroup + e;
      consider(to_float(logits[id]), id);
    }
  }
  for (int entry = edits.begin + threadIdx.x; entry < edits.end; entry += kScanThreads) {
    const int id = args.edits.ids[entry], at = id - first_vec * kGroup;
    if (at < 0 || at >= kChunkTokens || !is_allowed(allowed, id)) continue;
    const float value = edited_value(args, row, logits, entry);
    if (value > neg_inf && score_of(value, max, temperature) >= floor && place_of(key_of(value), id) >= bound) {
      consider(value, id);
    }
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
    static_cast<int64_t*>(args.token_ids)[row] = id;
  } else {
    static_cast<int32_t*>(args.token_ids)[row] = id;
  }
}

}  // namespace astrai
