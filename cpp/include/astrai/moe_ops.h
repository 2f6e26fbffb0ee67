// A mixture of experts on a GPU: routing, sorting by expert, two grouped matrix products and the weighted sum. As in
// <astrai/ops.h>: checked here, launched on the caller's stream, nothing allocated, nothing synchronised, capturable: no
// grid depends on the routing. A row's result depends on that row alone, to the bit. Thread safe.
//
//   moe_route(logits) -> ids, weights;  moe_sort(ids) -> order, tiles;  moe_gate_up(x) -> gated;  moe_down(gated) -> parts;
//   moe_combine(parts, weights) -> out
//
// T rows, A experts of each row, P = T * A pairs, E experts, H hidden, I intermediate. Pairs, positions and tiles:
// <astrai/moe_tiles.h>. Tensors are contiguous and start on 16 bytes; H and I are multiples of 8.
#pragma once

#include <cstdint>

#include "astrai/tensor_view.h"

namespace astrai {

// The A heaviest experts of each row, heaviest first; of equal ones the lower number. Softmax over all E in float32.
//   logits   [T, E] bfloat16 or float16; E up to 512
//   ids      [T, A] int32; weights [T, A] float32, divided by their sum if norm_topk_prob; A up to 32
void moe_route(const TensorView& logits, const TensorView& ids, const TensorView& weights, bool norm_topk_prob,
               void* stream);

// Sorts pairs by expert, stably, and cuts them into tiles.
//   ids      [T, A] int32, each in [0, n_experts) (another traps on the device)
//   order    [P] int32: the pair at each position
//   tiles    [moe_max_tiles(P, n_experts), 4] int32: expert, first position, position behind the last, 0; the tiles that
//            the routing does not fill have expert -1
void moe_sort(const TensorView& ids, const TensorView& order, const TensorView& tiles, int n_experts, void* stream);

// gated[p] = silu(gate) * up with gate, up = gate_up[expert] x[order[p] / A], accumulated in float32, rounded once.
//   x [T, H]; gate_up [E, 2 I, H], I gate rows and then I up rows; gated [P, I]; bfloat16 or float16, all of one dtype
void moe_gate_up(const TensorView& x, const TensorView& gate_up, const TensorView& order, const TensorView& tiles,
                 const TensorView& gated, void* stream);

// parts[order[p]] = down[expert] gated[p], accumulated in float32, rounded once.
//   gated [P, I]; down [E, H, I]; parts [P, H]; bfloat16 or float16, all of one dtype
void moe_down(const TensorView& gated, const TensorView& down, const TensorView& order, const TensorView& tiles,
              const TensorView& parts, void* stream);

// out[t] = sum over j, ascending, of weights[t, j] * parts[t * A + j], in float32, rounded once.
//   parts [P, H], out [T, H] bfloat16 or float16; weights [T, A] float32
void moe_combine(const TensorView& parts, const TensorView& weights, const TensorView& out, void* stream);

// ---- checked arguments, which the launchers work from; the checks cover all but the device ----
// From here on not an interface: between astrai::core and astrai::cuda, it may change with any version.
struct MoeRouteArgs {
  const void* logits;  // [n_rows, n_experts]
  int32_t* ids;        // [n_rows, n_active]
  float* weights;      // [n_rows, n_active]
  int64_t n_rows;
  int n_experts, n_active;
  bool norm_topk_prob;
};
MoeRouteArgs check_moe_route(const TensorView& logits, const TensorView& ids, const TensorView& weights,
                             bool norm_topk_prob);

struct MoeSortArgs {
  const int32_t* ids;  // [n_pairs]
  int32_t* order;      // [n_pairs]
  int32_t* tiles;      // [n_tiles, 4]
  int n_pairs, n_experts, tile_rows, n_tiles;
};
MoeSortArgs check_moe_sort(const TensorView& ids, const TensorView& order, const TensorView& tiles, int n_experts);

// One grouped product: out = weights[expert] x over the tiles.
struct MoeProductArgs {
  const void* x;         // [n_rows, n_in]; for moe_down by position
  const void* weights;   // [n_experts, n_weight_rows, n_in]
  void* out;             // [n_pairs, n_out]
  const int32_t* order;  // [n_pairs]
  const int32_t* tiles;  // [n_tiles, 4]
  int n_in, n_out, n_weight_rows;
  int n_active;          // pairs of a row of x; 1 for moe_down
  int tile_rows, n_tiles;
};
MoeProductArgs check_moe_gate_up(const TensorView& x, const TensorView& gate_up, const TensorView& order,
                                 const TensorView& tiles, const TensorView& gated);
MoeProductArgs check_moe_down(const TensorView& gated, const TensorView& down, const TensorView& order,
                              const TensorView& tiles, const TensorView& parts);

struct MoeCombineArgs {
  const void* parts;     // [n_rows, n_active, row_len]
  const float* weights;  // [n_rows, n_active]
  void* out;             // [n_rows, row_len]
  int64_t n_rows;
  int n_active, row_len;
};
MoeCombineArgs check_moe_combine(const TensorView& parts, const TensorView& weights, const TensorView& out);

}  // namespace astrai
