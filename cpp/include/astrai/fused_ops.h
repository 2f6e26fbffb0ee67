// The GPU operations between a decoder's matrix products and its attention. As in <astrai/ops.h>: checked here, launched
// on the caller's stream, nothing allocated, nothing synchronised, capturable. Tensors are bfloat16 or float16, all of
// one dtype; arithmetic is float32 and rounded once at the end unless it says otherwise. A row's result depends on that
// row alone, to the bit. Thread safe.
#pragma once

#include <cstdint>
#include <optional>

#include "astrai/tensor_view.h"

namespace astrai {

// out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019).
//   x, out  [T, N] or [T, H, N], last dimension contiguous, other strides free; out may be x itself
//   weight  [N]
void rms_norm(const TensorView& x, const TensorView& weight, const TensorView& out, float eps, void* stream);

// residual += x, rounded to its dtype; out = rms_norm(residual).
//   x, residual, out  [T, N], rows contiguous, any stride from row to row; out may be x itself
void add_rms_norm(const TensorView& x, const TensorView& residual, const TensorView& weight, const TensorView& out,
                  float eps, void* stream);

// out = act(gate) * up, where gate_up[t] is N gates followed by N ups.
//   silu_mul: act(g) = g / (1 + exp(-g)).
//   gelu_mul: act(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3))) (Hendrycks and Gimpel, Gaussian Error Linear
//             Units, 2016, section 2).
//   gate_up [T, 2N], out [T, N], rows contiguous, any stride from row to row
void silu_mul(const TensorView& gate_up, const TensorView& out, void* stream);
void gelu_mul(const TensorView& gate_up, const TensorView& out, void* stream);

// out[t] = table[ids[t]].
//   ids [T] int32 or int64, each in [0, V) (another traps on the device); table [V, N], out [T, N], rows contiguous
void embedding(const TensorView& ids, const TensorView& table, const TensorView& out, void* stream);

// In one launch: q_out = rotary(norm(q)), k_cache[out_cache_loc[t]] = rotary(norm(k[t])), v_cache[out_cache_loc[t]] = v[t].
// Bit for bit what rms_norm, rotary_emb and store_kv give one after another: the norm is rounded before it is rotated.
//   q                 [T, H, D], k, v [T, H_kv, D], q_out like q and maybe q itself; D a multiple of 8 up to 256; last
//                     dimension contiguous, other strides free, every head on 16 bytes
//   freqs             [T, R/2, 2] float32 cos, sin, the last two contiguous; R a multiple of 8 up to D: elements from R on
//                     are not rotated. With positions the whole table [n, R/2, 2], and row positions[t] is used
//   k_cache, v_cache  [n_slots, H_kv, D], as k and v; out_cache_loc [T] int32 as in store_kv, negative ones are skipped
//   positions         [T] int32 or int64, each in [0, n) (another traps), or none
//   q_norm, k_norm    [D] weights, or none for both
void rotary_store_kv(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& freqs,
                     const TensorView& k_cache, const TensorView& v_cache, const TensorView& out_cache_loc,
                     const TensorView& q_out, const std::optional<TensorView>& positions,
                     const std::optional<TensorView>& q_norm, const std::optional<TensorView>& k_norm, float eps,
                     void* stream);

// ---- checked arguments, which the launchers work from; the checks cover all but the device ----
// From here on not an interface: between astrai::core and astrai::cuda, it may change with any version.
struct RmsNormArgs {
  const void* x;            // [n_rows / n_inner, n_inner, row_len]
  void* residual;           // [n_rows, row_len], null for rms_norm; n_inner is 1 otherwise
  const void* weight;       // [row_len]
  void* out;                // like x
  int64_t n_rows;
  int n_inner, row_len;
  int64_t x_strides[2];     // in elements: outer, inner
  int64_t out_strides[2];
  int64_t residual_stride;
  float eps;
  bool is_vectorizable;     // every row starts on 16 bytes and is a whole number of them
};
RmsNormArgs check_rms_norm(const TensorView& x, const TensorView& weight, const TensorView& out, float eps);
RmsNormArgs check_add_rms_norm(const TensorView& x, const TensorView& residual, const TensorView& weight,
                               const TensorView& out, float eps);

struct GatedActArgs {
  const void* gate_up;  // [n_rows, 2 * row_len]
  void* out;            // [n_rows, row_len]
  int64_t n_rows;
  int row_len;
  int64_t gate_up_stride, out_stride;  // elements from row to row
  bool is_vectorizable;
};
GatedActArgs check_gated_act(const char* op, const TensorView& gate_up, const TensorView& out);

struct EmbeddingArgs {
  const void* ids;         // [n_rows] int32 or int64
  const uint16_t* table;   // [n_table_rows, row_len] elements of 2 bytes
  uint16_t* out;           // [n_rows, row_len]
  int64_t n_rows, n_table_rows;
  int row_len;
  int64_t table_stride, out_stride;
  bool ids_are_64_bit, is_vectorizable;
};
EmbeddingArgs check_embedding(const TensorView& ids, const TensorView& table, const TensorView& out);

struct RotaryStoreKvArgs {
  const void *q, *k, *v;         // [n_tokens, n_heads or n_kv_heads, head_dim]
  void *q_out, *k_cache, *v_cache;
  const float* freqs;            // [n_freqs, rotary_dim / 2, 2]
  const void* positions;         // [n_tokens] int32 or int64; null: token t uses row t
  const int32_t* out_cache_loc;  // [n_tokens]
  const void *q_norm, *k_norm;   // [head_dim], both null without the norm
  int64_t n_tokens, n_slots, n_freqs;
  int n_heads, n_kv_heads, head_dim, rotary_dim;
  int64_t q_strides[2], k_strides[2], v_strides[2], q_out_strides[2];  // in elements: token, head
  int64_t k_cache_strides[2], v_cache_strides[2];                      // slot, head
  int64_t freqs_stride;
  float eps;
  bool positions_are_64_bit;
};
RotaryStoreKvArgs check_rotary_store_kv(const TensorView& q, const TensorView& k, const TensorView& v,
                                        const TensorView& freqs, const TensorView& k_cache, const TensorView& v_cache,
                                        const TensorView& out_cache_loc, const TensorView& q_out,
                                        const std::optional<TensorView>& positions,
                                        const std::optional<TensorView>& q_norm, const std::optional<TensorView>& k_norm,
                                        float eps);

}  // namespace astrai
