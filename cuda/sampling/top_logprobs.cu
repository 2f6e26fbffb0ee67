// top_logprobs: checks, then two launches. Contract: <astrai/sampling_ops.h>.
#include "sampling/top_logprobs.cuh"

#include "common/instances.cuh"
#include "sampling/scan.cuh"

namespace astrai {
namespace {

template <typename T>
void launch(const TopLogprobsArgs& args, cudaStream_t stream) {
  const dim3 chunks(static_cast<unsigned>(n_chunks_of(args.vocab_size)), args.batch);
  launch_overlapped<logprobs_scan_kernel<T>>("top_logprobs", chunks, kScanThreads, 0, stream, args);
  launch_overlapped<top_logprobs_row_kernel<T>>("top_logprobs", args.batch, kRowThreads, 0, stream, args);
}

}  // namespace

void top_logprobs(const TensorView& logits, const TensorView& token_ids, const TensorView& chosen,
                  const TensorView& top_ids, const TensorView& top_logprobs, const TensorView& workspace, void* stream) {
  const TopLogprobsArgs args = check_top_logprobs(logits, token_ids, chosen, top_ids, top_logprobs, workspace);
  check_on_one_gpu("top_logprobs", {{"logits", &logits},
                                    {"token_ids", &token_ids},
                                    {"chosen", &chosen},
                                    {"top_ids", &top_ids},
                                    {"top_logprobs", &top_logprobs},
                                    {"workspace", &workspace}});
  if (args.batch == 0) return;
  const DeviceGuard guard(logits.device_idx, "top_logprobs");
  const auto on = static_cast<cudaStream_t>(stream);
  if (logits.dtype == DType::kFloat32) {
    launch<float>(args, on);
  } else if (logits.dtype == DType::kFloat16) {
    launch<__half>(args, on);
  } else {
    launch<__nv_bfloat16>(args, on);
  }
}

}  // namespace astrai
