// rotary_store_kv kernel. A group of lanes holds one head of q, k or v, 8 elements (4 pairs) a lane, and the heads of all
// tokens are counted in one row: token by token, q heads, then k, then v. A group reads its head before it writes it and
// no other group touches it, so q_out may be q.
#pragma once

#include "astrai/fused_ops.h"
#include "common/pdl.cuh"
#include "common/reduce.cuh"
#include "common/vec.cuh"

namespace astrai {

constexpr int kRotaryStoreThreads = 128;

// kHeads heads of one group of lanes are in flight at once: more hide the memory's latency when there are many, fewer
// spread few heads over more multiprocessors.
template <typename T, bool kHasNorm, int kHeads>
__global__ void __launch_bounds__(kRotaryStoreThreads) rotary_store_kv_kernel(const RotaryStoreKvArgs args, int n_lanes) {
  using Group = Vec<T, 8>;
  using FreqsGroup = Vec<float, 4>;
  const int n_groups = kRotaryStoreThreads / n_lanes;
  const int lane = threadIdx.x % n_lanes;
  const int at = lane * 8;  // element within the head
  const bool has_elements = at < args.head_dim;
  const bool is_rotated = at < args.rotary_dim;
  const auto n_heads_a_token = static_cast<unsigned>(args.n_heads + 2 * args.n_kv_heads);
  const auto n_all_heads = static_cast<unsigned>(args.n_tokens) * n_heads_a_token;
  const unsigned first = blockIdx.x * static_cast<unsigned>(n_groups * kHeads) + threadIdx.x / n_lanes;
  wait_for_previous_kernel();
  let_next_kernel_start();

  Group values[kHeads];
  T* to[kHeads];  // null where there is nothing to do
  int64_t token[kHeads];
  bool is_v[kHeads];
  Group weights[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const unsigned place = first + static_cast<unsigned>(i * n_groups);
    to[i] = nullptr;
    values[i] = {};
    is_v[i] = false;
    if (place >= n_all_heads || !has_elements) continue;
    token[i] = place / n_heads_a_token;
    int head = static_cast<int>(place % n_heads_a_token);
    const T* from;
    if (head < args.n_heads) {
      from = static_cast<const T*>(args.q) + token[i] * args.q_strides[0] + head * args.q_strides[1];
      to[i] = static_cast<T*>(args.q_out) + token[i] * args.q_out_strides[0] + head * args.q_out_strides[1] + at;
      if constexpr (kHasNorm) weights[i] = *reinterpret_cast<const Group*>(static_cast<const T*>(args.q_norm) + at);
    } else {
      head -= args.n_heads;
      is_v[i] = head >= args.n_kv_heads;
      if (is_v[i]) head -= args.n_kv_heads;
      const int64_t slot = args.out_cache_loc[token[i]];
      // A write past the pool would change another request's cache; stopping the device is the lesser harm.
      if (slot >= args.n_slots) __trap();
      const int64_t* strides = is_v[i] ? args.v_strides : args.k_strides;
      const int64_t* cache_strides = is_v[i] ? args.v_cache_strides : args.k_cache_strides;
      from = static_cast<const T*>(is_v[i] ? args.v : args.k) + token[i] * strides[0] + head * strides[1];
      if (slot >= 0) {
        to[i] = static_cast<T*>(is_v[i] ? args.v_cache : args.k_cache) + slot * cache_strides[0] +
                head * cache_strides[1] + at;
      }
      if constexpr (kHasNorm) weights[i] = *reinterpret_cast<const Group*>(static_cast<const T*>(args.k_norm) + at);
    }
    values[i] = *reinterpret_cast<const Group*>(from + at);
  }

#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if constexpr (kHasNorm) {
      float sum = 0.0f;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += to_float(values[i].elements[e]) * to_float(values[i].elements[e]);
      sum = sum_over_lanes(sum, n_lanes);  // by every lane of the warp, whatever its head
      const float scale = rsqrtf(sum / static_cast<float>(args.head_dim) + args.eps);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const T normed = from_float<T>(to_float(values[i].elements[e]) * scale * to_float(weights[i].elements[e]));
        values[i].elements[e] = is_v[i] ? values[i].elements[e] : normed;
      }
    }
    if (to[i] == nullptr) continue;
    if (is_rotated && !is_v[i]) {
      int64_t freqs_row = token[i];
      if (args.positions != nullptr) {
        freqs_row = args.positions_are_64_bit ? static_cast<const int64_t*>(args.positions)[token[i]]
                                              : static_cast<const int32_t*>(args.positions)[token[i]];
        if (freqs_row < 0 || freqs_row >= args.n_freqs) __trap();
      }
      float table[8];  // cos, sin of each pair
      const auto* freqs = reinterpret_cast<const FreqsGroup*>(args.freqs + freqs_row * args.freqs_stride + at);
      *reinterpret_cast<FreqsGroup*>(table) = freqs[0];
      *reinterpret_cast<FreqsGroup*>(table + 4) = freqs[1];
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const float even = to_float(values[i].elements[e]), odd = to_float(values[i].elements[e + 1]);
        values[i].elements[e] = from_float<T>(even * table[e] - odd * table[e + 1]);
        values[i].elements[e + 1] = from_float<T>(even * table[e + 1] + odd * table[e]);
      }
    }
    *reinterpret_cast<Group*>(to[i]) = values[i];
  }
}

}  // namespace astrai
