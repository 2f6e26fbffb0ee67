// Sums over neighbouring threads, in a fixed order: the same inputs give the same bits.
#pragma once

namespace astrai {

constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

// The sum over aligned groups of n_lanes lanes (a power of two up to 32); every lane of the warp calls it and gets its
// group's sum.
__device__ __forceinline__ float sum_over_lanes(float value, int n_lanes) {
  for (int offset = n_lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kWholeWarp, value, offset);
  return value;
}

// The sum over a thread block of whole warps. partials: [32] shared floats that no thread reads any more.
__device__ __forceinline__ float sum_over_block(float value, float* partials) {
  value = sum_over_lanes(value, kWarpSize);
  const int lane = threadIdx.x % kWarpSize, n_warps = blockDim.x / kWarpSize;
  if (lane == 0) partials[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  return sum_over_lanes(lane < n_warps ? partials[lane] : 0.0f, kWarpSize);
}

}  // namespace astrai
