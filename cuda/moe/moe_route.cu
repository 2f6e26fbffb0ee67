// moe_route: checks, then one launch. Contract: <astrai/moe_ops.h>.
#include "moe/moe_route.cuh"

#include "astrai/moe_tiles.h"
#include "common/instances.cuh"

namespace astrai {
namespace {

template <typename T>
void launch(const MoeRouteArgs& args, cudaStream_t stream) {
  constexpr const char* kOp = "moe_route";
  const auto n_blocks = static_cast<unsigned>((args.n_rows + kMoeRouteWarps - 1) / kMoeRouteWarps);
  constexpr int kThreads = kMoeRouteWarps * 32;
  if (args.n_experts <= 128) {
    launch_overlapped<moe_route_kernel<T, 4>>(kOp, n_blocks, kThreads, 0, stream, args);
  } else {
    launch_overlapped<moe_route_kernel<T, kMoeMaxExperts / 32>>(kOp, n_blocks, kThreads, 0, stream, args);
  }
}

}  // namespace

void moe_route(const TensorView& logits, const TensorView& ids, const TensorView& weights, bool norm_topk_prob,
               void* stream) {
  const MoeRouteArgs args = check_moe_route(logits, ids, weights, norm_topk_prob);
  check_on_one_gpu("moe_route", {{"logits", &logits}, {"ids", &ids}, {"weights", &weights}});
  if (args.n_rows == 0) return;
  const DeviceGuard guard(logits.device_idx, "moe_route");
  const auto on = static_cast<cudaStream_t>(stream);
  logits.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(args, on) : launch<__half>(args, on);
}

}  // namespace astrai
