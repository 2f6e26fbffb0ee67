// The mixture of experts of a build without CUDA: it checks its arguments, then says why there is no kernel.
#include "astrai/moe_ops.h"
#include "throw_unavailable.h"

namespace astrai {

void moe_route(const TensorView& logits, const TensorView& ids, const TensorView& weights, bool norm_topk_prob, void*) {
  check_moe_route(logits, ids, weights, norm_topk_prob);
  throw_without_cuda("moe_route");
}

void moe_sort(const TensorView& ids, const TensorView& order, const TensorView& tiles, int n_experts, void*) {
  check_moe_sort(ids, order, tiles, n_experts);
  throw_without_cuda("moe_sort");
}

void moe_gate_up(const TensorView& x, const TensorView& gate_up, const TensorView& order, const TensorView& tiles,
                 const TensorView& gated, void*) {
  check_moe_gate_up(x, gate_up, order, tiles, gated);
  throw_without_cuda("moe_gate_up");
}

void moe_down(const TensorView& gated, const TensorView& down, const TensorView& order, const TensorView& tiles,
              const TensorView& parts, void*) {
  check_moe_down(gated, down, order, tiles, parts);
  throw_without_cuda("moe_down");
}

void moe_combine(const TensorView& parts, const TensorView& weights, const TensorView& out, void*) {
  check_moe_combine(parts, weights, out);
  throw_without_cuda("moe_combine");
}

}  // namespace astrai
