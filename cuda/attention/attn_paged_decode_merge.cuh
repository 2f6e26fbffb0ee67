// attn_paged_decode, merging: first the warps of a thread block, then, in a kernel of its own, the splits of a request.
// A part is (max, sum, o): the largest logit in log2 units, the sum of weights and the weighted sum of values, both
// relative to that maximum. An empty part has max -inf and sum 0, its o is not read. Every order is fixed by the
// request's own number of splits.
#pragma once

#include "astrai/attn_paged_decode.h"
#include "attention/attn_paged_decode_tiles.cuh"
#include "common/pdl.cuh"
#include "common/vec.cuh"

namespace astrai::paged_decode {

// Where a part goes: to out and lse when it is the request's whole, else to its place in the workspace.
template <typename T, int kHeadDim>
struct PartWriter {
  const PagedDecodeArgs& args;
  int req;         // row of the batch
  int first_head;  // query head of row 0
  int place;       // in the workspace; -1: the result

  __device__ void write_o(int row, int dim, float o, float inverse_sum) const {
    const int head = first_head + row;
    if (place < 0) {
      T* out = static_cast<T*>(args.out) + req * args.out_stride + static_cast<int64_t>(head) * args.out_head_stride;
      out[dim] = from_float<T>(o * inverse_sum);
    } else {
      args.o_part[(static_cast<int64_t>(place) * args.n_heads + head) * kHeadDim + dim] = o;
    }
  }

  // By one thread for each row.
  __device__ void write_max_sum(int row, float max, float sum) const {
    const int head = first_head + row;
    if (place < 0) {
      constexpr float kLn2 = 0.6931471805599453f;
      if (args.lse != nullptr) args.lse[req * args.lse_stride + head] = (max + log2f(sum)) * kLn2;  // -inf + -inf
    } else {
      float2* to = reinterpret_cast<float2*>(args.ml_part) + static_cast<int64_t>(place) * args.n_heads + head;
      *to = make_float2(sum == sum ? max : sum, sum);  // fmaxf() drops a NaN, the merge must not
    }
  }
};

__device__ inline float inverse_or_zero(float sum) { return sum > 0.0f ? 1.0f / sum : 0.0f; }

// What a part counts for beside a larger maximum; 0 for an empty part, also beside another one, NaN for a NaN.
__device__ inline float part_weight(float max, float largest) {
  return max == -INFINITY ? 0.0f : exp2_fast(max - largest);
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
  };

  // All threads of the block; what Shared held before is not needed any more once one of them is here.
  __device__ static void run(Shared& shared, const WarpSoftmax<T, kHeadDim, kHeadTiles>& softmax, int n_rows,
                             const PartWriter<T, kHeadDim>& writer) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = softmax.sum[h][c];
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
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
      write_dims(shared, pass * kPassDims, n_rows, writer);
    }
  }

 private:
  __device__ static void write_dims(const Shared& shared, int first_dim, int n_rows,
                                    const PartWriter<T, kHeadDim>& writer) {
    const int dim = threadIdx.x % kPassDims;
    for (int row = threadIdx.x / kPassDims; row < n_rows; row += kThreads / kPassDims) {
      float largest = -INFINITY;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared.max[w][row]);
      float sum = 0.0f, o = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float weight = part_weight(shared.max[w][row], largest);
        sum += weight * shared.sum[w][row];
        o += weight * shared.o[w][row][dim];
      }
      if (first_dim + dim < kHeadDim) writer.write_o(row, first_dim + dim, o, inverse_or_zero(sum));
      if (first_dim + dim == 0) writer.write_max_sum(row, largest, sum);
    }
  }
};

constexpr int kMergeWarps = 4;

// Merges the splits of requests that have more than one: one thread block for each (request, query head). A warp takes
// every fourth run of kBatch splits, in order; the warps merge in order.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kMergeWarps * 32) merge_kernel(const PagedDecodeArgs args) {
  constexpr int kBatch = kHeadDim > 128 ? 8 : 16;  // splits in flight
  constexpr int kLaneDims = kHeadDim / 32;
  __shared__ float shared_o[kMergeWarps][kHeadDim];
  __shared__ float shared_sum[kMergeWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int req = blockIdx.x / args.n_heads, head = blockIdx.x % args.n_heads;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int first = args.split_indptr[req], n = args.split_indptr[req + 1] - first;
  if (n <= 1) return;
  const float2* max_sum = reinterpret_cast<const float2*>(args.ml_part) + static_cast<int64_t>(first) * args.n_heads + head;
  const float* o_part = args.o_part + (static_cast<int64_t>(first) * args.n_heads + head) * kHeadDim + lane;
  const int64_t o_stride = static_cast<int64_t>(args.n_heads) * kHeadDim;

  float largest = -INFINITY;
  for (int i = lane; i < n; i += 32) largest = fmaxf(largest, max_sum[static_cast<int64_t>(i) * args.n_heads].x);
#pragma unroll
  for (int shift = 16; shift > 0; shift /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, shift));

  float sum = 0.0f;
  float o[kLaneDims] = {};
  for (int i0 = warp * kBatch; i0 < n; i0 += kMergeWarps * kBatch) {
    const int own = i0 + lane % kBatch;
    float weight = 0.0f, weighted_sum = 0.0f;
    if (own < n) {
      const float2 part = max_sum[static_cast<int64_t>(own) * args.n_heads];
      weight = part_weight(part.x, largest);
      weighted_sum = weight * part.y;
    }
    float values[kBatch][kLaneDims];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool is_read = __shfl_sync(kAllLanes, weight, i) != 0.0f;  // an empty part has no values
#pragma unroll
      for (int d = 0; d < kLaneDims; ++d) values[i][d] = is_read ? o_part[(i0 + i) * o_stride + d * 32] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float factor = __shfl_sync(kAllLanes, weight, i);
      sum += __shfl_sync(kAllLanes, weighted_sum, i);
#pragma unroll
      for (int d = 0; d < kLaneDims; ++d) o[d] += factor * values[i][d];
    }
  }
#pragma unroll
  for (int d = 0; d < kLaneDims; ++d) shared_o[warp][d * 32 + lane] = o[d];
  if (lane == 0) shared_sum[warp] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) sum += shared_sum[w];
  const PartWriter<T, kHeadDim> writer{args, req, head, -1};
  const float inverse = inverse_or_zero(sum);
  for (int dim = threadIdx.x; dim < kHeadDim; dim += kMergeWarps * 32) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kMergeWarps; ++w) total += shared_o[w][dim];
    writer.write_o(0, dim, total, inverse);
  }
  if (threadIdx.x == 0) writer.write_max_sum(0, largest, sum);
}

}  // namespace astrai::paged_decode
