// What was compiled into this library, and the errors that tell it.
#include "astrai_instances.inc"
#include "astrai/error.h"
#include "astrai/ops.h"
#include "astrai/shape_check.h"
#include "common/instances.cuh"

namespace astrai {

KernelInstances compiled_instances() {
  KernelInstances instances;
#define ASTRAI_ADD(kernel, dtype, T, head_dim) instances[#kernel].emplace_back(#dtype, head_dim);
  ASTRAI_ALL_INSTANCES(ASTRAI_ADD)
#undef ASTRAI_ADD
  for (const char* kernel : {"add_rms_norm", "embedding", "gelu_mul", "rms_norm", "rotary_store_kv", "silu_mul",
                             "skinny_linear"}) {
    instances[kernel] = {{"bfloat16", 0}, {"float16", 0}};  // rows of any length
  }
#ifdef ASTRAI_HAS_SM90A
  instances["narrow_linear"] = {{"bfloat16", 0}, {"float16", 0}};
#endif
  for (const char* kernel : {"moe_combine", "moe_down", "moe_gate_up", "moe_route", "moe_sort"}) {
    instances[kernel] = {{"bfloat16", 0}, {"float16", 0}};  // of the rows; any number of columns
  }
  for (const char* kernel : {"sample", "top_logprobs"}) {
    instances[kernel] = {{"bfloat16", 0}, {"float16", 0}, {"float32", 0}};  // logits have no head_dim
  }
  instances["keep_drawn"] = {{"int32", 0}};  // ids
  instances["store_kv"] = {{"bfloat16", 0}, {"float16", 0}};  // one kernel moves rows of any length
  return instances;
}

std::vector<std::string> cuda_archs() { return {ASTRAI_CUDA_ARCHS_LIST}; }

void throw_no_instance(const char* op, DType dtype, int head_dim) {
  const KernelInstances instances = compiled_instances();
  std::string built;
  for (const auto& [name, built_head_dim] : instances.at(op)) {
    if (!built.empty()) built += ", ";
    built += name + " " + std::to_string(built_head_dim);
  }
  throw KernelUnavailableError(std::string(op) + ": no kernel for " + dtype_name(dtype) + " with head_dim " +
                               std::to_string(head_dim) + "; this build has {" + built +
                               "}. Add the size to ASTRAI_HEAD_DIMS or select ATTN_BACKEND.TORCH_NATIVE.");
}

void check_on_one_gpu(const char* op, std::initializer_list<std::pair<const char*, const TensorView*>> tensors) {
  ShapeCheck check(op);
  int device_idx = -1;
  for (const auto& [arg, tensor] : tensors) {
    check.device(arg, *tensor, kCuda, device_idx);
    device_idx = tensor->device_idx;
  }
}

}  // namespace astrai
