// moe_combine: checks, then one launch. Contract: <astrai/moe_ops.h>.
#include "moe/moe_combine.cuh"

#include "common/instances.cuh"

namespace astrai {
namespace {

template <typename T>
void launch(const MoeCombineArgs& args, cudaStream_t stream) {
  const int64_t n_vecs = args.n_rows * (args.row_len / 8);
  const auto n_blocks = static_cast<unsigned>((n_vecs + kMoeCombineThreads - 1) / kMoeCombineThreads);
  launch_overlapped<moe_combine_kernel<T>>("moe_combine", n_blocks, kMoeCombineThreads, 0, stream, args);
}

}  // namespace

void moe_combine(const TensorView& parts, const TensorView& weights, const TensorView& out, void* stream) {
  const MoeCombineArgs args = check_moe_combine(parts, weights, out);
  check_on_one_gpu("moe_combine", {{"parts", &parts}, {"weights", &weights}, {"out", &out}});
  if (out.numel() == 0) return;
  const DeviceGuard guard(out.device_idx, "moe_combine");
  const auto on = static_cast<cudaStream_t>(stream);
  out.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(args, on) : launch<__half>(args, on);
}

}  // namespace astrai
