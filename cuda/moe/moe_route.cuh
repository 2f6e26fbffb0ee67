// moe_route kernel: one warp a row, whose lanes hold the shares of all experts; n_active rounds take the largest left.
#pragma once

#include "astrai/moe_ops.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"

namespace astrai {

constexpr int kMoeRouteWarps = 4;
constexpr unsigned kFullWarp = 0xffffffffu;

// Orders by share and then by lower number. Shares are not negative, so their bits order them, and NaN lies above all:
// a row of NaN still chooses experts that exist. Never 0.
__device__ __forceinline__ unsigned long long route_key(float share, int expert) {
  const unsigned bits = __float_as_uint(share) & 0x7fffffffu;
  return static_cast<unsigned long long>(bits) << 32 | (kFullWarp - static_cast<unsigned>(expert));
}

// kPerLane: experts of a lane, which has every 32nd.
template <typename T, int kPerLane>
__global__ void __launch_bounds__(kMoeRouteWarps * 32) moe_route_kernel(const MoeRouteArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kMoeRouteWarps + threadIdx.x / 32;
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (row >= args.n_rows) return;  // by whole warps

  const T* logits = static_cast<const T*>(args.logits) + row * args.n_experts;
  float shares[kPerLane];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    shares[i] = expert < args.n_experts ? to_float(logits[expert]) : -INFINITY;
    largest = fmaxf(largest, shares[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    shares[i] = lane + 32 * i < args.n_experts ? expf(shares[i] - largest) : 0.0f;
    sum += shares[i];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
  unsigned long long keys[kPerLane];  // 0: not there, or taken
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    keys[i] = expert < args.n_experts ? route_key(shares[i] / sum, expert) : 0;
  }

  int own_expert = 0;  // of choice number lane
  float own_share = 0.0f, chosen_sum = 0.0f;
  for (int choice = 0; choice < args.n_active; ++choice) {
    unsigned long long best = keys[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) best = keys[i] > best ? keys[i] : best;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const unsigned long long other = __shfl_xor_sync(kFullWarp, best, step);
      best = other > best ? other : best;
    }
    const int expert = static_cast<int>(kFullWarp - static_cast<unsigned>(best));
    const float share = __uint_as_float(static_cast<unsigned>(best >> 32));
    chosen_sum += share;
    if (lane == choice) {
      own_expert = expert;
      own_share = share;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) keys[i] = keys[i] == best ? 0 : keys[i];
  }
  if (lane < args.n_active) {
    const int64_t pair = row * args.n_active + lane;
    args.ids[pair] = own_expert;
    args.weights[pair] = args.norm_topk_prob ? own_share / chosen_sum : own_share;
  }
}

}  // namespace astrai
