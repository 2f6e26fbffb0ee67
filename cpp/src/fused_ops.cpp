// Argument checks of the fused GPU operations. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/fused_ops.h"

#include <limits>
#include <stdexcept>

#include "astrai/shape_check.h"
#include "op_checks.h"

namespace astrai {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int kMaxFusedHeadDim = 256;  // one warp holds a head, 8 elements a lane

void require_index(ShapeCheck& check, const char* arg, const TensorView& t) {
  check.dtype(arg, t, {DType::kInt32, DType::kInt64}).contiguous_from(0, arg, t);
}

void require_output(ShapeCheck& check, const char* arg, const TensorView& out) {
  check.writable(arg, out);
  check.require(has_own_rows(out), [&] {
    return std::string(arg) + " has a stride of 0; each row needs memory of its own";
  });
}

// x or memory of out's own: a different layout over the same start would be read after it was written.
void require_same_or_apart(ShapeCheck& check, const char* arg, const TensorView& x, const char* out_arg,
                           const TensorView& out) {
  check.require(x.data == nullptr || x.data != out.data || is_same_memory(x, out), [&] {
    return std::string(out_arg) + " starts where " + arg + " starts but has other strides; pass " + arg +
           " itself or memory that does not overlap it";
  });
}

void require_positive_eps(ShapeCheck& check, float eps) {
  check.require(eps >= 0, [&] {
    return "eps is " + std::to_string(eps) + "; accepted: 0 or more";
  });
}

}  // namespace

RmsNormArgs check_rms_norm(const TensorView& x, const TensorView& weight, const TensorView& out, float eps) {
  ShapeCheck check("rms_norm");
  const bool has_heads = x.ndim == 3;
  if (has_heads) {
    check.shape("x", x, {"T", "H", "N"}).shape("out", out, {"T", "H", "N"});
  } else {
    check.shape("x", x, {"T", "N"}).shape("out", out, {"T", "N"});
  }
  check.shape("weight", weight, {"N"});
  require_half_precision("rms_norm", "x", x);
  check.dtype("weight", weight, {x.dtype}).dtype("out", out, {x.dtype});
  check.contiguous_from(x.ndim - 1, "x", x).contiguous_from(x.ndim - 1, "out", out);
  check.contiguous_from(0, "weight", weight);
  require_output(check, "out", out);
  require_same_or_apart(check, "x", x, "out", out);
  require_positive_eps(check, eps);
  const int64_t n_inner = has_heads ? check.size("H") : 1;
  check.require(check.size("N") <= kMaxInt && check.size("T") * n_inner <= kMaxInt, [&] {
    return "x has shape " + shape_string(x) + "; at most 2^31 - 1 rows and elements a row";
  });

  RmsNormArgs args{};
  args.x = x.data;
  args.weight = weight.data;
  args.out = out.data;
  args.n_rows = check.size("T") * n_inner;
  args.n_inner = static_cast<int>(n_inner);
  args.row_len = static_cast<int>(check.size("N"));
  args.x_strides[0] = x.strides[0];
  args.x_strides[1] = has_heads ? x.strides[1] : 0;
  args.out_strides[0] = out.strides[0];
  args.out_strides[1] = has_heads ? out.strides[1] : 0;
  args.eps = eps;
  args.is_vectorizable = args.row_len % 8 == 0 &&
                         starts_on_vector(x.data, {args.x_strides[0], args.x_strides[1]}, x.dtype) &&
                         starts_on_vector(out.data, {args.out_strides[0], args.out_strides[1]}, out.dtype) &&
                         starts_on_vector(weight.data, {}, weight.dtype);
  return args;
}

RmsNormArgs check_add_rms_norm(const TensorView& x, const TensorView& residual, const TensorView& weight,
                               const TensorView& out, float eps) {
  ShapeCheck check("add_rms_norm");
  check.shape("x", x, {"T", "N"}).shape("residual", residual, {"T", "N"});
  check.shape("weight", weight, {"N"}).shape("out", out, {"T", "N"});
  require_half_precision("add_rms_norm", "x", x);
  check.dtype("residual", residual, {x.dtype}).dtype("weight", weight, {x.dtype}).dtype("out", out, {x.dtype});
  check.contiguous_from(1, "x", x).contiguous_from(1, "residual", residual).contiguous_from(1, "out", out);
  check.contiguous_from(0, "weight", weight);
  require_output(check, "residual", residual);
  require_output(check, "out", out);
  require_same_or_apart(check, "x", x, "out", out);
  check.require(residual.data == nullptr || (residual.data != x.data && residual.data != out.data),
                "residual is x or out; it is read and written on its own");
  require_positive_eps(check, eps);
  check.require(check.size("N") <= kMaxInt && check.size("T") <= kMaxInt, [&] {
    return "x has shape " + shape_string(x) + "; at most 2^31 - 1 rows and elements a row";
  });

  RmsNormArgs args{};
  args.x = x.data;
  args.residual = residual.data;
  args.weight = weight.data;
  args.out = out.data;
  args.n_rows = check.size("T");
  args.n_inner = 1;
  args.row_len = static_cast<int>(check.size("N"));
  args.x_strides[0] = x.strides[0];
  args.out_strides[0] = out.strides[0];
  args.residual_stride = residual.strides[0];
  args.eps = eps;
  args.is_vectorizable = args.row_len % 8 == 0 && starts_on_vector(x.data, {x.strides[0]}, x.dtype) &&
                         starts_on_vector(residual.data, {residual.strides[0]}, residual.dtype) &&
                         starts_on_vector(out.data, {out.strides[0]}, out.dtype) &&
                         starts_on_vector(weight.data, {}, weight.dtype);
  return args;
}

GatedActArgs check_gated_act(const char* op, const TensorView& gate_up, const TensorView& out) {
  ShapeCheck check(op);
  check.shape("out", out, {"T", "N"}).shape("gate_up", gate_up, {"T", 2 * check.size("N")});
  require_half_precision(op, "gate_up", gate_up);
  check.dtype("out", out, {gate_up.dtype});
  check.contiguous_from(1, "gate_up", gate_up).contiguous_from(1, "out", out);
  require_output(check, "out", out);
  check.require(check.size("N") <= kMaxInt / 2 && check.size("T") <= kMaxInt, [&] {
    return "gate_up has shape " + shape_string(gate_up) + "; at most 2^31 - 1 rows and elements a row";
  });

  GatedActArgs args{};
  args.gate_up = gate_up.data;
  args.out = out.data;
  args.n_rows = check.size("T");
  args.row_len = static_cast<int>(check.size("N"));
  args.gate_up_stride = gate_up.strides[0];
  args.out_stride = out.strides[0];
  args.is_vectorizable = args.row_len % 8 == 0 && starts_on_vector(gate_up.data, {gate_up.strides[0]}, gate_up.dtype) &&
                         starts_on_vector(out.data, {out.strides[0]}, out.dtype);
  return args;
}

EmbeddingArgs check_embedding(const TensorView& ids, const TensorView& table, const TensorView& out) {
  ShapeCheck check("embedding");
  check.shape("ids", ids, {"T"}).shape("table", table, {"V", "N"}).shape("out", out, {"T", "N"});
  require_half_precision("embedding", "table", table);
  check.dtype("out", out, {table.dtype});
  require_index(check, "ids", ids);
  check.contiguous_from(1, "table", table).contiguous_from(1, "out", out);
  require_output(check, "out", out);
  check.require(check.size("N") <= kMaxInt && check.size("T") <= kMaxInt, [&] {
    return "out has shape " + shape_string(out) + "; at most 2^31 - 1 rows and elements a row";
  });

  EmbeddingArgs args{};
  args.ids = ids.data;
  args.table = table.data_as<const uint16_t>();
  args.out = out.data_as<uint16_t>();
  args.n_rows = check.size("T");
  args.n_table_rows = check.size("V");
  args.row_len = static_cast<int>(check.size("N"));
  args.table_stride = table.strides[0];
  args.out_stride = out.strides[0];
  args.ids_are_64_bit = ids.dtype == DType::kInt64;
  args.is_vectorizable = args.row_len % 8 == 0 && starts_on_vector(table.data, {table.strides[0]}, table.dtype) &&
                         starts_on_vector(out.data, {out.strides[0]}, out.dtype);
  return args;
}

RotaryStoreKvArgs check_rotary_store_kv(const TensorView& q, const TensorView& k, const TensorView& v,
                                        const TensorView& freqs, const TensorView& k_cache, const TensorView& v_cache,
                                        const TensorView& out_cache_loc, const TensorView& q_out,
                                        const std::optional<TensorView>& positions,
                                        const std::optional<TensorView>& q_norm, const std::optional<TensorView>& k_norm,
                                        float eps) {
  ShapeCheck check("rotary_store_kv");
  check.shape("q", q, {"T", "H", "D"}).shape("k", k, {"T", "H_kv", "D"}).shape("v", v, {"T", "H_kv", "D"});
  check.shape("q_out", q_out, {"T", "H", "D"});
  check.shape("k_cache", k_cache, {"n_slots", "H_kv", "D"}).shape("v_cache", v_cache, {"n_slots", "H_kv", "D"});
  check.shape("out_cache_loc", out_cache_loc, {"T"}).dtype("out_cache_loc", out_cache_loc, {DType::kInt32});
  check.contiguous_from(0, "out_cache_loc", out_cache_loc);
  require_half_precision("rotary_store_kv", "q", q);
  const int64_t head_dim = check.size("D");
  check.require(head_dim % 8 == 0 && head_dim <= kMaxFusedHeadDim, [&] {
    return "q.head_dim is " + std::to_string(head_dim) + "; accepted: multiples of 8 up to " +
           std::to_string(kMaxFusedHeadDim) + ". Call rotary_emb and store_kv instead";
  });
  const int64_t rotary_dim = freqs.ndim == 3 && freqs.size(1) < head_dim / 2 ? 2 * freqs.size(1) : head_dim;
  if (positions) {
    check.shape("positions", *positions, {"T"}).shape("freqs", freqs, {"n", rotary_dim / 2, 2});
    require_index(check, "positions", *positions);
  } else {
    check.shape("freqs", freqs, {"T", rotary_dim / 2, 2});
  }
  check.require(rotary_dim % 8 == 0, [&] {
    return "freqs has shape " + shape_string(freqs) + "; pairs come in multiples of 4";
  });
  check.dtype("freqs", freqs, {DType::kFloat32}).contiguous_from(1, "freqs", freqs);
  check.require(q_norm.has_value() == k_norm.has_value(), "q_norm and k_norm are given together or not at all");
  if (q_norm) {
    check.shape("q_norm", *q_norm, {"D"}).dtype("q_norm", *q_norm, {q.dtype}).contiguous_from(0, "q_norm", *q_norm);
    check.shape("k_norm", *k_norm, {"D"}).dtype("k_norm", *k_norm, {q.dtype}).contiguous_from(0, "k_norm", *k_norm);
  }
  require_positive_eps(check, eps);
  const std::pair<const char*, const TensorView*> rows[] = {{"q", &q},         {"k", &k},
                                                            {"v", &v},         {"q_out", &q_out},
                                                            {"k_cache", &k_cache}, {"v_cache", &v_cache}};
  for (const auto& row : rows) {
    const char* arg = row.first;
    const TensorView& t = *row.second;
    check.dtype(arg, t, {q.dtype}).contiguous_from(2, arg, t);
    const int64_t row_stride = t.size(0) > 1 ? t.stride(0) : 0, head_stride = t.size(1) > 1 ? t.stride(1) : 0;
    check.require(starts_on_vector(t.data, {row_stride, head_stride}, q.dtype), [&] {
      return std::string(arg) + " has heads that do not start on 16 bytes; call rotary_emb and store_kv instead";
    });
  }
  check.require(starts_on_vector(freqs.data, {freqs.size(0) > 1 ? freqs.stride(0) : 0}, freqs.dtype) &&
                    (!q_norm || (starts_on_vector(q_norm->data, {}, q.dtype) && starts_on_vector(k_norm->data, {}, q.dtype))),
                "freqs, q_norm or k_norm does not start on 16 bytes; call rotary_emb and store_kv instead");
  require_output(check, "q_out", q_out);
  require_output(check, "k_cache", k_cache);
  require_output(check, "v_cache", v_cache);
  require_same_or_apart(check, "q", q, "q_out", q_out);
  check.require(check.size("T") * (check.size("H") + 2 * check.size("H_kv")) <= kMaxInt, [&] {
    return "q has shape " + shape_string(q) + "; at most 2^31 - 1 heads of all tokens, k and v counted";
  });

  RotaryStoreKvArgs args{};
  args.q = q.data;
  args.k = k.data;
  args.v = v.data;
  args.q_out = q_out.data;
  args.k_cache = k_cache.data;
  args.v_cache = v_cache.data;
  args.freqs = freqs.data_as<const float>();
  args.positions = positions ? positions->data : nullptr;
  args.positions_are_64_bit = positions && positions->dtype == DType::kInt64;
  args.out_cache_loc = out_cache_loc.data_as<const int32_t>();
  args.q_norm = q_norm ? q_norm->data : nullptr;
  args.k_norm = k_norm ? k_norm->data : nullptr;
  args.n_tokens = check.size("T");
  args.n_slots = check.size("n_slots");
  args.n_freqs = freqs.size(0);
  args.n_heads = static_cast<int>(check.size("H"));
  args.n_kv_heads = static_cast<int>(check.size("H_kv"));
  args.head_dim = static_cast<int>(head_dim);
  args.rotary_dim = static_cast<int>(rotary_dim);
  for (int i = 0; i < 2; ++i) {
    args.q_strides[i] = q.strides[i];
    args.k_strides[i] = k.strides[i];
    args.v_strides[i] = v.strides[i];
    args.q_out_strides[i] = q_out.strides[i];
    args.k_cache_strides[i] = k_cache.strides[i];
    args.v_cache_strides[i] = v_cache.strides[i];
  }
  args.freqs_stride = freqs.strides[0];
  args.eps = eps;
  return args;
}

}  // namespace astrai
