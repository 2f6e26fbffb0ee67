// rotary_emb: checks, then the instance of (dtype, head_dim). Contract: <astrai/ops.h>.
#include "astrai_instances.inc"
#include "common/instances.cuh"
#include "common/launch.cuh"
#include "rotary/rotary_emb.cuh"

namespace astrai {
namespace {

using Launcher = void (*)(const RotaryEmbArgs&, cudaStream_t);

Launcher find_instance(DType dtype, int head_dim) {
#define ASTRAI_FIND(kernel, dtype_name, T, kHeadDim) \
  if (dtype == kDTypeOf<T> && head_dim == kHeadDim) return &launch_rotary_emb<T, kHeadDim>;
  ASTRAI_ROTARY_EMB_INSTANCES(ASTRAI_FIND)
#undef ASTRAI_FIND
  throw_no_instance("rotary_emb", dtype, head_dim);
}

}  // namespace

void rotary_emb(const TensorView& x, const TensorView& freqs, const TensorView& out, void* stream) {
  const RotaryEmbArgs args = check_rotary_emb(x, freqs, out);
  const Launcher launch = find_instance(x.dtype, args.head_dim);
  check_on_one_gpu("rotary_emb", {{"x", &x}, {"freqs", &freqs}, {"out", &out}});
  if (x.numel() == 0) return;
  const DeviceGuard guard(x.device_idx, "rotary_emb");
  launch(args, static_cast<cudaStream_t>(stream));
}

}  // namespace astrai
