// attn_paged_prefill: checks, then the instance of (dtype, head_dim). Contract: <astrai/attn_paged_prefill.h>.
#include "attention/attn_paged_prefill.cuh"
#include "attention/attn_paged_prefill_sm90.cuh"

#include <limits>
#include <stdexcept>
#include <string>

#include "astrai_instances.inc"
#include "astrai/ops.h"
#include "common/instances.cuh"
#include "common/launch.cuh"

namespace astrai {
namespace {

#ifndef ASTRAI_ATTN_PAGED_PREFILL_SM90_INSTANCES  // a build without sm_90a
#define ASTRAI_ATTN_PAGED_PREFILL_SM90_INSTANCES(X)
#endif

struct Instance {
  void (*launch)(const PagedPrefillArgs&, cudaStream_t);
  int block_rows;  // rows of a thread block's tile, all heads of it counted
};

Instance find_generic(DType dtype, int head_dim) {
#define ASTRAI_FIND(kernel, dtype_name, T, kHeadDim) \
  if (dtype == kDTypeOf<T> && head_dim == kHeadDim)  \
    return {&launch_attn_paged_prefill<T, kHeadDim>, PrefillShape<kHeadDim>::kRows};
  ASTRAI_ATTN_PAGED_PREFILL_INSTANCES(ASTRAI_FIND)
#undef ASTRAI_FIND
  return {nullptr, 0};
}

bool is_sm90(int device_idx) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_idx) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_idx) != cudaSuccess) {
    cudaGetLastError();  // no such device, or no driver: not the next launch's error
    return false;
  }
  return major == 9 && minor == 0;
}

// The kernel with wgmma where there is one, else the one for every GPU. The choice never looks at the batch.
Instance find_instance(DType dtype, int head_dim, int device_idx) {
#define ASTRAI_FIND(kernel, dtype_name, T, kHeadDim)                        \
  if (dtype == kDTypeOf<T> && head_dim == kHeadDim && is_sm90(device_idx)) \
    return {&launch_attn_paged_prefill_sm90<T, kHeadDim>, PrefillSm90Shape<kHeadDim>::kRows};
  ASTRAI_ATTN_PAGED_PREFILL_SM90_INSTANCES(ASTRAI_FIND)
#undef ASTRAI_FIND
  return find_generic(dtype, head_dim);
}

// Whether 32 bits count the chunks of 16 bytes up to any slot, as the kernel with wgmma does: caches up to 64 GiB.
bool has_32_bit_places(const TensorView& cache) {
  return cache.shape[0] <= 1 || cache.strides[0] / 8 <= std::numeric_limits<uint32_t>::max() / cache.shape[0];
}

// Each split tile has n_splits places of its rows, of head_dim + 2 elements a row, for each head.
void check_workspace(const PagedPrefillArgs& args) {
  const int64_t n_rows = static_cast<int64_t>(args.n_split_tiles) * args.n_splits * args.q_tile_rows * args.n_heads;
  if (n_rows * (args.head_dim + 2) <= args.workspace_size && n_rows <= std::numeric_limits<int32_t>::max()) return;
  throw std::invalid_argument("attn_paged_prefill: workspace has " + std::to_string(args.workspace_size) + " elements; " +
                              std::to_string(args.n_split_tiles) + " tiles of " + std::to_string(args.q_tile_rows) +
                              " rows in " + std::to_string(args.n_splits) + " splits need " +
                              std::to_string(n_rows * (args.head_dim + 2)) + ". See prefill_workspace_size().");
}

}  // namespace

int prefill_q_tile_rows(int n_heads, int n_kv_heads, int head_dim, DType dtype, int device_idx) {
  const Instance instance = find_instance(dtype, head_dim, device_idx);
  if (instance.launch == nullptr) return kDefaultQTileRows;
  return instance.block_rows / prefill_heads_per_tile(n_heads, n_kv_heads);
}

void attn_paged_prefill(const PagedPrefillTensors& tensors, const PagedPrefillOptions& options, void* stream) {
  PagedPrefillArgs args = check_attn_paged_prefill(tensors, options);
  // The tiles are cut for find_instance()'s kernel; the generic one alone has a soft cap and 64-bit places, and takes
  // tiles of any size.
  const Instance instance = find_instance(tensors.q.dtype, args.head_dim, tensors.q.device_idx);
  if (instance.launch == nullptr) throw_no_instance("attn_paged_prefill", tensors.q.dtype, args.head_dim);
  check_on_one_gpu("attn_paged_prefill", {{"q", &tensors.q},
                                          {"k_cache", &tensors.k_cache},
                                          {"v_cache", &tensors.v_cache},
                                          {"req_to_token", &tensors.req_to_token},
                                          {"req_pool_indices", &tensors.req_pool_indices},
                                          {"kv_indptr", &tensors.kv_indptr},
                                          {"qo_indptr", &tensors.qo_indptr},
                                          {"q_tile_to_batch", &tensors.q_tile_to_batch},
                                          {"q_tile_to_index", &tensors.q_tile_to_index},
                                          {"out", &tensors.out}});
  if (args.lse != nullptr) check_on_one_gpu("attn_paged_prefill", {{"q", &tensors.q}, {"lse", &tensors.lse}});
  if (args.n_split_tiles > 0) check_on_one_gpu("attn_paged_prefill", {{"q", &tensors.q}, {"workspace", &tensors.workspace}});
  if (args.n_tiles == 0 || tensors.q.numel() == 0) return;
  if (args.q_tile_rows == 0) args.q_tile_rows = instance.block_rows / args.heads_per_tile;
  check_workspace(args);
  const DeviceGuard guard(tensors.q.device_idx, "attn_paged_prefill");
  const bool needs_generic = args.soft_cap > 0 || !has_32_bit_places(tensors.k_cache) || !has_32_bit_places(tensors.v_cache);
  const Instance chosen = needs_generic ? find_generic(tensors.q.dtype, args.head_dim) : instance;
  chosen.launch(args, static_cast<cudaStream_t>(stream));
}

}  // namespace astrai
