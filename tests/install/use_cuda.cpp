// Links the installed kernels and calls one with tensors of the CPU, which must be refused: needs no GPU.
#include <astrai/ops.h>

#include <cstdio>
#include <stdexcept>
#include <vector>

int main() {
  if (astrai::compiled_instances().count("rotary_emb") == 0 || astrai::cuda_archs().empty()) {
    std::fprintf(stderr, "this package names no rotary_emb kernel or no architecture\n");
    return 1;
  }
  std::vector<char> memory(4096);
  astrai::TensorView rows;  // [2, 1, 64] bfloat16
  rows.data = memory.data();
  rows.dtype = astrai::DType::kBFloat16;
  rows.ndim = 3;
  const int64_t shape[3] = {2, 1, 64};
  const int64_t strides[3] = {64, 64, 1};
  for (int i = 0; i < 3; ++i) {
    rows.shape[i] = shape[i];
    rows.strides[i] = strides[i];
  }
  astrai::TensorView slots;  // [2] int32
  slots.data = memory.data() + 1024;
  slots.dtype = astrai::DType::kInt32;
  slots.ndim = 1;
  slots.shape[0] = 2;
  slots.strides[0] = 1;
  try {
    astrai::store_kv(rows, rows, rows, rows, slots, nullptr);
  } catch (const std::invalid_argument& error) {
    std::printf("cuda links; store_kv says: %s\n", error.what());
    return 0;
  }
  std::fprintf(stderr, "store_kv accepted tensors of the CPU\n");
  return 1;
}
