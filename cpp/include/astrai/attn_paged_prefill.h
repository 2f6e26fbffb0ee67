// attn_paged_prefill: attention of packed new rows over the paged KV of their requests, with page_size 1 (one table entry
// a token). Checks its tensors, launches on the caller's stream and returns, as all of <astrai/ops.h>. Thread safe.
#pragma once

#include <cstdint>
#include <vector>

#include "astrai/tensor_view.h"

namespace astrai {

// The tensors of one call. Rows (the last dimension) are contiguous and start on 16 bytes; other strides are free.
struct PagedPrefillTensors {
  TensorView q;                 // [total_q, n_heads, head_dim] bfloat16/float16; RoPE applied
  TensorView k_cache, v_cache;  // [n_slots, n_kv_heads, head_dim] like q; the new rows' keys and values are in it
  TensorView req_to_token;      // [n_reqs, max_ctx] int32: slot of each position; only [0, kv_len) of a row is read
  TensorView req_pool_indices;  // [batch] int32: row of req_to_token
  TensorView kv_indptr;         // [batch + 1] int32 prefix sum of kv lengths, new rows included
  TensorView qo_indptr;         // [batch + 1] int32 prefix sum of new rows; request b owns rows [qo[b], qo[b + 1]) of q
  TensorView q_tile_to_batch;   // [n_tiles] int32 request of each tile, in any order; a negative one is skipped
  TensorView q_tile_to_index;   // [n_tiles] int32 i: the tile is rows [i * q_tile_rows, (i + 1) * q_tile_rows) of it
  TensorView out;               // like q
  TensorView lse;               // [total_q, n_heads] float32, contiguous; data null when not asked for
  TensorView workspace;         // [at least what the splits need] float32, contiguous; data null without splits
};

// How the keys of a launch's costliest tiles are spread over several thread blocks (Dao et al., Flash-Decoding, 2023): the
// n_tiles last tiles of q_tile_to_batch have theirs cut into splits of at least split_len, each from the first key that a
// row of the tile sees on and at most n_splits of a tile; the last one takes all that is left.
struct PrefillSplitPlan {
  int n_tiles = 0;    // 0: no tile is split
  int n_splits = 1;   // 2 or more where tiles are split
  int split_len = 0;  // keys; rounded up to whole tiles of the kernel
};

// Splits by which a launch of few rows over long keys fills n_multiprocessors; none where that gains nothing. Tiles are
// taken to be of q_tile_rows rows and in the order of BatchPlan, those that see most keys last.
// q_lens, kv_lens: [batch] of the requests that have tiles. window: 0 for all keys. The result depends on all of these, and
// with it the last bits of a row: where they must not depend on the batch, pass no splits. O(tiles). As the next, it throws
// std::invalid_argument for sizes below 1 and an n_heads that is no multiple of n_kv_heads.
PrefillSplitPlan plan_prefill_splits(const std::vector<int>& q_lens, const std::vector<int>& kv_lens, int q_tile_rows,
                                     int n_heads, int n_kv_heads, int window, int n_multiprocessors);
// float32 elements of a workspace that is enough for every plan of plan_prefill_splits() with these sizes.
int64_t prefill_workspace_size(int q_tile_rows, int n_heads, int n_kv_heads, int head_dim, int n_multiprocessors);

struct PagedPrefillOptions {
  bool is_causal = true;  // row i of q_len sees keys up to kv_len - q_len + i; else all kv_len of them
  float sm_scale = 0;     // positive factor of the scores
  int window = 0;         // with is_causal: the newest `window` of the keys a row may see; 0 means all
  float soft_cap = 0;     // scores become soft_cap * tanh(score / soft_cap); 0 means as they are
  int q_tile_rows = 0;    // rows of q in a tile; 0 means prefill_q_tile_rows()
  PrefillSplitPlan splits{};
};

// Writes out, and lse = natural log of the sum of exp(score) where it is given: rows that see no key get 0 and -inf.
// Without splits a row's result depends on its request's keys and its position alone, bit for bit: not on chunking, tiles or
// batch. With splits it also depends, in rounding, on where its keys are cut; the same call gives the same bits.
void attn_paged_prefill(const PagedPrefillTensors& tensors, const PagedPrefillOptions& options, void* stream);

// ---- checked arguments, which the launchers work from ----
// From here on not an interface: between astrai::core and astrai::cuda, it may change with any version.
struct PagedPrefillArgs {
  const void* q;
  const void *k_cache, *v_cache;
  void* out;
  float* lse;  // null when not asked for
  const int32_t *req_to_token, *req_pool_indices, *kv_indptr, *qo_indptr, *q_tile_to_batch, *q_tile_to_index;
  int64_t q_strides[2], k_strides[2], v_strides[2], out_strides[2];  // in elements: token (slot), head
  int64_t table_stride;                                              // elements from row to row of req_to_token
  float* workspace;                                                  // null without splits
  int64_t workspace_size;                                            // elements
  int n_tiles, n_heads, n_kv_heads, head_dim;
  int q_tile_rows;
  int n_split_tiles, n_splits, split_len;  // PrefillSplitPlan
  int heads_per_tile;  // query heads of one KV head whose rows share a thread block's tile
  int window;          // 2^30 for all keys
  float sm_scale, soft_cap;
  bool is_causal;
};
// heads_per_tile of these sizes: a divisor of the group, so that a tile reads the keys of one KV head.
int prefill_heads_per_tile(int n_heads, int n_kv_heads);
// Checks all but the device; q_tile_rows stays 0 where the options leave it.
PagedPrefillArgs check_attn_paged_prefill(const PagedPrefillTensors& tensors, const PagedPrefillOptions& options);

}  // namespace astrai
