#include "astrai/cpu_rowwise.h"

#include <algorithm>

#include "astrai/shape_check.h"
#include "astrai/thread_pool.h"
#include "cpu/bf16.h"
#include "cpu/kernels.h"

namespace astrai {
namespace {

// In pieces of at least 32768 elements: fewer are not worth handing out.
int64_t chunk_limit(int64_t n_elements, const ThreadPool& pool) {
  return std::clamp<int64_t>(n_elements / 32'768, 1, 4 * pool.n_threads());
}

const TypedKernels& typed_kernels(DType dtype, CpuIsa isa) {
  return dtype == DType::kBFloat16 ? cpu_kernels(isa).bf16 : cpu_kernels(isa).float32;
}

void check_on_cpu(ShapeCheck& check, const char* arg, const TensorView& t, int contiguous_from = 0) {
  check.device(arg, t, kCpu).contiguous_from(contiguous_from, arg, t);
}

float to_float(float value) { return value; }
float to_float(uint16_t bits) { return float_from_bf16(bits); }
void assign(float& place, float value) { place = value; }
void assign(uint16_t& place, float value) { place = bf16_from_float(value); }

template <typename T>
void rotate_rows(const TensorView& x, const TensorView& freqs, const TensorView& out, int64_t begin, int64_t end) {
  const int64_t n_heads = x.size(1), head_dim = x.size(2);
  for (int64_t t = begin; t < end; ++t) {
    const float* cos_sin = freqs.data_as<const float>() + t * head_dim;
    for (int64_t h = 0; h < n_heads; ++h) {
      const T* from = x.data_as<const T>() + t * x.stride(0) + h * head_dim;
      T* to = out.data_as<T>() + (t * n_heads + h) * head_dim;
      for (int64_t d = 0; d < head_dim; d += 2) {
        const float a = to_float(from[d]), b = to_float(from[d + 1]);
        assign(to[d], a * cos_sin[d] - b * cos_sin[d + 1]);
        assign(to[d + 1], a * cos_sin[d + 1] + b * cos_sin[d]);
      }
    }
  }
}

using GatedAct = void (*TypedKernels::*)(const GatedActTask& task, int64_t row_begin, int64_t row_end);

void gated_act(const char* op, GatedAct act, const TensorView& gate_up, const TensorView& out, CpuIsa isa,
               ThreadPool& pool) {
  ShapeCheck check(op);
  check.shape("out", out, {"T", "N"}).shape("gate_up", gate_up, {"T", 2 * check.size("N")});
  check.dtype("gate_up", gate_up, {DType::kFloat32, DType::kBFloat16}).dtype("out", out, {gate_up.dtype});
  check.writable("out", out);
  check_on_cpu(check, "gate_up", gate_up);
  check_on_cpu(check, "out", out);
  const GatedActTask task{gate_up.data, out.data, out.size(1)};
  const auto rows = typed_kernels(out.dtype, isa).*act;
  pool.run(out.size(0), chunk_limit(gate_up.numel() * 2, pool),
           [&](int64_t begin, int64_t end) { rows(task, begin, end); });
}

}  // namespace

void cpu_rms_norm(const TensorView& x, const TensorView& weight, const TensorView& out, float eps,
                  const std::optional<TensorView>& residual, CpuIsa isa, ThreadPool& pool) {
  ShapeCheck check("cpu_rms_norm");
  check.shape("x", x, {"T", "N"}).shape("weight", weight, {"N"}).shape("out", out, {"T", "N"});
  check.dtype("x", x, {DType::kFloat32, DType::kBFloat16});
  check.dtype("weight", weight, {x.dtype}).dtype("out", out, {x.dtype}).writable("out", out);
  check_on_cpu(check, "x", x);
  check_on_cpu(check, "weight", weight);
  check_on_cpu(check, "out", out);
  if (residual) {
    check.shape("residual", *residual, {"T", "N"}).dtype("residual", *residual, {x.dtype});
    check.writable("residual", *residual);
    check_on_cpu(check, "residual", *residual);
  }
  const RmsNormTask task{x.data, weight.data, residual ? residual->data : nullptr, out.data, x.size(1), eps};
  const TypedKernels& kernels = typed_kernels(x.dtype, isa);
  pool.run(x.size(0), chunk_limit(x.numel(), pool),
           [&](int64_t begin, int64_t end) { kernels.rms_norm(task, begin, end); });
}

void cpu_silu_mul(const TensorView& gate_up, const TensorView& out, CpuIsa isa, ThreadPool& pool) {
  gated_act("cpu_silu_mul", &TypedKernels::silu_mul, gate_up, out, isa, pool);
}

void cpu_gelu_mul(const TensorView& gate_up, const TensorView& out, CpuIsa isa, ThreadPool& pool) {
  gated_act("cpu_gelu_mul", &TypedKernels::gelu_mul, gate_up, out, isa, pool);
}

void cpu_rotary_emb(const TensorView& x, const TensorView& freqs, const TensorView& out, ThreadPool& pool) {
  ShapeCheck check("cpu_rotary_emb");
  check.shape("x", x, {"T", "H", "D"}).shape("out", out, {"T", "H", "D"});
  check.shape("freqs", freqs, {"T", check.size("D") / 2, 2});
  check.require(check.size("D") % 2 == 0, [&] {
    return "x.head_dim is " + std::to_string(check.size("D")) + "; expected even";
  });
  check.dtype("x", x, {DType::kFloat32, DType::kBFloat16}).dtype("out", out, {x.dtype});
  check.dtype("freqs", freqs, {DType::kFloat32}).writable("out", out);
  check_on_cpu(check, "x", x, 1);
  check_on_cpu(check, "freqs", freqs);
  check_on_cpu(check, "out", out);
  const auto rotate = x.dtype == DType::kBFloat16 ? rotate_rows<uint16_t> : rotate_rows<float>;
  pool.run(x.size(0), chunk_limit(x.numel() * 2, pool),
           [&](int64_t begin, int64_t end) { rotate(x, freqs, out, begin, end); });
}

}  // namespace astrai
