// store_kv kernel: one warp copies one row of k (blockIdx.y 0) or of v (1) into its slot, 16 bytes a lane while they
// last, then single elements. Elements are moved, not computed with: one kernel serves every dtype of 2 bytes.
#pragma once

#include <cstdint>

#include "astrai/ops.h"
#include "common/pdl.cuh"

namespace astrai {

constexpr int kStoreKvWarps = 4;  // rows of one thread block
constexpr int kWarpLanes = 32;
constexpr int kStoreKvVecs = 4;   // in flight in a lane

// A write past the pool would change another request's cache; stopping the device is the lesser harm.
__device__ __forceinline__ bool is_skipped(int64_t slot, int64_t n_slots) {
  if (slot >= n_slots) __trap();
  return slot < 0;
}

__global__ void __launch_bounds__(kStoreKvWarps* kWarpLanes) store_kv_kernel(const StoreKvArgs args) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kStoreKvWarps + threadIdx.x / kWarpLanes;
  const int lane = threadIdx.x % kWarpLanes;
  let_next_kernel_start();  // before the wait: worth 0.1 to 0.2 us to a few tokens, elsewhere it costs as much
  wait_for_previous_kernel();
  if (token >= args.n_tokens) return;
  const bool is_v = blockIdx.y == 1;
  const uint16_t* from = is_v ? args.v + token * args.v_stride : args.k + token * args.k_stride;
  const int64_t slot = args.out_cache_loc[token];
  uint16_t* to = is_v ? args.v_cache + slot * args.v_cache_stride : args.k_cache + slot * args.k_cache_stride;

  constexpr int kVecLen = sizeof(uint4) / sizeof(uint16_t);
  const int n_vecs = args.is_vectorizable ? args.row_len / kVecLen : 0;
  for (int first = lane; first - lane < n_vecs; first += kStoreKvVecs * kWarpLanes) {
    uint4 vecs[kStoreKvVecs];  // all loads before the first store, and before the slot is known
#pragma unroll
    for (int i = 0; i < kStoreKvVecs; ++i) {
      const int at = first + i * kWarpLanes;
      if (at < n_vecs) vecs[i] = reinterpret_cast<const uint4*>(from)[at];
    }
    if (is_skipped(slot, args.n_slots)) return;
#pragma unroll
    for (int i = 0; i < kStoreKvVecs; ++i) {
      const int at = first + i * kWarpLanes;
      if (at < n_vecs) reinterpret_cast<uint4*>(to)[at] = vecs[i];
    }
  }
  if (is_skipped(slot, args.n_slots)) return;
  for (int i = n_vecs * kVecLen + lane; i < args.row_len; i += kWarpLanes) to[i] = from[i];
}

}  // namespace astrai
