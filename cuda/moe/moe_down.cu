// moe_down: checks, then one launch. Contract: <astrai/moe_ops.h>.
#include "common/instances.cuh"
#include "moe/moe_product_launch.cuh"

namespace astrai {

void moe_down(const TensorView& gated, const TensorView& down, const TensorView& order, const TensorView& tiles,
              const TensorView& parts, void* stream) {
  const MoeProductArgs args = check_moe_down(gated, down, order, tiles, parts);
  check_on_one_gpu("moe_down",
                   {{"gated", &gated}, {"down", &down}, {"order", &order}, {"tiles", &tiles}, {"parts", &parts}});
  if (parts.numel() == 0) return;
  const DeviceGuard guard(gated.device_idx, "moe_down");
  const auto on = static_cast<cudaStream_t>(stream);
  gated.dtype == DType::kBFloat16 ? launch_moe_product<__nv_bfloat16, false>("moe_down", args, on)
                                  : launch_moe_product<__half, false>("moe_down", args, on);
}

}  // namespace astrai
