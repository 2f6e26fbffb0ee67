// Argument checks of attn_paged_decode. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/attn_paged_decode.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "astrai/error.h"
#include "astrai/shape_check.h"

namespace astrai {
namespace {

constexpr const char* kOp = "attn_paged_decode";
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr double kLog2E = 1.4426950408889634;

// [rows, heads, D] whose heads all start on 16 bytes and whose strides a kernel can hold.
void check_rows(ShapeCheck& check, const char* arg, const TensorView& t) {
  check.contiguous_from(2, arg, t);
  const auto bytes = static_cast<int64_t>(dtype_size(t.dtype));
  bool fits = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  for (int dim = 0; dim < 2; ++dim) {
    fits = fits && (t.shape[dim] <= 1 ||
                    (t.strides[dim] * bytes % 16 == 0 && t.strides[dim] >= 0 && t.strides[dim] <= kInt32Max));
  }
  check.require(fits, [&] {
    return std::string(arg) + " of shape " + shape_string(t) + " has strides [" +
           std::to_string(t.strides[0]) + ", " + std::to_string(t.strides[1]) +
           ", 1] and must have every head start on 16 bytes; call .contiguous() first";
  });
}

void check_own_rows(ShapeCheck& check, const char* arg, const TensorView& t) {
  check.writable(arg, t);
  for (int i = 0; i < t.ndim; ++i) {
    check.require(t.shape[i] <= 1 || t.strides[i] != 0, [&] {
      return std::string(arg) + " has a stride of 0; each row needs memory of its own";
    });
  }
}

void check_indices(ShapeCheck& check, const PagedDecodeCall& call) {
  const int64_t batch = check.size("B");
  check.shape("req_to_token", call.req_to_token, {"n_rows", "max_len"});
  check.shape("req_pool_indices", call.req_pool_indices, {"B"});
  check.shape("kv_indptr", call.kv_indptr, {batch + 1}).shape("split_indptr", call.split_indptr, {batch + 1});
  check.dtype("req_to_token", call.req_to_token, {DType::kInt32});
  check.dtype("req_pool_indices", call.req_pool_indices, {DType::kInt32});
  check.dtype("kv_indptr", call.kv_indptr, {DType::kInt32}).dtype("split_indptr", call.split_indptr, {DType::kInt32});
  check.contiguous_from(1, "req_to_token", call.req_to_token);
  check.contiguous_from(0, "req_pool_indices", call.req_pool_indices);
  check.contiguous_from(0, "kv_indptr", call.kv_indptr).contiguous_from(0, "split_indptr", call.split_indptr);
}

void check_workspace(ShapeCheck& check, const PagedDecodeCall& call) {
  check.shape("o_part", call.o_part, {"max_splits", "H", "D"});
  check.shape("ml_part", call.ml_part, {"max_splits", "H", 2});
  check.dtype("o_part", call.o_part, {DType::kFloat32}).dtype("ml_part", call.ml_part, {DType::kFloat32});
  check.contiguous_from(0, "o_part", call.o_part).contiguous_from(0, "ml_part", call.ml_part);
  check.writable("o_part", call.o_part).writable("ml_part", call.ml_part);
  check.require(check.size("max_splits") >= check.size("B"), [&] {
    return "o_part has room for " + std::to_string(check.size("max_splits")) + " splits; the " +
           std::to_string(check.size("B")) + " requests have at least one each";
  });
  const bool is_whole_tiles = call.split_len > 0 && call.split_len % kDecodeTileTokens == 0;
  check.require(is_whole_tiles && call.split_len <= kMaxDecodeSplitLen, [&] {
    return "split_len is " + std::to_string(call.split_len) + "; it must be a positive multiple of " +
           std::to_string(kDecodeTileTokens) + " up to " + std::to_string(kMaxDecodeSplitLen);
  });
}

void check_new_rows(ShapeCheck& check, const PagedDecodeCall& call) {
  check.require(call.new_k.has_value() == call.new_v.has_value(), "new_k and new_v go together; pass both or neither");
  if (!call.new_k) return;
  check.shape("new_k", *call.new_k, {"B", "H_kv", "D"}).shape("new_v", *call.new_v, {"B", "H_kv", "D"});
  check.dtype("new_k", *call.new_k, {call.q.dtype}).dtype("new_v", *call.new_v, {call.q.dtype});
  check_rows(check, "new_k", *call.new_k);
  check_rows(check, "new_v", *call.new_v);
  check_own_rows(check, "k_cache", call.k_cache);
  check_own_rows(check, "v_cache", call.v_cache);
}

void check_plan(ShapeCheck& check, const PagedDecodeCall& call) {
  const bool is_planned = call.units.has_value();
  check.require(call.members.has_value() == is_planned && call.n_units.has_value() == is_planned,
                "members, n_units and units go together; pass all or none");
  const int64_t max_len =
      is_planned ? decode_stack_len(static_cast<int>(check.size("H")), static_cast<int>(check.size("H_kv")),
                                    static_cast<int>(check.size("D")))
                 : 1;
  check.require(call.stack_len >= 1 && call.stack_len <= max_len,
                "stack_len is " + std::to_string(call.stack_len) + "; 1 to " + std::to_string(max_len) +
                    " are accepted " + (is_planned ? "for these heads" : "without units"));
  if (!is_planned) return;
  check.shape("members", *call.members, {"B", 4}).shape("n_units", *call.n_units, {2});
  check.shape("units", *call.units, {"max_units", 2}).dtype("members", *call.members, {DType::kInt32});
  check.dtype("n_units", *call.n_units, {DType::kInt32}).dtype("units", *call.units, {DType::kInt32});
  check.contiguous_from(0, "members", *call.members).contiguous_from(0, "units", *call.units);
  check.contiguous_from(0, "n_units", *call.n_units).writable("n_units", *call.n_units);
  const auto is_aligned = [](const TensorView& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  check.require(is_aligned(*call.members) && is_aligned(*call.units), "members and units must start on 16 bytes");
  check.require(check.size("max_units") <= kInt32Max, "units has 2^31 rows or more");
}

void check_sizes(ShapeCheck& check, const PagedDecodeCall& call) {
  const int64_t n_heads = check.size("H"), n_kv_heads = check.size("H_kv");
  check.require(n_kv_heads > 0 && n_heads > 0 && n_heads % n_kv_heads == 0, [&] {
    return "q has " + std::to_string(n_heads) + " heads; expected a multiple of the " +
           std::to_string(n_kv_heads) + " heads of k_cache";
  });
  check.require(std::max(check.size("max_splits") * n_heads, check.size("max_len")) <= kInt32Max, [&] {
    return "o_part has shape " + shape_string(call.o_part) + " and req_to_token " +
           shape_string(call.req_to_token) + "; at most 2^31 - 1 splits times heads, and tokens a row";
  });
  check.require(call.window >= 0, [&] {
    return "window is " + std::to_string(call.window) + "; 0 (none) or more is accepted";
  });
  check.require(call.soft_cap >= 0, [&] {
    return "soft_cap is " + std::to_string(call.soft_cap) + "; 0 (none) or more is accepted";
  });
}

}  // namespace

int decode_stack_len(int n_heads, int n_kv_heads, int head_dim) {
  if (n_kv_heads < 1 || n_heads < 1 || n_heads % n_kv_heads != 0) {
    throw std::invalid_argument("decode_stack_len: n_heads " + std::to_string(n_heads) +
                                " must be a positive multiple of n_kv_heads " + std::to_string(n_kv_heads));
  }
  return std::max(1, decode_stack_rows(head_dim) / (n_heads / n_kv_heads));
}

PagedDecodeArgs check_attn_paged_decode(const PagedDecodeCall& call) {
  ShapeCheck check(kOp);
  check.shape("q", call.q, {"B", "H", "D"}).shape("out", call.out, {"B", "H", "D"});
  check.shape("k_cache", call.k_cache, {"n_slots", "H_kv", "D"}).shape("v_cache", call.v_cache, {"n_slots", "H_kv", "D"});
  if (call.q.dtype != DType::kBFloat16 && call.q.dtype != DType::kFloat16) {
    throw KernelUnavailableError(std::string(kOp) + ": q is " + dtype_name(call.q.dtype) +
                                 "; there are kernels for bfloat16 and float16. Select ATTN_BACKEND.TORCH_NATIVE.");
  }
  check.dtype("k_cache", call.k_cache, {call.q.dtype}).dtype("v_cache", call.v_cache, {call.q.dtype});
  check.dtype("out", call.out, {call.q.dtype}).contiguous_from(2, "out", call.out);
  check_own_rows(check, "out", call.out);
  check_rows(check, "q", call.q);
  check_rows(check, "k_cache", call.k_cache);
  check_rows(check, "v_cache", call.v_cache);
  check_indices(check, call);
  check_workspace(check, call);
  check_new_rows(check, call);
  check_sizes(check, call);
  check_plan(check, call);
  if (call.lse) {
    check.shape("lse", *call.lse, {"B", "H"}).dtype("lse", *call.lse, {DType::kFloat32});
    check.contiguous_from(1, "lse", *call.lse);
    check_own_rows(check, "lse", *call.lse);
  }

  PagedDecodeArgs args{};
  args.q = call.q.data;
  args.k_cache = call.k_cache.data;
  args.v_cache = call.v_cache.data;
  args.out = call.out.data;
  args.req_to_token = call.req_to_token.data_as<const int32_t>();
  args.req_pool_indices = call.req_pool_indices.data_as<const int32_t>();
  args.kv_indptr = call.kv_indptr.data_as<const int32_t>();
  args.split_indptr = call.split_indptr.data_as<const int32_t>();
  args.o_part = call.o_part.data_as<float>();
  args.ml_part = call.ml_part.data_as<float>();
  args.table_stride = call.req_to_token.strides[0];
  args.n_slots = check.size("n_slots");
  args.q_stride = call.q.strides[0];
  args.q_head_stride = static_cast<int>(call.q.strides[1]);
  args.out_stride = call.out.strides[0];
  args.out_head_stride = static_cast<int>(call.out.strides[1]);
  args.k_stride = static_cast<int>(call.k_cache.strides[0]);
  args.v_stride = static_cast<int>(call.v_cache.strides[0]);
  args.k_head_stride = static_cast<int>(call.k_cache.strides[1]);
  args.v_head_stride = static_cast<int>(call.v_cache.strides[1]);
  if (call.new_k) {
    args.new_k = call.new_k->data;
    args.new_v = call.new_v->data;
    args.new_k_stride = call.new_k->strides[0];
    args.new_v_stride = call.new_v->strides[0];
    args.new_k_head_stride = static_cast<int>(call.new_k->strides[1]);
    args.new_v_head_stride = static_cast<int>(call.new_v->strides[1]);
  }
  if (call.lse) {
    args.lse = call.lse->data_as<float>();
    args.lse_stride = call.lse->strides[0];
  }
  args.batch = static_cast<int>(check.size("B"));
  args.n_heads = static_cast<int>(check.size("H"));
  args.n_kv_heads = static_cast<int>(check.size("H_kv"));
  args.head_dim = static_cast<int>(check.size("D"));
  args.group = args.n_heads / args.n_kv_heads;
  args.window = static_cast<int>(call.window == 0 ? kInt32Max : std::min(call.window, kInt32Max));
  args.split_len = static_cast<int>(call.split_len);
  args.stack_len = 1;
  args.is_plan_settled = call.is_plan_settled;
  args.is_read_once = call.units || args.batch == 1;  // with a window, too: few positions that many see are shared
  if (call.units && call.window == 0) {  // a window's begin differs from request to request
    args.members = call.members->data_as<const int32_t>();
    args.n_units = call.n_units->data_as<const int32_t>();
    args.unit_counter = call.n_units->data_as<uint32_t>() + 1;
    args.units = call.units->data_as<const int32_t>();
    args.stack_len = static_cast<int>(call.stack_len);
    args.max_units = static_cast<int>(check.size("max_units"));
  }
  args.max_splits = static_cast<int>(check.size("max_splits"));
  if (call.soft_cap > 0) {
    args.scale_log2 = call.sm_scale / call.soft_cap;
    args.cap_log2 = static_cast<float>(call.soft_cap * kLog2E);
  } else {
    args.scale_log2 = static_cast<float>(call.sm_scale * kLog2E);
  }
  return args;
}

}  // namespace astrai
