// sample: checks, then the launches for the dtype of the logits. Contract: <astrai/sampling_ops.h>.
#include "common/instances.cuh"
#include "sampling/sample_launch.cuh"

namespace astrai {

void sample(const SampleTensors& tensors, bool has_wide_rows, void* stream) {
  const SampleArgs args = check_sample(tensors, has_wide_rows);
  check_on_one_gpu("sample", {{"logits", &tensors.logits},
                              {"temperature", &tensors.temperature},
                              {"top_k", &tensors.top_k},
                              {"top_p", &tensors.top_p},
                              {"min_p", &tensors.min_p},
                              {"seeds", &tensors.seeds},
                              {"positions", &tensors.positions},
                              {"token_ids", &tensors.token_ids},
                              {"is_faulty", &tensors.is_faulty},
                              {"workspace", &tensors.workspace}});
  if (tensors.edits) {
    check_on_one_gpu("sample", {{"logits", &tensors.logits},
                                {"edit_rows", &tensors.edits->rows},
                                {"edit_lens", &tensors.edits->lens},
                                {"edit_ids", &tensors.edits->ids},
                                {"edit_bias", &tensors.edits->bias},
                                {"edit_counts", &tensors.edits->counts},
                                {"penalties", &tensors.edits->penalties}});
  }
  if (tensors.bitmask) check_on_one_gpu("sample", {{"logits", &tensors.logits}, {"bitmask", &*tensors.bitmask}});
  if (tensors.bitmask_rows) {
    check_on_one_gpu("sample", {{"logits", &tensors.logits}, {"bitmask_rows", &*tensors.bitmask_rows}});
  }
  if (args.batch == 0) return;
  const DeviceGuard guard(tensors.logits.device_idx, "sample");
  const auto on = static_cast<cudaStream_t>(stream);
  if (tensors.logits.dtype == DType::kFloat32) {
    launch_sample<float>(args, on);
  } else if (tensors.logits.dtype == DType::kFloat16) {
    launch_sample<__half>(args, on);
  } else {
    launch_sample<__nv_bfloat16>(args, on);
  }
}

}  // namespace astrai
