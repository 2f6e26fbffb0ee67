// The sampling operations of a build without CUDA: they check their arguments, then say why there is no kernel.
#include "astrai/sampling_ops.h"
#include "throw_unavailable.h"

namespace astrai {

void sample(const SampleTensors& tensors, bool has_wide_rows, void*) {
  check_sample(tensors, has_wide_rows);
  throw_without_cuda("sample");
}

void keep_drawn(const TensorView& token_ids, const TensorView& is_faulty, const TensorView& rows,
                const TensorView& last_ids, const std::optional<LogitEditTensors>& edits, void*) {
  check_keep_drawn(token_ids, is_faulty, rows, last_ids, edits);
  throw_without_cuda("keep_drawn");
}

void top_logprobs(const TensorView& logits, const TensorView& token_ids, const TensorView& chosen,
                  const TensorView& top_ids, const TensorView& top_logprobs, const TensorView& workspace, void*) {
  check_top_logprobs(logits, token_ids, chosen, top_ids, top_logprobs, workspace);
  throw_without_cuda("top_logprobs");
}

}  // namespace astrai
