// Argument checks of narrow_linear. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/narrow_linear.h"

#include <limits>
#include <string>

#include "astrai/shape_check.h"
#include "op_checks.h"

namespace astrai {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int kMaxParts = 4;                            // larger clusters leave multiprocessors idle
constexpr int64_t kManyRows = 8192;                     // of weights, counted once for each part: enough for all multiprocessors
constexpr int64_t kPanelLen = 64, kMinPartPanels = 4;  // of the inner dimension

}  // namespace

int narrow_linear_n_parts(int64_t n_products, int64_t row_len) {
  const int64_t n_panels = (row_len + kPanelLen - 1) / kPanelLen;
  int n_parts = 1;
  while (n_parts < kMaxParts && n_products * n_parts < kManyRows && n_panels >= 2 * n_parts * kMinPartPanels) n_parts *= 2;
  return n_parts;
}

NarrowLinearArgs check_narrow_linear(const NarrowLinearTensors& tensors, const std::optional<TensorView>& bias,
                                     SkinnyOutput output) {
  const TensorView &x = tensors.x, &weight = tensors.weight, &out = tensors.out;
  const bool is_gated = output == SkinnyOutput::kSiluMul;
  ShapeCheck check("narrow_linear");
  check.shape("x", x, {"T", "K"}).shape("weight", weight, {"N", "K"});
  require_half_precision("narrow_linear", "x", x);
  const int64_t n_products = check.size("N"), row_len = check.size("K");
  check.require(!is_gated || n_products % 2 == 0, [&] {
    return "weight has " + std::to_string(n_products) + " rows; gates and ups are as many each";
  });
  const int64_t n_out = is_gated ? n_products / 2 : n_products;
  check.shape("out", out, {"T", n_out});
  check.dtype("weight", weight, {x.dtype}).dtype("out", out, {x.dtype});
  check.contiguous_from(1, "x", x).contiguous_from(1, "weight", weight).contiguous_from(1, "out", out);
  check.writable("out", out);
  check.require(has_own_rows(out), "out has a stride of 0; each row needs memory of its own");
  check.require(out.data == nullptr || out.data != x.data, "out is x; every block reads all of x");
  check.require(row_len % 8 == 0 && row_len > 0, [&] {
    return "x has rows of " + std::to_string(row_len) + " elements; accepted: multiples of 8";
  });
  check.require(n_out % 8 == 0, [&] {
    return "out has rows of " + std::to_string(n_out) + " elements; accepted: multiples of 8";
  });
  const int64_t n_rows = check.size("T");
  check.require(starts_on_vector(x.data, {n_rows > 1 ? x.stride(0) : 0}, x.dtype), "x has rows that are not on 16 bytes");
  check.require(starts_on_vector(out.data, {n_rows > 1 ? out.stride(0) : 0}, out.dtype),
                "out has rows that are not on 16 bytes");
  check.require(starts_on_vector(weight.data, {n_products > 1 ? weight.stride(0) : 0}, weight.dtype),
                "weight has rows that are not on 16 bytes");
  check.require(n_products <= kMaxInt / 2, [&] { return "weight has shape " + shape_string(weight) + "; at most 2^30 rows"; });
  check.require(n_rows <= kMaxInt / 2, [&] { return "x has shape " + shape_string(x) + "; at most 2^30 rows"; });
  if (bias) {
    check.shape("bias", *bias, {"N"}).dtype("bias", *bias, {x.dtype}).contiguous_from(0, "bias", *bias);
    check.require(starts_on_vector(bias->data, {}, bias->dtype), "bias is not on 16 bytes");
  }

  NarrowLinearArgs args{};
  args.x = x.data;
  args.weight = weight.data;
  args.bias = bias ? bias->data : nullptr;
  args.out = out.data;
  args.x_stride = n_rows > 1 ? x.strides[0] : row_len;
  args.weight_stride = n_products > 1 ? weight.strides[0] : row_len;
  args.out_stride = out.strides[0];
  args.n_rows = static_cast<int>(n_rows);
  args.row_len = static_cast<int>(row_len);
  args.n_products = static_cast<int>(n_products);
  args.n_out = static_cast<int>(n_out);
  args.n_parts = narrow_linear_n_parts(n_products, row_len);
  args.is_gated = is_gated;
  args.adds = output == SkinnyOutput::kAdd;
  return args;
}

}  // namespace astrai
