// moe_gate_up: checks, then one launch. Contract: <astrai/moe_ops.h>.
#include "common/instances.cuh"
#include "moe/moe_product_launch.cuh"

namespace astrai {

void moe_gate_up(const TensorView& x, const TensorView& gate_up, const TensorView& order, const TensorView& tiles,
                 const TensorView& gated, void* stream) {
  const MoeProductArgs args = check_moe_gate_up(x, gate_up, order, tiles, gated);
  check_on_one_gpu("moe_gate_up",
                   {{"x", &x}, {"gate_up", &gate_up}, {"order", &order}, {"tiles", &tiles}, {"gated", &gated}});
  if (gated.numel() == 0) return;
  const DeviceGuard guard(x.device_idx, "moe_gate_up");
  const auto on = static_cast<cudaStream_t>(stream);
  x.dtype == DType::kBFloat16 ? launch_moe_product<__nv_bfloat16, true>("moe_gate_up", args, on)
                              : launch_moe_product<__half, true>("moe_gate_up", args, on);
}

}  // namespace astrai
