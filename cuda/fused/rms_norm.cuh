// rms_norm and add_rms_norm kernels. A row stays in registers between its sum of squares and its product, so it is read
// once; rows that are too long or not on 16 bytes take a loop that reads them twice.
//
// The squares of a row are added in one order however its vectors are dealt to threads, so that the launcher may deal them by
// the number of rows: the 8 of a vector one after another, the vectors of each 32 as a tree, then these sums as a tree.
#pragma once

#include "astrai/fused_ops.h"
#include "common/pdl.cuh"
#include "common/reduce.cuh"
#include "common/vec.cuh"

namespace astrai {

constexpr int kNormMaxThreads = 512;
// From so many rows of at most this length on the next kernel starts before this one waits: it then brings its weights
// meanwhile. With fewer or longer ones that was slower (benchmarks/results/skinny_linear.md, narrow_linear.md).
constexpr int kNormEarlyRows = 17, kNormEarlyLen = 2048;

// Adds the residual where there is one and writes the sum back; returns what is normalised, rounded to T.
template <typename T, bool kAdd>
__device__ __forceinline__ T normalised_input(T x, T& residual) {
  if constexpr (kAdd) residual = from_float<T>(to_float(x) + to_float(residual));
  return kAdd ? residual : x;
}

constexpr int kNormMaxSums = 64;  // of 32 vectors each

// sums: of this thread's vectors lane, lane + n_lanes, ... of the row. shared: [kNormMaxSums]. Returns the row's sum.
template <int kVecs>
__device__ __forceinline__ float sum_of_row(float (&sums)[kVecs], int n_lanes, float* shared) {
  const int lanes_a_tree = min(n_lanes, kWarpSize);
  for (int offset = lanes_a_tree / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) sums[i] += __shfl_xor_sync(kWholeWarp, sums[i], offset);
  }
  if (n_lanes <= kWarpSize) {
#pragma unroll
    for (int offset = kVecs / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < offset; ++i) sums[i] += sums[i + offset];
    }
    return sums[0];
  }
  const int lane = threadIdx.x % kWarpSize, n_warps = n_lanes / kWarpSize;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) shared[threadIdx.x / kWarpSize + i * n_warps] = sums[i];
  }
  __syncthreads();
  const int n_sums = kVecs * n_warps;
  float sum = lane < n_sums ? shared[lane] : 0.0f;
  if (lane + kWarpSize < n_sums) sum += shared[lane + kWarpSize];
  return sum_over_lanes(sum, kWarpSize);
}

// blockDim.x lanes hold one row, kVecs vectors of 8 elements each; blockDim.y rows a block when the lanes are one warp or
// a power of two below, else one.
template <typename T, int kVecs, bool kAdd>
__global__ void __launch_bounds__(kNormMaxThreads) rms_norm_kernel(const RmsNormArgs args) {
  using Group = Vec<T, 8>;
  __shared__ float shared[kNormMaxSums];
  const int n_lanes = blockDim.x, lane = threadIdx.x;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int n_vecs = row < args.n_rows ? args.row_len / 8 : 0;
  const int64_t outer = args.n_inner == 1 ? row : row / args.n_inner;
  const int64_t inner = row - outer * args.n_inner;
  const auto* x = reinterpret_cast<const Group*>(static_cast<const T*>(args.x) + outer * args.x_strides[0] +
                                                 inner * args.x_strides[1]);
  auto* residual = reinterpret_cast<Group*>(static_cast<T*>(args.residual) + row * args.residual_stride);
  const auto* weight = static_cast<const Group*>(args.weight);
  const bool is_next_early = args.n_rows >= kNormEarlyRows && args.row_len <= kNormEarlyLen;
  if (is_next_early) let_next_kernel_start();
  wait_for_previous_kernel();
  if (!is_next_early) let_next_kernel_start();

  Group values[kVecs], scales[kVecs], added[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = lane + i * n_lanes;
    if (at >= n_vecs) continue;
    values[i] = x[at];
    if constexpr (kAdd) added[i] = residual[at];
    scales[i] = weight[at];
  }
  float sums[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    sums[i] = 0.0f;
    const int at = lane + i * n_lanes;
    if (at >= n_vecs) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      values[i].elements[e] = normalised_input<T, kAdd>(values[i].elements[e], added[i].elements[e]);
      const float value = to_float(values[i].elements[e]);
      sums[i] += value * value;
    }
    if constexpr (kAdd) residual[at] = added[i];
  }
  const float scale = rsqrtf(sum_of_row(sums, n_lanes, shared) / static_cast<float>(args.row_len) + args.eps);

  auto* out =
      reinterpret_cast<Group*>(static_cast<T*>(args.out) + outer * args.out_strides[0] + inner * args.out_strides[1]);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = lane + i * n_lanes;
    if (at >= n_vecs) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      values[i].elements[e] = from_float<T>(to_float(values[i].elements[e]) * scale * to_float(scales[i].elements[e]));
    }
    out[at] = values[i];
  }
}

// Any length and alignment: one block a row, one element a thread at a time.
template <typename T, bool kAdd>
__global__ void __launch_bounds__(kNormMaxThreads) rms_norm_loop_kernel(const RmsNormArgs args) {
  __shared__ float partials[kWarpSize];
  const int64_t row = blockIdx.x;
  const int64_t outer = row / args.n_inner, inner = row % args.n_inner;
  const T* x = static_cast<const T*>(args.x) + outer * args.x_strides[0] + inner * args.x_strides[1];
  T* residual = static_cast<T*>(args.residual) + row * args.residual_stride;
  const T* weight = static_cast<const T*>(args.weight);
  wait_for_previous_kernel();
  let_next_kernel_start();

  float sum = 0.0f;
  for (int at = threadIdx.x; at < args.row_len; at += blockDim.x) {
    T input = x[at];
    if constexpr (kAdd) input = normalised_input<T, kAdd>(input, residual[at]);
    sum += to_float(input) * to_float(input);
  }
  const float scale = rsqrtf(sum_over_block(sum, partials) / static_cast<float>(args.row_len) + args.eps);
  T* out = static_cast<T*>(args.out) + outer * args.out_strides[0] + inner * args.out_strides[1];
  for (int at = threadIdx.x; at < args.row_len; at += blockDim.x) {
    const float value = to_float(kAdd ? residual[at] : x[at]);
    out[at] = from_float<T>(value * scale * to_float(weight[at]));
  }
}

}  // namespace astrai
