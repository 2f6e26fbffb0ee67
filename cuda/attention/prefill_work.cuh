// What one thread block of attn_paged_prefill works on, and the softmax arithmetic that all its kernels share. Whatever
// decides the bits of a row is here, or in prefill_splits.cuh where its keys are split: key tiles start at absolute multiples of
// the tile length and are taken in ascending order, and a key tile that a row does not see changes nothing (weights 0, factor
// exactly 1).
#pragma once

#include <cstdint>

#include "astrai/attn_paged_prefill.h"

namespace astrai {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Rows of a block: row r is head first_head + r % heads_per_tile of new token r / heads_per_tile.
struct PrefillWork {
  const int32_t* slots;   // [kv_len] slot of each position of the request
  int first_row;          // row of q that holds the block's first token
  int n_tokens;           // 0 when there is nothing to do
  int first_position;     // of the first token in its request; negative when q_len > kv_len
  int kv_len;
  int key_begin, key_end; // keys that some row of the block may see
};

// block_tokens: tokens of a thread block; block x takes tokens of tile n_tiles - 1 - x / n_parts, last part first, so that
// the tiles that see most keys start first.
__device__ __forceinline__ PrefillWork find_prefill_work(const PagedPrefillArgs& args, int block, int block_tokens) {
  PrefillWork work{};
  const int n_parts = (args.q_tile_rows + block_tokens - 1) / block_tokens;
  const int tile = args.n_tiles - 1 - block / n_parts, part = n_parts - 1 - block % n_parts;
  const int batch = args.q_tile_to_batch[tile];
  if (batch < 0) return work;
  const int q_begin = args.qo_indptr[batch], q_len = args.qo_indptr[batch + 1] - q_begin;
  const int kv_len = args.kv_indptr[batch + 1] - args.kv_indptr[batch];
  const int first_token = args.q_tile_to_index[tile] * args.q_tile_rows + part * block_tokens;
  const int tile_tokens = min(block_tokens, args.q_tile_rows - part * block_tokens);
  work.n_tokens = max(0, min(tile_tokens, q_len - first_token));
  if (work.n_tokens == 0) return work;
  work.slots = args.req_to_token + static_cast<int64_t>(args.req_pool_indices[batch]) * args.table_stride;
  work.first_row = q_begin + first_token;
  work.first_position = kv_len - q_len + first_token;
  work.kv_len = kv_len;
  work.key_end = args.is_causal ? max(0, min(kv_len, work.first_position + work.n_tokens)) : kv_len;
  work.key_begin = max(0, work.first_position - args.window + 1);
  return work;
}

// Keys that one row may see: [begin, end).
struct KeyRange {
  int begin, end;
};
__device__ __forceinline__ KeyRange visible_keys(const PagedPrefillArgs& args, const PrefillWork& work, int token) {
  const int position = work.first_position + token;
  return {max(0, position - args.window + 1), args.is_causal ? min(work.kv_len, position + 1) : work.kv_len};
}

__device__ __forceinline__ float exp2_approx(float x) {  // exactly 1 at 0 and 0 at -inf
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Running softmax of one row over ascending key tiles, in the scores' own unit: weight = exp2((score - max) * scale).
struct RowSoftmax {
  float max = -INFINITY;
  float sum = 0;  // of the weights of this thread's columns

  // Takes the maximum of a tile; returns the factor for what was summed before, exactly 1 when the maximum stays.
  __device__ __forceinline__ float raise(float tile_max, float scale) {
    const float raised = fmaxf(max, tile_max);
    const float shift = raised == -INFINITY ? 0.f : raised;  // a row that has seen no key keeps weights of exp2(-inf)
    const float factor = exp2_approx(__fmul_rn(__fsub_rn(max, shift), scale));
    max = raised;
    sum = __fmul_rn(sum, factor);
    return factor;
  }
  // -max * scale, the addend of every exponent.
  __device__ __forceinline__ float offset(float scale) const {
    return max == -INFINITY ? 0.f : __fmul_rn(-max, scale);
  }
};

// Combines the sums of the four lanes that share a row of an mma accumulator.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace astrai
