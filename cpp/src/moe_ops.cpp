// Argument checks of the mixture of experts. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/moe_ops.h"

#include <limits>
#include <string>

#include "astrai/moe_tiles.h"
#include "astrai/shape_check.h"
#include "op_checks.h"

namespace astrai {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxTiles = 65535;  // of the second dimension of a grid

// Every tensor of these operations is one block of memory that starts on a vector.
void require_block(ShapeCheck& check, const char* arg, const TensorView& t) {
  check.contiguous_from(0, arg, t);
  check.require(starts_on_vector(t.data, {}, t.dtype), [&] {
    return std::string(arg) + " does not start on " + std::to_string(kVectorBytes) + " bytes";
  });
}

void require_output(ShapeCheck& check, const char* arg, const TensorView& t) {
  require_block(check, arg, t);
  check.writable(arg, t);
}

void require_multiple_of_8(ShapeCheck& check, const char* arg, const TensorView& t, int64_t size) {
  check.require(size % 8 == 0 && size <= kMaxInt, [&] {
    return std::string(arg) + " has shape " + shape_string(t) + "; rows must be a multiple of 8 elements";
  });
}

void require_tiles(ShapeCheck& check, const TensorView& tiles, int64_t n_pairs, int64_t n_experts) {
  const int64_t n_tiles = moe_max_tiles(n_pairs, n_experts);
  check.require(n_pairs <= kMaxInt && n_tiles <= kMaxTiles, [&] {
    return std::to_string(n_pairs) + " pairs of rows and experts give up to " + std::to_string(n_tiles) +
           " tiles; at most " + std::to_string(kMaxTiles) + " are computed at once: split the rows";
  });
  check.shape("tiles", tiles, {n_tiles, 4}).dtype("tiles", tiles, {DType::kInt32});
  require_block(check, "tiles", tiles);
}

// The parts of a grouped product's check that gate_up and down share, once the sizes are bound.
MoeProductArgs product_args(ShapeCheck& check, const TensorView& x, const TensorView& weights, const TensorView& order,
                            const TensorView& tiles, const TensorView& out) {
  const int64_t n_pairs = check.size("P"), n_experts = check.size("E");
  check.shape("order", order, {"P"}).dtype("order", order, {DType::kInt32});
  require_block(check, "order", order);
  require_tiles(check, tiles, n_pairs, n_experts);
  check.require(weights.shape[1] <= kMaxInt, "weights have more than 2^31 - 1 rows");

  MoeProductArgs args{};
  args.x = x.data;
  args.weights = weights.data;
  args.out = out.data;
  args.order = order.data_as<const int32_t>();
  args.tiles = tiles.data_as<const int32_t>();
  args.n_in = static_cast<int>(weights.shape[2]);
  args.n_out = static_cast<int>(out.shape[1]);
  args.n_weight_rows = static_cast<int>(weights.shape[1]);
  args.n_active = 1;
  args.tile_rows = moe_tile_rows(n_pairs, n_experts);
  args.n_tiles = static_cast<int>(moe_max_tiles(n_pairs, n_experts));
  return args;
}

}  // namespace

MoeRouteArgs check_moe_route(const TensorView& logits, const TensorView& ids, const TensorView& weights,
                             bool norm_topk_prob) {
  ShapeCheck check("moe_route");
  check.shape("logits", logits, {"T", "E"}).shape("ids", ids, {"T", "A"}).shape("weights", weights, {"T", "A"});
  require_half_precision("moe_route", "logits", logits);
  check.dtype("ids", ids, {DType::kInt32}).dtype("weights", weights, {DType::kFloat32});
  check.contiguous_from(0, "logits", logits);
  require_output(check, "ids", ids);
  require_output(check, "weights", weights);
  const int64_t n_experts = check.size("E"), n_active = check.size("A");
  check.require(n_experts >= 1 && n_experts <= kMoeMaxExperts, [&] {
    return "logits has shape " + shape_string(logits) + "; accepted: 1 to " + std::to_string(kMoeMaxExperts) + " experts";
  });
  check.require(n_active >= 1 && n_active <= n_experts && n_active <= kMoeMaxActive, [&] {
    return "ids has shape " + shape_string(ids) + "; accepted: 1 to " + std::to_string(kMoeMaxActive) +
           " experts a row, and not more than there are";
  });
  check.require(check.size("T") <= kMaxInt, "logits has more than 2^31 - 1 rows");

  MoeRouteArgs args{};
  args.logits = logits.data;
  args.ids = ids.data_as<int32_t>();
  args.weights = weights.data_as<float>();
  args.n_rows = check.size("T");
  args.n_experts = static_cast<int>(n_experts);
  args.n_active = static_cast<int>(n_active);
  args.norm_topk_prob = norm_topk_prob;
  return args;
}

MoeSortArgs check_moe_sort(const TensorView& ids, const TensorView& order, const TensorView& tiles, int n_experts) {
  ShapeCheck check("moe_sort");
  check.shape("ids", ids, {"T", "A"}).shape("order", order, {check.size("T") * check.size("A")});
  check.dtype("ids", ids, {DType::kInt32}).dtype("order", order, {DType::kInt32});
  require_block(check, "ids", ids);
  require_output(check, "order", order);
  check.require(n_experts >= 1 && n_experts <= kMoeMaxExperts, [&] {
    return "n_experts is " + std::to_string(n_experts) + "; accepted: 1 to " + std::to_string(kMoeMaxExperts);
  });
  require_tiles(check, tiles, order.shape[0], n_experts);
  check.writable("tiles", tiles);

  MoeSortArgs args{};
  args.ids = ids.data_as<const int32_t>();
  args.order = order.data_as<int32_t>();
  args.tiles = tiles.data_as<int32_t>();
  args.n_pairs = static_cast<int>(order.shape[0]);
  args.n_experts = n_experts;
  args.tile_rows = moe_tile_rows(args.n_pairs, n_experts);
  args.n_tiles = static_cast<int>(tiles.shape[0]);
  return args;
}

MoeProductArgs check_moe_gate_up(const TensorView& x, const TensorView& gate_up, const TensorView& order,
                                 const TensorView& tiles, const TensorView& gated) {
  ShapeCheck check("moe_gate_up");
  check.shape("x", x, {"T", "H"}).shape("gated", gated, {"P", "I"});
  check.shape("gate_up", gate_up, {"E", 2 * check.size("I"), "H"});
  require_half_precision("moe_gate_up", "x", x);
  check.dtype("gate_up", gate_up, {x.dtype}).dtype("gated", gated, {x.dtype});
  require_block(check, "x", x);
  require_block(check, "gate_up", gate_up);
  require_output(check, "gated", gated);
  require_multiple_of_8(check, "x", x, check.size("H"));
  require_multiple_of_8(check, "gated", gated, check.size("I"));
  const int64_t n_rows = check.size("T"), n_pairs = check.size("P");
  check.require(n_rows == 0 ? n_pairs == 0 : n_pairs % n_rows == 0, [&] {
    return "gated has shape " + shape_string(gated) + "; expected a whole number of pairs for each of x's " +
           std::to_string(n_rows) + " rows";
  });
  MoeProductArgs args = product_args(check, x, gate_up, order, tiles, gated);
  if (n_rows > 0) args.n_active = static_cast<int>(n_pairs / n_rows);
  return args;
}

MoeProductArgs check_moe_down(const TensorView& gated, const TensorView& down, const TensorView& order,
                              const TensorView& tiles, const TensorView& parts) {
  ShapeCheck check("moe_down");
  check.shape("gated", gated, {"P", "I"}).shape("parts", parts, {"P", "H"}).shape("down", down, {"E", "H", "I"});
  require_half_precision("moe_down", "gated", gated);
  check.dtype("down", down, {gated.dtype}).dtype("parts", parts, {gated.dtype});
  require_block(check, "gated", gated);
  require_block(check, "down", down);
  require_output(check, "parts", parts);
  require_multiple_of_8(check, "gated", gated, check.size("I"));
  require_multiple_of_8(check, "parts", parts, check.size("H"));
  return product_args(check, gated, down, order, tiles, parts);
}

MoeCombineArgs check_moe_combine(const TensorView& parts, const TensorView& weights, const TensorView& out) {
  ShapeCheck check("moe_combine");
  check.shape("weights", weights, {"T", "A"}).shape("out", out, {"T", "H"});
  check.shape("parts", parts, {check.size("T") * check.size("A"), "H"});
  require_half_precision("moe_combine", "parts", parts);
  check.dtype("out", out, {parts.dtype}).dtype("weights", weights, {DType::kFloat32});
  require_block(check, "parts", parts);
  require_block(check, "weights", weights);
  require_output(check, "out", out);
  require_multiple_of_8(check, "out", out, check.size("H"));
  check.require(parts.shape[0] <= kMaxInt, "parts has more than 2^31 - 1 rows");

  MoeCombineArgs args{};
  args.parts = parts.data;
  args.weights = weights.data_as<const float>();
  args.out = out.data;
  args.n_rows = check.size("T");
  args.n_active = static_cast<int>(check.size("A"));
  args.row_len = static_cast<int>(check.size("H"));
  return args;
}

}  // namespace astrai
