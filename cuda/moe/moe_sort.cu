// moe_sort: checks, then one launch. Contract: <astrai/moe_ops.h>.
#include "moe/moe_sort.cuh"

#include "common/instances.cuh"

namespace astrai {

void moe_sort(const TensorView& ids, const TensorView& order, const TensorView& tiles, int n_experts, void* stream) {
  const MoeSortArgs args = check_moe_sort(ids, order, tiles, n_experts);
  check_on_one_gpu("moe_sort", {{"ids", &ids}, {"order", &order}, {"tiles", &tiles}});
  if (args.n_pairs == 0) return;
  const DeviceGuard guard(ids.device_idx, "moe_sort");
  const int n_threads = args.n_pairs <= 8 * kMoeSortWarpPairs ? 256 : kMoeSortMaxThreads;
  launch_overlapped<moe_sort_kernel>("moe_sort", static_cast<unsigned>(n_experts), n_threads,
                                     n_experts * sizeof(int), static_cast<cudaStream_t>(stream), args);
}

}  // namespace astrai
