// skinny_linear kernel: up to 16 rows of x times a large weight. Every weight is loaded once, from device memory straight
// into the registers of the lane that multiplies it, 16 bytes at a time: in the matrix product of 16 tokens, 8 weight rows
// and 16 elements a lane holds elements 2l, 2l+1, 2l+8, 2l+9 of its row, but any order of the elements will do if both
// sides follow it, so lane l of four takes elements 8l to 8l+7 of each 32, of the weight and of x.
//
// A block has 8 warps. A warp takes one tile of 8 weight rows (a tile of gates and one of ups for silu_mul) and a slice of
// the row; the kSlices warps of a tile add up in the order of their slices. The first weights are asked for before the
// kernel waits for the one that makes x.
#pragma once

#include "astrai/skinny_linear.h"
#include "common/pdl.cuh"
#include "common/reduce.cuh"
#include "common/vec.cuh"
#include "common/warp_mma.cuh"
#include "fused/gated_act.cuh"

namespace astrai {

constexpr int kSkinnyThreads = 256, kSkinnyWarps = kSkinnyThreads / kWarpSize;
constexpr int kSkinnyTileRows = 8, kSkinnyStepLen = 32, kSkinnyTokens = 16;
constexpr int kSkinnyPadding = 32;  // elements behind each row of x: neighbouring rows start on other banks
constexpr unsigned kSkinnyFewBlocks = 256;  // all of them are there at once
constexpr int kSkinnyMaxSums = 64;  // of 32 vectors each, as in rms_norm
constexpr int kSkinnyFewRows = 2;  // from three rows on what blocks find in L1 is worth more
constexpr int kSkinnySomeRows = 8;  // half of what the matrix instruction takes

// Asks for n_bytes from address on, both multiples of 16, without waiting. Before 9.0 there is no such instruction.
__device__ __forceinline__ void prefetch_range_l2(const void* address, int n_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(n_bytes));
#endif
}

// Shared memory: x [n_rows, row_len + padding], then the sums of squares [n_rows, kSkinnyMaxSums].
inline size_t skinny_shared_bytes(const SkinnyLinearArgs& args) {
  const auto n_rows = static_cast<size_t>(args.n_rows);
  return n_rows * static_cast<size_t>(args.row_len + kSkinnyPadding) * 2 + n_rows * kSkinnyMaxSums * sizeof(float);
}

// Few rows without a norm: all copies on their way at once, where the loads of a long row would wait for one another.
template <typename T>
__device__ __forceinline__ void copy_skinny_rows(const SkinnyLinearArgs& args, T* rows) {
  const int n_vecs = args.row_len / 8, stride = args.row_len + kSkinnyPadding;
  for (int row = 0; row < args.n_rows; ++row) {
    const T* from = static_cast<const T*>(args.x) + row * args.x_stride;
    for (int at = threadIdx.x; at < n_vecs; at += kSkinnyThreads) {
      cp_async_16(shared_address(rows + row * stride + at * 8), from + at * 8);
    }
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

// Brings all rows of x into shared memory, normed where there is a norm: the sums in rms_norm's order.
template <typename T>
__device__ __forceinline__ void stage_skinny_rows(const SkinnyLinearArgs& args, T* rows, float* sums) {
  using Group = Vec<T, 8>;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int n_vecs = args.row_len / 8, n_sums = (n_vecs + kWarpSize - 1) / kWarpSize;
  const int stride = args.row_len + kSkinnyPadding;
  const bool has_norm = args.norm_weight != nullptr;
  if (!has_norm && args.n_rows <= kSkinnyFewRows) return copy_skinny_rows(args, rows);
  for (int item = warp; item < args.n_rows * n_sums; item += kSkinnyWarps) {
    const int row = item / n_sums, part = item - row * n_sums, at = part * kWarpSize + lane;
    float sum = 0.0f;
    if (at < n_vecs) {
      const Group values = reinterpret_cast<const Group*>(static_cast<const T*>(args.x) + row * args.x_stride)[at];
      reinterpret_cast<Group*>(rows + row * stride)[at] = values;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += to_float(values.elements[e]) * to_float(values.elements[e]);
    }
    if (!has_norm) continue;
    sum = sum_over_lanes(sum, kWarpSize);
    if (lane == 0) sums[row * kSkinnyMaxSums + part] = sum;
  }
  __syncthreads();
  if (!has_norm) return;
  for (int item = warp; item < args.n_rows * n_sums; item += kSkinnyWarps) {
    const int row = item / n_sums, part = item - row * n_sums, at = part * kWarpSize + lane;
    float sum = lane < n_sums ? sums[row * kSkinnyMaxSums + lane] : 0.0f;
    if (lane + kWarpSize < n_sums) sum += sums[row * kSkinnyMaxSums + lane + kWarpSize];
    const float scale = rsqrtf(sum_over_lanes(sum, kWarpSize) / static_cast<float>(args.row_len) + args.eps);
    if (at >= n_vecs) continue;
    const Group weight = static_cast<const Group*>(args.norm_weight)[at];
    Group& values = reinterpret_cast<Group*>(rows + row * stride)[at];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      values.elements[e] = from_float<T>(to_float(values.elements[e]) * scale * to_float(weight.elements[e]));
    }
  }
  __syncthreads();
}

// kSlices: warps that share a row of the weight. kGated: silu_mul. kMaxRows: of x, one of the limits above.
template <typename T, int kSlices, bool kGated, int kMaxRows>
__global__ void __launch_bounds__(kSkinnyThreads, 2) skinny_linear_kernel(const SkinnyLinearArgs args) {
  constexpr int kTiles = kGated ? 2 : 1, kUnroll = 8 / kTiles, kBlockTiles = kSkinnyWarps / kSlices;
  constexpr bool kMany = kMaxRows > kSkinnySomeRows;
  // A step's registers are asked for again as soon as it is multiplied, or those of all steps together: measured, each where
  // it is quicker (benchmarks/results/skinny_linear.md).
  constexpr int kBatch = kMaxRows > kSkinnyFewRows ? kUnroll : 1;
  constexpr int kColumns = kBlockTiles * kSkinnyTileRows;
  static_assert(kSkinnyTokens * kColumns <= kSkinnyThreads, "one sum a thread");
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float partial[kSkinnyWarps][kTiles][kSkinnyTokens][kSkinnyTileRows];
  T* rows = reinterpret_cast<T*>(memory);
  const int stride = args.row_len + kSkinnyPadding;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int slice = warp % kSlices, block_tile = warp / kSlices;
  const int first_column = blockIdx.x * kColumns;
  const int part = lane % 4 * 8;  // of each step's elements

  // A row behind the last is read again as the last one and dropped.
  const int column = min(first_column + block_tile * kSkinnyTileRows + lane / 4, args.n_out - 1);
  const T* weight = static_cast<const T*>(args.weight) + column * args.weight_stride + part;
  const int64_t to_ups = static_cast<int64_t>(args.n_out) * args.weight_stride;
  const int n_steps = (args.row_len + kSkinnyStepLen - 1) / kSkinnyStepLen;
  const int slice_steps = (n_steps + kSlices - 1) / kSlices;
  const int begin = slice * slice_steps, end = min(begin + slice_steps, n_steps);
  const int lane_end = min(end, (args.row_len - part + kSkinnyStepLen - 1) / kSkinnyStepLen);  // zeros from here on

  uint4 ahead[kUnroll][kTiles];  // steps that are loaded, or being loaded, and not multiplied
  auto load = [&](int place, int step) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const T* from = weight + step * kSkinnyStepLen + t * to_ups;
      ahead[place][t] = step < lane_end ? __ldcs(reinterpret_cast<const uint4*>(from)) : uint4{};
    }
  };
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) load(i, begin + i);
  // While this kernel waits, the memory brings the rest of a small weight into the L2 cache. A large one that is asked for
  // twice is slower (benchmarks/results/skinny_linear.md).
  const int after = begin + kUnroll;
  if (gridDim.x <= kSkinnyFewBlocks && part == 0 && after < end) {
    const int at = after * kSkinnyStepLen, n_bytes = (min(end * kSkinnyStepLen, args.row_len) - at) * 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) prefetch_range_l2(weight + at + t * to_ups, n_bytes);
  }
  let_next_kernel_start();
  wait_for_previous_kernel();

  // Every thread has one sum at most to write. What it adds to is there already.
  const int item_row = static_cast<int>(threadIdx.x) / kColumns, item_at = static_cast<int>(threadIdx.x) % kColumns;
  const int to = first_column + item_at;
  const bool has_item = item_row < args.n_rows && to < args.n_out;
  T* const out = static_cast<T*>(args.out) + item_row * args.out_stride + to;
  float before = 0.0f;
  if (args.adds && has_item) before = to_float(*out);
  stage_skinny_rows(args, rows, reinterpret_cast<float*>(memory + args.n_rows * stride * sizeof(T)));

  const int token = lane / 4;
  const bool has_first = token < args.n_rows, has_second = kMany && token + 8 < args.n_rows;
  float sums[kTiles][4] = {};
  auto multiply = [&](int step, const uint4 (&now)[kTiles]) {
    const T* from = rows + token * stride + step * kSkinnyStepLen + part;
    uint4 first{}, second{};
    if (step < lane_end && has_first) first = *reinterpret_cast<const uint4*>(from);
    if (step < lane_end && has_second) second = *reinterpret_cast<const uint4*>(from + 8 * stride);
    const uint32_t low[4] = {first.x, second.x, first.y, second.y}, high[4] = {first.z, second.z, first.w, second.w};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      mma_16x8x16<T>(sums[t], low, {now[t].x, now[t].y});
      mma_16x8x16<T>(sums[t], high, {now[t].z, now[t].w});
    }
  };
  for (int group = begin; group < end; group += kUnroll) {
#pragma unroll
    for (int place = 0; place < kUnroll; place += kBatch) {
      uint4 now[kBatch][kTiles];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) now[i][t] = ahead[place + i][t];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) load(place + i, group + kUnroll + place + i);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) multiply(group + place + i, now[i]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    float(&own)[kSkinnyTokens][kSkinnyTileRows] = partial[warp][t];
    own[token][lane % 4 * 2] = sums[t][0];
    own[token][lane % 4 * 2 + 1] = sums[t][1];
    if constexpr (kMany) {
      own[token + 8][lane % 4 * 2] = sums[t][2];
      own[token + 8][lane % 4 * 2 + 1] = sums[t][3];
    }
  }
  __syncthreads();

  if (!has_item) return;
  float products[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    products[t] = 0.0f;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      products[t] += partial[item_at / kSkinnyTileRows * kSlices + s][t][item_row][item_at % kSkinnyTileRows];
    }
    if (args.bias != nullptr) products[t] += to_float(static_cast<const T*>(args.bias)[to + t * args.n_out]);
    products[t] = to_float(from_float<T>(products[t]));
  }
  if constexpr (kGated) {
    *out = from_float<T>(activate<GatedAct::kSilu>(products[0]) * products[1]);
  } else {
    *out = from_float<T>(args.adds ? before + products[0] : products[0]);
  }
}

}  // namespace astrai
