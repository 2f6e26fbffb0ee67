// attn_paged_decode on a GPU: one new token per request attends its paged KV, read in place through the token table.
// Like all GPU operations (ops.h) it launches on the caller's stream and returns: no allocation, no synchronisation, may
// be captured into a CUDA graph; every length is read on the device, so a captured call replays with other lengths.
#pragma once

#include <cstdint>
#include <optional>

#include "astrai/tensor_view.h"

namespace astrai {

// split_len is a multiple of the first, in which every kernel's tiles fit, and at most the second.
constexpr int kDecodeTileTokens = 128;
constexpr int kMaxDecodeSplitLen = 512;

// Query rows of one KV head that a thread block attends together: at head_dim 256 a thread has no registers for more.
constexpr int decode_stack_rows(int head_dim) { return head_dim > 128 ? 8 : 16; }
// Requests that share slots whose query rows fit into those: what BatchPlan takes as stack_len. At least 1.
int decode_stack_len(int n_heads, int n_kv_heads, int head_dim);

// The KV of a request is cut into splits of split_len tokens from its start. A split is attended by one thread block per
// KV head; the splits of a request are merged in their order (Dao et al., Flash-Decoding, 2023). So a row of out depends
// on its request alone, to the bit: not on the batch, the slots, the plan or the device's size.
struct PagedDecodeCall {
  TensorView q;                 // [B, H, D] bfloat16/float16, RoPE applied; rows start on 16 bytes, other strides free
  TensorView k_cache, v_cache;  // [n_slots, H_kv, D] of q's dtype; rows start on 16 bytes; H a multiple of H_kv
  TensorView req_to_token;      // [n_rows, max_len] int32 rows: token slot of each position of each request
  TensorView req_pool_indices;  // [B] int32: row of req_to_token
  TensorView kv_indptr;         // [B + 1] int32 prefix sum of the KV lengths, this step's token included
  TensorView split_indptr;      // [B + 1] int32 prefix sum of max(1, ceil(KV length / split_len))
  TensorView o_part;            // [max_splits, H, D] float32 workspace, contiguous; max_splits >= split_indptr[B]. Four
                                // times as many let a few splits spread over more thread blocks
  TensorView ml_part;           // [max_splits, H, 2] float32 workspace: largest logit (base 2), sum of weights
  TensorView out;               // [B, H, D] of q's dtype
  std::optional<TensorView> new_k, new_v;  // [B, H_kv, D] this step's keys and values, both or neither: used for each
                                           // request's last position and written to its slot (a negative one: not)
  std::optional<TensorView> lse;           // [B, H] float32 out: natural log of the sum of exp(logit); -inf without KV
  // A plan of the work (decode_runs.h), in which requests that share slots share it: all three or none. Without, the units
  // are the requests' splits, found on the way. Not used with a window.
  std::optional<TensorView> members;       // [B, 4] int32, DecodeMember
  std::optional<TensorView> n_units;       // [2] int32: their number, then a counter, 0 before each call and after it
  std::optional<TensorView> units;         // [at least n_units, 2] int32, DecodeUnit
  float sm_scale = 1;                      // usually D ** -0.5
  float soft_cap = 0;                     // > 0: logits become cap * tanh(logit / cap)
  int64_t window = 0;                      // > 0: only the last `window` positions are seen
  int64_t split_len = 512;
  int64_t stack_len = 1;                   // that units were made for; at most decode_stack_len()
  // The index arrays and the table were complete before the kernel ahead of this call on the stream began, or the host wrote
  // them: they are read, and the first slots fetched towards the L2 cache, while that kernel still runs.
  bool is_plan_settled = false;
};

// Query head h reads KV head h / (H / H_kv). Sums are float32. A request without KV gives zeros. Slots of the visible
// positions must lie in 0..n_slots - 1; no other slot and no table entry behind a KV length is read.
// Throws std::invalid_argument for tensors that do not fit, KernelUnavailableError without a kernel for (dtype, D).
void attn_paged_decode(const PagedDecodeCall& call, void* stream);

// ---- checked arguments, which the kernel works from; strides are in elements ----
// From here on not an interface: between astrai::core and astrai::cuda, it may change with any version.
struct PagedDecodeArgs {
  const void* q;                      // [batch, n_heads, head_dim]
  void *k_cache, *v_cache;            // [n_slots, n_kv_heads, head_dim]
  const void *new_k, *new_v;          // [batch, n_kv_heads, head_dim], null when there are none
  void* out;                          // [batch, n_heads, head_dim]
  float* lse;                         // [batch, n_heads] or null
  const int32_t* req_to_token;        // [n_rows, max_len]
  const int32_t* req_pool_indices;    // [batch]
  const int32_t* kv_indptr;           // [batch + 1]
  const int32_t* split_indptr;        // [batch + 1]
  const int32_t* members;             // [batch, 4]; it and the next two are null without a plan
  const int32_t* n_units;             // [1]
  uint32_t* unit_counter;             // [1], or null
  const int32_t* units;               // [max_units, 2]
  float* o_part;                      // [max_splits, n_heads, head_dim] weighted sums of values, relative to the maximum
  float* ml_part;                     // [max_splits, n_heads, 2] maximum of the logits in log2 units, sum of weights
  int64_t table_stride, n_slots;
  int64_t q_stride, new_k_stride, new_v_stride, out_stride, lse_stride;  // request to request
  int q_head_stride, new_k_head_stride, new_v_head_stride, out_head_stride;
  int k_stride, v_stride;             // slot to slot
  int k_head_stride, v_head_stride;
  int batch, n_heads, n_kv_heads, head_dim;
  int group;                          // query heads of one KV head
  int window;                         // visible positions; INT32_MAX without a window
  int split_len, max_splits;
  int stack_len;                      // 1 without a plan
  int max_units;
  bool is_plan_settled;
  bool is_read_once;                  // else several requests may read the same slots on their own
  float scale_log2;                   // sm_scale * log2(e); with a cap: sm_scale / soft_cap
  float cap_log2;                     // soft_cap * log2(e); 0 without a cap
};
// Checks all but the device.
PagedDecodeArgs check_attn_paged_decode(const PagedDecodeCall& call);

}  // namespace astrai
