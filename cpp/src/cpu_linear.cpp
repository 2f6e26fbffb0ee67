#include "astrai/cpu_linear.h"

#include <algorithm>
#include <vector>

#include "astrai/shape_check.h"
#include "astrai/thread_pool.h"
#include "cpu/kernels.h"

namespace astrai {
namespace {

void check_arguments(const TensorView& x, const TensorView& weight, const TensorView& out,
                     const std::optional<TensorView>& bias) {
  ShapeCheck check("cpu_linear");
  check.shape("x", x, {"M", "K"}).shape("weight", weight, {"N", "K"}).shape("out", out, {"M", "N"});
  check.dtype("weight", weight, {DType::kFloat32, DType::kBFloat16});
  if (weight.dtype == DType::kFloat32) {
    check.dtype("x", x, {DType::kFloat32}).dtype("out", out, {DType::kFloat32});
  } else {
    check.dtype("x", x, {DType::kBFloat16, DType::kFloat32}).dtype("out", out, {DType::kBFloat16, DType::kFloat32});
  }
  check.device("x", x, kCpu).device("weight", weight, kCpu).device("out", out, kCpu);
  check.contiguous_from(0, "x", x).contiguous_from(0, "weight", weight).contiguous_from(0, "out", out);
  check.writable("out", out);
  if (!bias) return;
  check.shape("bias", *bias, {"N"}).dtype("bias", *bias, {DType::kFloat32, DType::kBFloat16});
  check.device("bias", *bias, kCpu).contiguous_from(0, "bias", *bias);
}

// How many pieces are worth the cost of handing them out. More pieces than threads, so that a thread whose core is taken
// away does fewer.
int64_t chunk_limit(const LinearTask& task, int n_threads) {
  constexpr int64_t kMinChunkWork = 100'000;  // multiply-adds, counting the reading of a weight as two more
  const int64_t work = task.n * task.k * (task.m + 2);
  return std::clamp<int64_t>(work / kMinChunkWork, 1, 4 * n_threads);
}

}  // namespace

void cpu_linear(const TensorView& x, const TensorView& weight, const TensorView& out,
                const std::optional<TensorView>& bias, CpuIsa isa, ThreadPool& pool) {
  check_arguments(x, weight, out, bias);
  const bool is_x_bf16 = x.dtype == DType::kBFloat16;
  const CpuKernels& kernels = cpu_kernels(isa);
  const LinearKernel& kernel = weight.dtype == DType::kFloat32 ? kernels.linear_float32
                               : is_x_bf16                     ? kernels.linear_bf16_pair
                                                               : kernels.linear_bf16;
  LinearTask task{};
  task.m = x.size(0);
  task.k = x.size(1);
  task.n = weight.size(0);
  if (task.m == 0 || task.n == 0) return;
  task.x_stride = (task.k + kernel.k_step - 1) / kernel.k_step * kernel.k_step;
  task.weight = weight.data;
  task.bias = bias ? bias->data : nullptr;
  task.is_bias_bf16 = bias && bias->dtype == DType::kBFloat16;
  task.out = out.data;
  task.is_out_bf16 = out.dtype == DType::kBFloat16;

  // One buffer per calling thread, so that a step of decoding allocates nothing.
  thread_local std::vector<float> packed;
  if (kernel.x_layout != XLayout::kFloat32EvenOdd && task.x_stride == task.k) {
    task.x = x.data;
  } else {
    const auto n_packed = static_cast<size_t>(task.m * task.x_stride);
    if (packed.size() < n_packed) packed.resize(n_packed);
    kernel.pack_x(x.data, is_x_bf16, task.m, task.k, task.x_stride, packed.data());
    task.x = packed.data();
  }

  const int64_t n_bands = (task.n + kLinearBandRows - 1) / kLinearBandRows;
  pool.run(n_bands, chunk_limit(task, pool.n_threads()), [&](int64_t begin, int64_t end) {
    kernel.run(task, begin * kLinearBandRows, std::min(end * kLinearBandRows, task.n));
  });
}

}  // namespace astrai
