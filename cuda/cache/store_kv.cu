// store_kv: checks, then one launch for both caches. Contract: <astrai/ops.h>.
#include "cache/store_kv.cuh"

#include "common/instances.cuh"

namespace astrai {

void store_kv(const TensorView& k, const TensorView& v, const TensorView& k_cache, const TensorView& v_cache,
              const TensorView& out_cache_loc, void* stream) {
  const StoreKvArgs args = check_store_kv(k, v, k_cache, v_cache, out_cache_loc);
  check_on_one_gpu("store_kv", {{"k", &k},
                                {"v", &v},
                                {"k_cache", &k_cache},
                                {"v_cache", &v_cache},
                                {"out_cache_loc", &out_cache_loc}});
  if (k.numel() == 0) return;
  const DeviceGuard guard(k.device_idx, "store_kv");
  const dim3 grid(static_cast<unsigned>((args.n_tokens + kStoreKvWarps - 1) / kStoreKvWarps), 2);
  launch_overlapped<store_kv_kernel>("store_kv", grid, kStoreKvWarps * kWarpLanes, 0, static_cast<cudaStream_t>(stream),
                                     args);
}

}  // namespace astrai
