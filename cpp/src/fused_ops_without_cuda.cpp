// The fused GPU operations of a build without CUDA: they check their arguments, then say why there is no kernel.
#include "astrai/fused_ops.h"
#include "astrai/narrow_linear.h"
#include "astrai/skinny_linear.h"
#include "throw_unavailable.h"

namespace astrai {

void rms_norm(const TensorView& x, const TensorView& weight, const TensorView& out, float eps, void*) {
  check_rms_norm(x, weight, out, eps);
  throw_without_cuda("rms_norm");
}

void add_rms_norm(const TensorView& x, const TensorView& residual, const TensorView& weight, const TensorView& out,
                  float eps, void*) {
  check_add_rms_norm(x, residual, weight, out, eps);
  throw_without_cuda("add_rms_norm");
}

void silu_mul(const TensorView& gate_up, const TensorView& out, void*) {
  check_gated_act("silu_mul", gate_up, out);
  throw_without_cuda("silu_mul");
}

void gelu_mul(const TensorView& gate_up, const TensorView& out, void*) {
  check_gated_act("gelu_mul", gate_up, out);
  throw_without_cuda("gelu_mul");
}

void embedding(const TensorView& ids, const TensorView& table, const TensorView& out, void*) {
  check_embedding(ids, table, out);
  throw_without_cuda("embedding");
}

void rotary_store_kv(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& freqs,
                     const TensorView& k_cache, const TensorView& v_cache, const TensorView& out_cache_loc,
                     const TensorView& q_out, const std::optional<TensorView>& positions,
                     const std::optional<TensorView>& q_norm, const std::optional<TensorView>& k_norm, float eps, void*) {
  check_rotary_store_kv(q, k, v, freqs, k_cache, v_cache, out_cache_loc, q_out, positions, q_norm, k_norm, eps);
  throw_without_cuda("rotary_store_kv");
}

void skinny_linear(const SkinnyLinearTensors& tensors, const SkinnyLinearOptions& options, void*) {
  check_skinny_linear(tensors, options);
  throw_without_cuda("skinny_linear");
}

void narrow_linear(const NarrowLinearTensors& tensors, const std::optional<TensorView>& bias, SkinnyOutput output, void*) {
  check_narrow_linear(tensors, bias, output);
  throw_without_cuda("narrow_linear");
}

}  // namespace astrai
