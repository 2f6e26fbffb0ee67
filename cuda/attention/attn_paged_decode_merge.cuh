// attn_paged_decode, merging the parts of a split's four warps. attn_paged_decode_splits.cuh merges the splits.
// A part is (max, sum, o): the largest logit in log2 units, the sum of weights and the weighted sum of values, both
// relative to that maximum. An empty part has max -inf and sum 0, its o is not read.
//
// The warps merge in shared memory, in their order. Where a unit is spread over thread blocks (attn_paged_decode.cuh) each warp
// leaves its part in the workspace, at place * kWarps + warp, and the splits' merge does both: the same sums, the same bits.
#pragma once

#include "astrai/attn_paged_decode.h"
#include "attention/attn_paged_decode_tiles.cuh"
#include "common/vec.cuh"

namespace astrai::paged_decode {

// Where a query row's part goes: to out and lse when it is the request's whole, else to its place in the workspace.
struct RowTarget {
  int req;    // row of the batch
  int head;   // query head
  int place;  // in the workspace; -1: the result
};

template <typename T, int kHeadDim>
__device__ void write_o(const PagedDecodeArgs& args, const RowTarget& to, int dim, float o, float inverse_sum) {
  if (to.place < 0) {
    T* out = static_cast<T*>(args.out) + to.req * args.out_stride + static_cast<int64_t>(to.head) * args.out_head_stride;
    out[dim] = from_float<T>(o * inverse_sum);
  } else {
    args.o_part[(static_cast<int64_t>(to.place) * args.n_heads + to.head) * kHeadDim + dim] = o;
  }
}

// By one thread for each row.
__device__ inline void write_max_sum(const PagedDecodeArgs& args, const RowTarget& to, float max, float sum) {
  if (to.place < 0) {
    constexpr float kLn2 = 0.6931471805599453f;
    if (args.lse != nullptr) args.lse[to.req * args.lse_stride + to.head] = (max + log2f(sum)) * kLn2;  // -inf + -inf
  } else {
    float2* part = reinterpret_cast<float2*>(args.ml_part) + static_cast<int64_t>(to.place) * args.n_heads + to.head;
    *part = make_float2(sum == sum ? max : sum, sum);  // fmaxf() drops a NaN, the merge must not
  }
}

__device__ inline float inverse_or_zero(float sum) { return sum > 0.0f ? 1.0f / sum : 0.0f; }

// What a part counts for beside a larger maximum; 0 for an empty part, also beside another one, NaN for a NaN.
__device__ inline float part_weight(float max, float largest) {
  return max == -INFINITY ? 0.0f : exp2_fast(max - largest);
}

// The sum of weights over the 8 lanes that share a column.
__device__ inline float column_sum(float sum) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}

// Sums the warps' softmaxes in the order of the warps, some dimensions at a time.
template <typename T, int kHeadDim, int kHeadTiles>
struct WarpMerge {
  static constexpr int kWarps = Shape<kHeadDim>::kWarps;
  static constexpr int kThreads = Shape<kHeadDim>::kThreads;
  static constexpr int kRows = kHeadTiles * 8;
  static constexpr int kPassDims = kHeadTiles > 1 ? 32 : 64 < kHeadDim ? 64 : kHeadDim;
  static constexpr int kPasses = (kHeadDim + kPassDims - 1) / kPassDims;
  struct Shared {
    float o[kWarps][kRows][kPassDims + 4];  // 4 keep the lanes of a fragment in different banks
    float max[kWarps][kRows], sum[kWarps][kRows];
    RowTarget targets[kRows];
    int ticket;
  };

  // All threads of the block; what Shared held before is not needed any more once one of them is here. target: of row
  // `lane` of the unit's n_rows, the same in all warps. ticket: the first thread's, for the others to find in Shared.
  __device__ static void run(Shared& shared, const WarpSoftmax<T, kHeadDim, kHeadTiles>& softmax,
                             const PagedDecodeArgs& args, int n_rows, const RowTarget& target, int ticket) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    if (threadIdx.x == 0) shared.ticket = ticket;
    if (warp == 0 && lane < n_rows) shared.targets[lane] = target;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float sum = column_sum(softmax.sum[h][c]);
        if (lane < 4) {
          shared.max[warp][h * 8 + lane * 2 + c] = softmax.max[h][c];
          shared.sum[warp][h * 8 + lane * 2 + c] = sum;
        }
      }
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (pass > 0) __syncthreads();
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = h * 8 + lane % 4 * 2 + i % 2;
          if (row >= n_rows) continue;
#pragma unroll
          for (int d = 0; d < kPassDims / 16; ++d) {
            const int first = pass * kPassDims / 16;
            if (first + d < kHeadDim / 16) {
              shared.o[warp][row][d * 16 + lane / 4 + i / 2 * 8] = softmax.o[first + d][h][i];
            }
          }
        }
      }
      __syncthreads();
      write_dims(shared, args, pass * kPassDims, n_rows);
    }
  }

  // What run() would give shared memory, to the workspace instead. For one head tile; targets: the warp's own place.
  __device__ static void write_alone(const WarpSoftmax<T, kHeadDim, kHeadTiles>& softmax, const PagedDecodeArgs& args,
                                     int n_rows, int first_head, int place, int lane) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float sum = column_sum(softmax.sum[0][c]);
      const int row = lane % 4 * 2 + c;
      if (row >= n_rows) continue;
      if (lane < 4) write_max_sum(args, {0, first_head + row, place}, softmax.max[0][c], sum);
      float* o = args.o_part + (static_cast<int64_t>(place) * args.n_heads + first_head + row) * kHeadDim + lane / 4;
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        o[d * 16] = softmax.o[d][0][c];
        o[d * 16 + 8] = softmax.o[d][0][c + 2];
      }
    }
  }

 private:
  __device__ static void write_dims(const Shared& shared, const PagedDecodeArgs& args, int first_dim, int n_rows) {
    const int dim = threadIdx.x % kPassDims;
    for (int row = threadIdx.x / kPassDims; row < n_rows; row += kThreads / kPassDims) {
      float largest = -INFINITY;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared.max[w][row]);
      float sum = 0.0f, o = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float weight = part_weight(shared.max[w][row], largest);
        sum = fmaf(weight, shared.sum[w][row], sum);
        o = fmaf(weight, shared.o[w][row][dim], o);
      }
      const RowTarget to = shared.targets[row];
      if (first_dim + dim < kHeadDim) write_o<T, kHeadDim>(args, to, first_dim + dim, o, inverse_or_zero(sum));
      if (first_dim + dim == 0) write_max_sum(args, to, largest, sum);
    }
  }
};

}  // namespace astrai::paged_decode
