// silu_mul and gelu_mul: checks, then one launch. Contract: <astrai/fused_ops.h>.
#include "fused/gated_act.cuh"

#include "common/instances.cuh"

namespace astrai {
namespace {

template <typename T, GatedAct kAct, int kVecLen>
void launch_gated_act(const char* op, const GatedActArgs& args, cudaStream_t stream) {
  const int64_t n_vecs = args.n_rows * (args.row_len / kVecLen);
  const auto n_blocks = static_cast<unsigned>((n_vecs + kGatedActThreads - 1) / kGatedActThreads);
  launch_overlapped<gated_act_kernel<T, kAct, kVecLen>>(op, n_blocks, kGatedActThreads, 0, stream, args);
}

template <GatedAct kAct>
void gated_act(const char* op, const TensorView& gate_up, const TensorView& out, void* stream) {
  const GatedActArgs args = check_gated_act(op, gate_up, out);
  check_on_one_gpu(op, {{"gate_up", &gate_up}, {"out", &out}});
  if (out.numel() == 0) return;
  const DeviceGuard guard(out.device_idx, op);
  const auto on = static_cast<cudaStream_t>(stream);
  const bool is_bf16 = out.dtype == DType::kBFloat16;
  if (args.is_vectorizable) {
    is_bf16 ? launch_gated_act<__nv_bfloat16, kAct, 8>(op, args, on) : launch_gated_act<__half, kAct, 8>(op, args, on);
  } else {
    is_bf16 ? launch_gated_act<__nv_bfloat16, kAct, 1>(op, args, on) : launch_gated_act<__half, kAct, 1>(op, args, on);
  }
}

}  // namespace

void silu_mul(const TensorView& gate_up, const TensorView& out, void* stream) {
  gated_act<GatedAct::kSilu>("silu_mul", gate_up, out, stream);
}

void gelu_mul(const TensorView& gate_up, const TensorView& out, void* stream) {
  gated_act<GatedAct::kGelu>("gelu_mul", gate_up, out, stream);
}

}  // namespace astrai
