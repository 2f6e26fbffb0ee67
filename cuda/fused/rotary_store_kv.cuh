// rotary_store_kv kernel. A group of lanes holds one run of a token's q, k or v heads, 8 elements (4 pairs) of each a lane.
// A group reads its heads before it writes them and no other group touches them, so q_out may be q.
#pragma once

#include "astrai/fused_ops.h"
#include "common/pdl.cuh"
#include "common/reduce.cuh"
#include "rotary/rotate.cuh"

namespace astrai {

constexpr int kRotaryStoreThreads = 128;

// How the heads of one token are cut: first the runs of q, then those of k, then as many of v.
struct RotaryStoreRuns {
  HeadRuns q, kv;
};

// One run: where its heads come from and go to. All pointers are to this lane's elements of the first head.
template <typename T>
struct HeadRun {
  const T* from;
  T* to;  // null where there is nothing to write
  const T* weight;
  int64_t from_stride, to_stride;  // from head to head
  int n_heads;
  bool is_v;
};

template <typename T>
__device__ __forceinline__ HeadRun<T> head_run(const RotaryStoreKvArgs& args, const RotaryStoreRuns& runs, int64_t token,
                                               int run, int at) {
  HeadRun<T> result;
  if (run < runs.q.n_runs) {
    const int first = run * runs.q.n_heads;
    result.from = static_cast<const T*>(args.q) + token * args.q_strides[0] + first * args.q_strides[1] + at;
    result.to = static_cast<T*>(args.q_out) + token * args.q_out_strides[0] + first * args.q_out_strides[1] + at;
    result.weight = static_cast<const T*>(args.q_norm) + at;
    result.from_stride = args.q_strides[1];
    result.to_stride = args.q_out_strides[1];
    result.n_heads = min(runs.q.n_heads, args.n_heads - first);
    result.is_v = false;
    return result;
  }
  run -= runs.q.n_runs;
  result.is_v = run >= runs.kv.n_runs;
  const int first = (result.is_v ? run - runs.kv.n_runs : run) * runs.kv.n_heads;
  const int64_t slot = args.out_cache_loc[token];
  // A write past the pool would change another request's cache; stopping the device is the lesser harm.
  if (slot >= args.n_slots) __trap();
  const int64_t* strides = result.is_v ? args.v_strides : args.k_strides;
  const int64_t* cache_strides = result.is_v ? args.v_cache_strides : args.k_cache_strides;
  T* cache = static_cast<T*>(result.is_v ? args.v_cache : args.k_cache);
  result.from = static_cast<const T*>(result.is_v ? args.v : args.k) + token * strides[0] + first * strides[1] + at;
  result.to = slot < 0 ? nullptr : cache + slot * cache_strides[0] + first * cache_strides[1] + at;
  result.weight = static_cast<const T*>(args.k_norm) + at;
  result.from_stride = strides[1];
  result.to_stride = cache_strides[1];
  result.n_heads = min(runs.kv.n_heads, args.n_kv_heads - first);
  return result;
}

// The row of the table for a token.
__device__ __forceinline__ int64_t freqs_row(const RotaryStoreKvArgs& args, int64_t token) {
  if (args.positions == nullptr) return token;
  const int64_t row = args.positions_are_64_bit ? static_cast<const int64_t*>(args.positions)[token]
                                                : static_cast<const int32_t*>(args.positions)[token];
  if (row < 0 || row >= args.n_freqs) __trap();
  return row;
}

// Blocks of (lanes of a head, runs). Up to kHeads heads a run: more loads in flight and fewer of the table and the
// weights, but few heads must still fill the device.
template <typename T, bool kHasNorm, int kHeads>
__global__ void __launch_bounds__(kRotaryStoreThreads)
    rotary_store_kv_kernel(const RotaryStoreKvArgs args, const RotaryStoreRuns runs) {
  using Group = Vec<T, 8>;
  using FreqsGroup = Vec<float, 4>;
  const int n_lanes = blockDim.x, at = threadIdx.x * 8;  // element within the head
  const auto n_runs_a_token = static_cast<unsigned>(runs.q.n_runs + 2 * runs.kv.n_runs);
  const unsigned place = blockIdx.x * blockDim.y + threadIdx.y;
  const int64_t token = place / n_runs_a_token;
  let_next_kernel_start();  // before the wait: worth 0.1 to 0.2 us to a few tokens, elsewhere it costs as much
  wait_for_previous_kernel();

  Group values[kHeads] = {};
  Group weight = {};
  alignas(16) float table[8];  // cos, sin of each pair
  HeadRun<T> run{};
  const bool has_elements = token < args.n_tokens && at < args.head_dim;
  bool is_rotated = false;
  if (has_elements) {
    run = head_run<T>(args, runs, token, static_cast<int>(place % n_runs_a_token), at);
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (i < run.n_heads) values[i] = *reinterpret_cast<const Group*>(run.from + i * run.from_stride);
    }
    is_rotated = !run.is_v && at < args.rotary_dim;
    if (is_rotated) {
      const auto* freqs = reinterpret_cast<const FreqsGroup*>(args.freqs + freqs_row(args, token) * args.freqs_stride + at);
      *reinterpret_cast<FreqsGroup*>(table) = freqs[0];
      *reinterpret_cast<FreqsGroup*>(table + 4) = freqs[1];
    }
    if constexpr (kHasNorm) weight = *reinterpret_cast<const Group*>(run.weight);
  }

  if constexpr (kHasNorm) {
    float sums[kHeads];
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      sums[i] = 0.0f;
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[i] += to_float(values[i].elements[e]) * to_float(values[i].elements[e]);
    }
    for (int offset = n_lanes / 2; offset > 0; offset /= 2) {  // by every lane of the warp, whatever its head
#pragma unroll
      for (int i = 0; i < kHeads; ++i) sums[i] += __shfl_xor_sync(kWholeWarp, sums[i], offset);
    }
    if (!run.is_v) {
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        const float scale = rsqrtf(sums[i] / static_cast<float>(args.head_dim) + args.eps);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          values[i].elements[e] =
              from_float<T>(to_float(values[i].elements[e]) * scale * to_float(weight.elements[e]));
        }
      }
    }
  }
  if (run.to == nullptr) return;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i >= run.n_heads) continue;
    if (is_rotated) rotate_pairs<4>(values[i].elements, table);
    *reinterpret_cast<Group*>(run.to + i * run.to_stride) = values[i];
  }
}

}  // namespace astrai
