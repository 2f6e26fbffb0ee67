// Argument checks of attn_paged_prefill. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/attn_paged_prefill.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "astrai/error.h"
#include "astrai/shape_check.h"

namespace astrai {
namespace {

constexpr int64_t kVectorBytes = 16;
constexpr int kAllKeys = 1 << 30;
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int kMaxSplits = 65535;
constexpr int kMaxQTileRows = 1 << 16;
constexpr int kMaxHeadsPerTile = 16;  // more would leave many of a tile's rows unused

// Copies token and head strides of a [tokens, heads, head_dim] tensor once its rows can be read 16 bytes at a time.
void row_strides(ShapeCheck& check, const char* arg, const TensorView& t, int64_t (&strides)[2]) {
  bool is_aligned = reinterpret_cast<uintptr_t>(t.data) % kVectorBytes == 0;
  for (int i = 0; i < 2; ++i) {
    strides[i] = t.shape[i] > 1 ? t.strides[i] : 0;
    is_aligned = is_aligned && strides[i] * static_cast<int64_t>(dtype_size(t.dtype)) % kVectorBytes == 0;
  }
  check.require(is_aligned, [&] {
    return std::string(arg) + " has rows that do not start on 16 bytes; pass an aligned tensor whose "
           "strides are multiples of 8 elements";
  });
}

void check_indices(ShapeCheck& check, const PagedPrefillTensors& t) {
  check.shape("req_pool_indices", t.req_pool_indices, {"batch"});
  check.shape("kv_indptr", t.kv_indptr, {check.size("batch") + 1});
  check.shape("qo_indptr", t.qo_indptr, {check.size("batch") + 1});
  check.shape("q_tile_to_batch", t.q_tile_to_batch, {"n_tiles"});
  check.shape("q_tile_to_index", t.q_tile_to_index, {"n_tiles"});
  check.shape("req_to_token", t.req_to_token, {"n_reqs", "max_ctx"});
  const std::pair<const char*, const TensorView*> all[] = {
      {"req_to_token", &t.req_to_token},       {"req_pool_indices", &t.req_pool_indices},
      {"kv_indptr", &t.kv_indptr},             {"qo_indptr", &t.qo_indptr},
      {"q_tile_to_batch", &t.q_tile_to_batch}, {"q_tile_to_index", &t.q_tile_to_index}};
  for (const auto& [arg, tensor] : all) {
    check.dtype(arg, *tensor, {DType::kInt32}).contiguous_from(tensor->ndim - 1, arg, *tensor);
  }
}

void check_options(ShapeCheck& check, const PagedPrefillOptions& options) {
  check.require(std::isfinite(options.sm_scale) && options.sm_scale > 0, [&] {
    return "sm_scale is " + std::to_string(options.sm_scale) + "; accepted: positive and finite";
  });
  check.require(std::isfinite(options.soft_cap) && options.soft_cap >= 0, [&] {
    return "soft_cap is " + std::to_string(options.soft_cap) + "; accepted: positive, or 0 for none";
  });
  check.require(options.window >= 0 && options.window < kAllKeys, [&] {
    return "window is " + std::to_string(options.window) + "; accepted: 1 to 2^30 - 1 keys, or 0 for all";
  });
  check.require(options.window == 0 || options.is_causal, "window needs is_causal: it counts back from a row's position");
  check.require(0 <= options.q_tile_rows && options.q_tile_rows <= kMaxQTileRows, [&] {
    return "q_tile_rows is " + std::to_string(options.q_tile_rows) + "; accepted: 1 to " + std::to_string(kMaxQTileRows) +
           ", or 0 for the kernel's";
  });
}

void check_splits(ShapeCheck& check, const PagedPrefillTensors& t, const PrefillSplitPlan& splits) {
  check.require(splits.n_tiles >= 0 && splits.n_tiles <= check.size("n_tiles"), [&] {
    return "n_split_tiles is " + std::to_string(splits.n_tiles) + "; accepted: 0 to the " +
           std::to_string(check.size("n_tiles")) + " of q_tile_to_batch";
  });
  if (splits.n_tiles == 0) return;
  const bool is_len_in_range = splits.split_len >= 1 && splits.split_len <= kAllKeys;
  check.require(splits.n_splits >= 2 && splits.n_splits <= kMaxSplits && is_len_in_range, [&] {
    return "n_splits is " + std::to_string(splits.n_splits) + " and split_len " + std::to_string(splits.split_len) +
           "; accepted: 2 to " + std::to_string(kMaxSplits) + " splits of 1 to 2^30 keys";
  });
  check.require(int64_t{splits.n_tiles} * splits.n_splits * check.size("n_heads") <= kInt32Max, [&] {
    return std::to_string(splits.n_tiles) + " tiles in " + std::to_string(splits.n_splits) + " splits are more than 2^31 - 1 " +
           "parts of heads; split fewer";
  });
  check.require(t.workspace.data != nullptr, "n_split_tiles needs a workspace; pass one or no splits");
  check.shape("workspace", t.workspace, {"workspace_size"}).dtype("workspace", t.workspace, {DType::kFloat32});
  check.contiguous_from(0, "workspace", t.workspace).writable("workspace", t.workspace);
  check.require(reinterpret_cast<uintptr_t>(t.workspace.data) % kVectorBytes == 0, "workspace must start on 16 bytes");
}

}  // namespace

int prefill_heads_per_tile(int n_heads, int n_kv_heads) {
  if (n_heads < 1 || n_kv_heads < 1 || n_heads % n_kv_heads != 0) {
    throw std::invalid_argument("attn_paged_prefill: n_heads is " + std::to_string(n_heads) + " and n_kv_heads " +
                                std::to_string(n_kv_heads) + "; n_heads must be a positive multiple of n_kv_heads");
  }
  const int group = n_heads / n_kv_heads;
  int heads = group < kMaxHeadsPerTile ? group : kMaxHeadsPerTile;
  while (group % heads != 0) --heads;
  return heads;
}

PagedPrefillArgs check_attn_paged_prefill(const PagedPrefillTensors& t, const PagedPrefillOptions& options) {
  ShapeCheck check("attn_paged_prefill");
  check.shape("q", t.q, {"total_q", "n_heads", "head_dim"}).shape("out", t.out, {"total_q", "n_heads", "head_dim"});
  check.shape("k_cache", t.k_cache, {"n_slots", "n_kv_heads", "head_dim"});
  check.shape("v_cache", t.v_cache, {"n_slots", "n_kv_heads", "head_dim"});
  const int64_t n_heads = check.size("n_heads"), n_kv_heads = check.size("n_kv_heads");
  check.require(n_kv_heads > 0 && n_heads > 0 && n_heads % n_kv_heads == 0, [&] {
    return "q.n_heads is " + std::to_string(n_heads) + " and k_cache.n_kv_heads " + std::to_string(n_kv_heads) +
           "; n_heads must be a positive multiple of n_kv_heads";
  });
  check.require(check.size("total_q") <= std::numeric_limits<int32_t>::max() && n_heads <= 65535, [&] {
    return "q has shape " + shape_string(t.q) + "; at most 2^31 - 1 rows and 65535 heads";
  });
  check_indices(check, t);
  check_options(check, options);
  check_splits(check, t, options.splits);
  if (t.q.dtype != DType::kBFloat16 && t.q.dtype != DType::kFloat16) {  // another backend can serve it
    throw KernelUnavailableError(std::string("attn_paged_prefill: q is ") + dtype_name(t.q.dtype) +
                                 "; there are kernels for bfloat16 and float16");
  }
  check.dtype("k_cache", t.k_cache, {t.q.dtype}).dtype("v_cache", t.v_cache, {t.q.dtype});
  check.dtype("out", t.out, {t.q.dtype}).writable("out", t.out);
  check.contiguous_from(2, "q", t.q).contiguous_from(2, "k_cache", t.k_cache);
  check.contiguous_from(2, "v_cache", t.v_cache).contiguous_from(2, "out", t.out);
  if (t.lse.data != nullptr) {
    check.shape("lse", t.lse, {"total_q", "n_heads"}).dtype("lse", t.lse, {DType::kFloat32});
    check.contiguous_from(0, "lse", t.lse).writable("lse", t.lse);
  }

  PagedPrefillArgs args{};
  row_strides(check, "q", t.q, args.q_strides);
  row_strides(check, "k_cache", t.k_cache, args.k_strides);
  row_strides(check, "v_cache", t.v_cache, args.v_strides);
  row_strides(check, "out", t.out, args.out_strides);
  args.q = t.q.data;
  args.k_cache = t.k_cache.data;
  args.v_cache = t.v_cache.data;
  args.out = t.out.data;
  args.lse = t.lse.data_as<float>();
  args.req_to_token = t.req_to_token.data_as<const int32_t>();
  args.req_pool_indices = t.req_pool_indices.data_as<const int32_t>();
  args.kv_indptr = t.kv_indptr.data_as<const int32_t>();
  args.qo_indptr = t.qo_indptr.data_as<const int32_t>();
  args.q_tile_to_batch = t.q_tile_to_batch.data_as<const int32_t>();
  args.q_tile_to_index = t.q_tile_to_index.data_as<const int32_t>();
  args.table_stride = t.req_to_token.strides[0];
  args.n_tiles = static_cast<int>(check.size("n_tiles"));
  args.n_heads = static_cast<int>(n_heads);
  args.n_kv_heads = static_cast<int>(n_kv_heads);
  args.head_dim = static_cast<int>(check.size("head_dim"));
  args.q_tile_rows = options.q_tile_rows;
  if (options.splits.n_tiles > 0) {
    args.workspace = t.workspace.data_as<float>();
    args.workspace_size = check.size("workspace_size");
    args.n_split_tiles = options.splits.n_tiles;
    args.n_splits = options.splits.n_splits;
    args.split_len = options.splits.split_len;
  }
  args.heads_per_tile = prefill_heads_per_tile(args.n_heads, args.n_kv_heads);
  args.window = options.window == 0 ? kAllKeys : options.window;
  args.sm_scale = options.sm_scale;
  args.soft_cap = options.soft_cap;
  args.is_causal = options.is_causal;
  return args;
}

}  // namespace astrai
