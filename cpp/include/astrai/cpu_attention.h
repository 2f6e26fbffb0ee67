// Attention of one new token per request over its paged KV on the CPU, read in place through the token table.
// Thread safe: calls from several threads take turns at the pool. The tensors' memory is the caller's; nothing is kept.
#pragma once

#include <cstdint>
#include <optional>

#include "astrai/cpu_isa.h"
#include "astrai/tensor_view.h"

namespace astrai {

class ThreadPool;

// The KV of a request is cut into spans of this many tokens from its start; spans are attended apart and merged in
// order (Dao et al., Flash-Decoding, 2023).
constexpr int64_t kCpuKvSpan = 128;

// The tensors of cpu_paged_decode. "Rows" have any stride from one to the next and are contiguous inside.
struct CpuPagedDecodeArgs {
  TensorView q;                     // [B, n_heads, D] rows, float32 or bfloat16, RoPE applied; D a multiple of 16
  TensorView k_cache;               // [n_slots, n_kv_heads, D] rows of q's dtype
  TensorView v_cache;               // like k_cache
  TensorView req_to_token;          // [n_rows, max_len] int32 rows: token slot of each position of each request
  TensorView req_pool_indices;      // [B] int32: row of req_to_token
  TensorView kv_indptr;             // [B + 1] int32 prefix sum of the KV lengths, this step's token included
  TensorView out;                   // [B, n_heads, D] contiguous, q's dtype
  std::optional<TensorView> new_k;  // [B, n_kv_heads, D] rows: this step's keys and values, written to the slot of each
  std::optional<TensorView> new_v;  // request's last position first. Both or neither
  float sm_scale = 1;               // usually D ** -0.5
  float soft_cap = 0;               // scores become soft_cap * tanh(score / soft_cap); 0 leaves them
};

// Query head h reads KV head h / (n_heads / n_kv_heads). Sums are float32. A request without KV gives zeros.
// A row of out depends on its request alone: not on the batch, the slots or the number of threads, to the bit.
// Slots of all positions below the KV lengths must lie in 0..n_slots - 1: they are the pool's and are not checked.
// Throws std::invalid_argument naming the argument when a shape, dtype, device, stride, row or length does not fit.
void cpu_paged_decode(const CpuPagedDecodeArgs& args, CpuIsa isa, ThreadPool& pool);

}  // namespace astrai
