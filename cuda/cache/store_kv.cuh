// store_kv kernel: one warp copies one row of k (blockIdx.y 0) or of v (1) into its slot, 16 bytes a lane while they
// last, then single elements. Elements are moved, not computed with: one kernel serves every dtype of 2 bytes.
#pragma once

#include <cstdint>

#include "astrai/ops.h"

namespace astrai {

constexpr int kStoreKvWarps = 4;  // rows of one thread block
constexpr int kWarpLanes = 32;

__global__ void __launch_bounds__(kStoreKvWarps* kWarpLanes) store_kv_kernel(const StoreKvArgs args) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kStoreKvWarps + threadIdx.x / kWarpLanes;
  const int lane = threadIdx.x % kWarpLanes;
  if (token >= args.n_tokens) return;
  const int64_t slot = args.out_cache_loc[token];
  if (slot < 0) return;
  // A write past the pool would change another request's cache; stopping the device is the lesser harm.
  if (slot >= args.n_slots) __trap();

  const bool is_v = blockIdx.y == 1;
  const uint16_t* from = is_v ? args.v + token * args.v_stride : args.k + token * args.k_stride;
  uint16_t* to = is_v ? args.v_cache + slot * args.v_cache_stride : args.k_cache + slot * args.k_cache_stride;

  constexpr int kVecLen = sizeof(uint4) / sizeof(uint16_t);
  const int n_vecs = args.is_vectorizable ? args.row_len / kVecLen : 0;
  for (int i = lane; i < n_vecs; i += kWarpLanes) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  for (int i = n_vecs * kVecLen + lane; i < args.row_len; i += kWarpLanes) to[i] = from[i];
}

}  // namespace astrai
