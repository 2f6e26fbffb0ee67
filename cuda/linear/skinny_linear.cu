// skinny_linear: checks, then one launch. Contract: <astrai/skinny_linear.h>.
#include "linear/skinny_linear.cuh"

#include "common/instances.cuh"

namespace astrai {
namespace {

constexpr const char* kOp = "skinny_linear";
constexpr int kLongRow = 2048;  // from here on eight warps share a row: a slice is then 8 loads a lane or more

template <typename T, int kSlices, bool kGated, int kMaxRows>
void launch(const SkinnyLinearArgs& args, cudaStream_t stream) {
  constexpr auto kKernel = skinny_linear_kernel<T, kSlices, kGated, kMaxRows>;
  constexpr int kColumns = kSkinnyWarps / kSlices * kSkinnyTileRows;
  const size_t shared_bytes = skinny_shared_bytes(args);
  check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
             kOp);
  const auto n_blocks = static_cast<unsigned>((args.n_out + kColumns - 1) / kColumns);
  launch_overlapped<kKernel>(kOp, n_blocks, kSkinnyThreads, shared_bytes, stream, args);
}

template <typename T, bool kGated, int kMaxRows>
void launch_by_length(const SkinnyLinearArgs& args, cudaStream_t stream) {
  args.row_len >= kLongRow ? launch<T, 8, kGated, kMaxRows>(args, stream) : launch<T, 4, kGated, kMaxRows>(args, stream);
}

template <typename T, int kMaxRows>
void launch_by_gate(const SkinnyLinearArgs& args, bool is_gated, cudaStream_t stream) {
  is_gated ? launch_by_length<T, true, kMaxRows>(args, stream) : launch_by_length<T, false, kMaxRows>(args, stream);
}

template <typename T>
void launch_for(const SkinnyLinearArgs& args, bool is_gated, cudaStream_t stream) {
  if (args.n_rows > kSkinnySomeRows) {
    launch_by_gate<T, kSkinnyTokens>(args, is_gated, stream);
  } else if (is_gated || args.n_rows > kSkinnyFewRows) {
    launch_by_gate<T, kSkinnySomeRows>(args, is_gated, stream);
  } else {
    launch_by_length<T, false, kSkinnyFewRows>(args, stream);
  }
}

}  // namespace

void skinny_linear(const SkinnyLinearTensors& tensors, const SkinnyLinearOptions& options, void* stream) {
  const SkinnyLinearArgs args = check_skinny_linear(tensors, options);
  const TensorView& weight = tensors.weight;
  check_on_one_gpu(kOp, {{"x", &tensors.x}, {"weight", &weight}, {"out", &tensors.out}});
  if (options.bias) check_on_one_gpu(kOp, {{"x", &tensors.x}, {"bias", &*options.bias}});
  if (options.norm_weight) check_on_one_gpu(kOp, {{"x", &tensors.x}, {"norm_weight", &*options.norm_weight}});
  if (tensors.out.numel() == 0) return;
  const DeviceGuard guard(weight.device_idx, kOp);
  const auto on = static_cast<cudaStream_t>(stream);
  const bool is_gated = options.output == SkinnyOutput::kSiluMul;
  weight.dtype == DType::kBFloat16 ? launch_for<__nv_bfloat16>(args, is_gated, on) : launch_for<__half>(args, is_gated, on);
}

}  // namespace astrai
