// Argument checks of the GPU operations. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/ops.h"

#include <algorithm>
#include <limits>

#include "astrai/shape_check.h"
#include "op_checks.h"

namespace astrai {
RotaryEmbArgs check_rotary_emb(const TensorView& x, const TensorView& freqs, const TensorView& out) {
  ShapeCheck check("rotary_emb");
  const bool has_batch = x.ndim == 4;
  if (has_batch) {
    check.shape("x", x, {"B", "S", "H", "D"}).shape("out", out, {"B", "S", "H", "D"});
  } else {
    check.shape("x", x, {"T", "H", "D"}).shape("out", out, {"T", "H", "D"});
  }
  const int64_t n_batch = has_batch ? check.size("B") : 1;
  const int64_t n_seq = has_batch ? check.size("S") : check.size("T");
  const int64_t head_dim = check.size("D");
  check.require(head_dim % 2 == 0, [&] {
    return "x.head_dim is " + std::to_string(head_dim) + "; pairs need an even one";
  });
  const bool freqs_has_batch = has_batch && freqs.ndim == 4;
  // Fewer pairs than the head has are a partial rotation; any other shape is told what the whole head needs.
  const int n_dims = freqs_has_batch ? 4 : 3;
  const bool is_partial = freqs.ndim == n_dims && freqs.size(n_dims - 2) < head_dim / 2;
  const int64_t n_pairs = is_partial ? freqs.size(n_dims - 2) : head_dim / 2;
  if (freqs_has_batch) {
    check.shape("freqs", freqs, {n_batch, n_seq, n_pairs, 2});
  } else {
    check.shape("freqs", freqs, {n_batch * n_seq, n_pairs, 2});
  }
  check.dtype("freqs", freqs, {DType::kFloat32});
  require_half_precision("rotary_emb", "x", x);
  check.dtype("out", out, {x.dtype}).writable("out", out);
  check.contiguous_from(x.ndim - 1, "x", x).contiguous_from(x.ndim - 1, "out", out);
  check.contiguous_from(freqs.ndim - 2, "freqs", freqs);
  check.require(has_own_rows(out), "out has a stride of 0; each row needs memory of its own");
  check.require(x.data != out.data || is_same_memory(x, out),
                "out starts where x starts but has other strides; pass x itself or memory that does not overlap it");
  const int64_t n_rows = n_batch * n_seq, n_heads = check.size("H");
  check.require(std::max({n_rows, n_rows * n_heads, n_heads * head_dim}) <= std::numeric_limits<int32_t>::max(), [&] {
    return "x has shape " + shape_string(x) + "; at most 2^31 - 1 heads of all tokens and elements a token";
  });

  RotaryEmbArgs args{};
  args.x = x.data;
  args.freqs = freqs.data_as<const float>();
  args.out = out.data;
  args.n_batch = n_batch;
  args.n_seq = n_seq;
  args.n_heads = static_cast<int>(check.size("H"));
  args.head_dim = static_cast<int>(head_dim);
  args.rotary_dim = static_cast<int>(2 * n_pairs);
  const int token_dim = has_batch ? 1 : 0;
  for (int i = 0; i < 3; ++i) {
    const int dim = token_dim - 1 + i;
    args.x_strides[i] = dim < 0 ? 0 : x.strides[dim];
    args.out_strides[i] = dim < 0 ? 0 : out.strides[dim];
  }
  args.freqs_strides[1] = freqs.strides[freqs_has_batch ? 1 : 0];
  args.freqs_strides[0] = freqs_has_batch ? freqs.strides[0] : n_seq * args.freqs_strides[1];
  args.is_vectorizable =
      head_dim % 8 == 0 && args.rotary_dim % 8 == 0 &&
      starts_on_vector(x.data, {args.x_strides[0], args.x_strides[1], args.x_strides[2]}, x.dtype) &&
      starts_on_vector(out.data, {args.out_strides[0], args.out_strides[1], args.out_strides[2]}, out.dtype) &&
      starts_on_vector(freqs.data, {args.freqs_strides[0], args.freqs_strides[1]}, freqs.dtype);
  return args;
}

StoreKvArgs check_store_kv(const TensorView& k, const TensorView& v, const TensorView& k_cache,
                           const TensorView& v_cache, const TensorView& out_cache_loc) {
  ShapeCheck check("store_kv");
  check.shape("k", k, {"T", "H_kv", "D"}).shape("v", v, {"T", "H_kv", "D"});
  check.shape("k_cache", k_cache, {"n_slots", "H_kv", "D"}).shape("v_cache", v_cache, {"n_slots", "H_kv", "D"});
  check.shape("out_cache_loc", out_cache_loc, {"T"}).dtype("out_cache_loc", out_cache_loc, {DType::kInt32});
  require_half_precision("store_kv", "k", k);
  check.dtype("v", v, {k.dtype}).dtype("k_cache", k_cache, {k.dtype}).dtype("v_cache", v_cache, {k.dtype});
  check.contiguous_from(1, "k", k).contiguous_from(1, "v", v);
  check.contiguous_from(1, "k_cache", k_cache).contiguous_from(1, "v_cache", v_cache);
  check.contiguous_from(0, "out_cache_loc", out_cache_loc);
  check.writable("k_cache", k_cache).writable("v_cache", v_cache);
  check.require(has_own_rows(k_cache) && has_own_rows(v_cache),
                "k_cache or v_cache has a stride of 0; each slot needs memory of its own");
  const int64_t row_len = check.size("H_kv") * check.size("D");
  check.require(std::max(check.size("T"), row_len) <= std::numeric_limits<int32_t>::max(), [&] {
    return "k has shape " + shape_string(k) + "; at most 2^31 - 1 tokens and elements a token";
  });

  StoreKvArgs args{};
  args.k = k.data_as<const uint16_t>();
  args.v = v.data_as<const uint16_t>();
  args.k_cache = k_cache.data_as<uint16_t>();
  args.v_cache = v_cache.data_as<uint16_t>();
  args.out_cache_loc = out_cache_loc.data_as<const int32_t>();
  args.n_tokens = check.size("T");
  args.n_slots = check.size("n_slots");
  args.row_len = static_cast<int>(row_len);
  args.k_stride = k.strides[0];
  args.v_stride = v.strides[0];
  args.k_cache_stride = k_cache.strides[0];
  args.v_cache_stride = v_cache.strides[0];
  args.is_vectorizable = starts_on_vector(k.data, {args.k_stride}, k.dtype) &&
                         starts_on_vector(v.data, {args.v_stride}, v.dtype) &&
                         starts_on_vector(k_cache.data, {args.k_cache_stride}, k_cache.dtype) &&
                         starts_on_vector(v_cache.data, {args.v_cache_stride}, v_cache.dtype);
  return args;
}

}  // namespace astrai
