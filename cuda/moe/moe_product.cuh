// The grouped products of moe_gate_up and moe_down: a thread block multiplies one tile of pairs (<astrai/moe_tiles.h>) by a
// stretch of its expert's weights. Both operands stream through shared memory by cp.async; every element of the output is
// summed by one thread's mma in ascending order of the inner dimension, whatever the tile, so its bits do not depend on it.
//
// A stage of shared memory holds kRows rows of x and kColumns rows of weights, 64 elements (128 bytes) each; the 16-byte
// chunk of a row lies at its index exclusive-or'ed with row % 8, so that ldmatrix meets no bank twice.
#pragma once

#include "astrai/moe_ops.h"
#include "astrai/moe_tiles.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"
#include "common/warp_mma.cuh"

namespace astrai {

// kRows: a value of moe_tile_rows(). Small tiles are bound by reading weights, hence their many stages.
template <int kRows>
struct MoeProductShape {
  static constexpr int kColumns = kRows == 16 ? 64 : 128;
  static constexpr int kRowWarps = kRows == 16 ? 1 : kRows / 32;
  static constexpr int kColumnWarps = kRows == 16 ? 4 : 2;
  static constexpr int kWarpRows = kRows / kRowWarps, kWarpColumns = kColumns / kColumnWarps;
  static constexpr int kThreads = 32 * kRowWarps * kColumnWarps;
  static constexpr int kStages = kRows == 16 ? 6 : 3;
  static constexpr int kRowBytes = 128, kInner = kRowBytes / 2;  // elements of the inner dimension in a stage
  static constexpr int kStageBytes = (kRows + kColumns) * kRowBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

__device__ __forceinline__ uint32_t tile_chunk(int row, int chunk) {
  return static_cast<uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// One thread's part in copying kTileRows rows of a stage: chunk threadIdx.x % 8 of every (kThreads / 8)th row.
template <typename T, int kTileRows, int kThreads>
struct TileCopier {
  static constexpr int kCopies = kTileRows * 8 / kThreads, kRowStep = kThreads / 8;
  static_assert(kTileRows * 8 % kThreads == 0 && kRowStep % 8 == 0, "rows of a thread share their swizzle");
  const T* from[kCopies];  // null for rows of zeros
  uint32_t to = tile_chunk(threadIdx.x / 8, threadIdx.x % 8);

  __device__ __forceinline__ int row(int copy) const { return threadIdx.x / 8 + copy * kRowStep; }
  // fallback: any address that can be read. first: of the stage, in elements of a row of n_in.
  __device__ __forceinline__ void copy(uint32_t tile, const T* fallback, int first, int n_in) const {
    const bool is_inside = first + static_cast<int>(threadIdx.x % 8) * 8 < n_in;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool is_there = is_inside && from[i] != nullptr;
      cp_async_16(tile + to + i * kRowStep * 128, is_there ? from[i] + first : fallback, is_there ? 16 : 0);
    }
  }
};

// kIsGated: moe_gate_up, where rows of x are those of the pairs and columns are gate and up in turns; else moe_down, where
// rows of the output are those of the pairs.
template <typename T, int kRows, bool kIsGated>
__global__ void __launch_bounds__(MoeProductShape<kRows>::kThreads) moe_product_kernel(const MoeProductArgs args) {
  using Shape = MoeProductShape<kRows>;
  constexpr int kRowBlocks = Shape::kWarpRows / 16, kColumnBlocks = Shape::kWarpColumns / 8;
  constexpr int kOutColumns = kIsGated ? Shape::kColumns / 2 : Shape::kColumns;
  extern __shared__ __align__(128) unsigned char memory[];
  // moe_sort lets no kernel start before its tiles are there, so these and weights may be read before the wait: the first
  // stages of weights are then under way while the kernel before this one ends. Past L1, which may hold an older call's.
  const int4 tile = __ldcg(reinterpret_cast<const int4*>(args.tiles) + blockIdx.y);  // expert, positions [y, z), 0
  if (tile.x < 0) {
    wait_for_previous_kernel();
    return;
  }
  const int first_column = static_cast<int>(blockIdx.x) * kOutColumns;

  const T* const x = static_cast<const T*>(args.x);
  const T* const weights =
      static_cast<const T*>(args.weights) + static_cast<int64_t>(tile.x) * args.n_weight_rows * args.n_in;
  const int chunk = static_cast<int>(threadIdx.x % 8) * 8;
  TileCopier<T, Shape::kColumns, Shape::kThreads> columns;
#pragma unroll
  for (int i = 0; i < columns.kCopies; ++i) {
    const int column = columns.row(i);
    const int row = kIsGated                                ? moe_gate_up_row(column, first_column, args.n_out)
                    : first_column + column < args.n_out ? first_column + column
                                                         : -1;
    columns.from[i] = row < 0 ? nullptr : weights + static_cast<int64_t>(row) * args.n_in + chunk;
  }
  const uint32_t shared = shared_address(memory);
  const auto load_columns = [&](int step) {
    const uint32_t stage = shared + step % Shape::kStages * Shape::kStageBytes;
    columns.copy(stage + kRows * Shape::kRowBytes, x, step * Shape::kInner, args.n_in);
  };
  const int n_steps = (args.n_in + Shape::kInner - 1) / Shape::kInner;
#pragma unroll
  for (int step = 0; step < Shape::kStages - 1; ++step) {
    if (step < n_steps) load_columns(step);
  }

  wait_for_previous_kernel();
  let_next_kernel_start();
  TileCopier<T, kRows, Shape::kThreads> rows;
#pragma unroll
  for (int i = 0; i < rows.kCopies; ++i) {
    const int position = tile.y + rows.row(i);
    rows.from[i] = nullptr;
    if (position < tile.z) {
      const int64_t row = kIsGated ? args.order[position] / args.n_active : position;
      rows.from[i] = x + row * args.n_in + chunk;
    }
  }
  const auto load_rows = [&](int step) {
    rows.copy(shared + step % Shape::kStages * Shape::kStageBytes, x, step * Shape::kInner, args.n_in);
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / Shape::kColumnWarps * Shape::kWarpRows;
  const int warp_column = warp % Shape::kColumnWarps * Shape::kWarpColumns;
  float sums[kRowBlocks][kColumnBlocks][4] = {};
#pragma unroll
  for (int step = 0; step < Shape::kStages - 1; ++step) {
    if (step < n_steps) load_rows(step);
    cp_async_commit();  // the first group has all weights so far
  }
  for (int step = 0; step < n_steps; ++step) {
    cp_async_wait<Shape::kStages - 2>();
    __syncthreads();  // this stage has landed for all, and all are done with the one before it
    if (step + Shape::kStages - 1 < n_steps) {
      load_rows(step + Shape::kStages - 1);
      load_columns(step + Shape::kStages - 1);
    }
    cp_async_commit();
    const uint32_t stage = shared + step % Shape::kStages * Shape::kStageBytes;
#pragma unroll
    for (int inner = 0; inner < Shape::kInner / 16; ++inner) {
      uint32_t a[kRowBlocks][4];
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
        ldmatrix_x4(a[i], stage + tile_chunk(warp_row + i * 16 + lane % 16, inner * 2 + lane / 16));
      }
#pragma unroll
      for (int i = 0; i < kColumnBlocks / 2; ++i) {
        uint32_t b[4];  // two blocks of 8 columns
        const int column = warp_column + i * 16 + lane / 16 * 8 + lane % 8;
        ldmatrix_x4(b, stage + kRows * Shape::kRowBytes + tile_chunk(column, inner * 2 + lane / 8 % 2));
#pragma unroll
        for (int j = 0; j < kRowBlocks; ++j) {
          mma_16x8x16<T>(sums[j][2 * i], a[j], {b[0], b[1]});
          mma_16x8x16<T>(sums[j][2 * i + 1], a[j], {b[2], b[3]});
        }
      }
    }
  }

  T* const out = static_cast<T*>(args.out);
#pragma unroll
  for (int i = 0; i < kRowBlocks * 2; ++i) {  // a thread has rows lane / 4 and 8 below of each block
    const int position = tile.y + warp_row + i * 8 + lane / 4;
    if (position >= tile.z) continue;
    const int64_t row = kIsGated ? position : args.order[position];
    T* const out_row = out + row * args.n_out;
    const int at = i % 2 * 2;
#pragma unroll
    for (int j = 0; j < kColumnBlocks / (kIsGated ? 2 : 1); ++j) {
      const int column = first_column + warp_column / (kIsGated ? 2 : 1) + j * 8 + lane % 4 * 2;
      if (column >= args.n_out) continue;
      uint32_t pair;
      if constexpr (kIsGated) {
        const float(&gate)[4] = sums[i / 2][2 * j];
        const float(&up)[4] = sums[i / 2][2 * j + 1];
        pair = pack_2<T>(gate[at] / (1.0f + __expf(-gate[at])) * up[at],
                         gate[at + 1] / (1.0f + __expf(-gate[at + 1])) * up[at + 1]);
      } else {
        pair = pack_2<T>(sums[i / 2][j][at], sums[i / 2][j][at + 1]);
      }
      *reinterpret_cast<uint32_t*>(out_row + column) = pair;
    }
  }
}

}  // namespace astrai
