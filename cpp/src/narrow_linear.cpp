// Argument checks of narrow_linear. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/narrow_linear.h"

#include <limits>
#include <string>

#include "astrai/shape_check.h"
#include "linear_checks.h"

namespace astrai {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxRows = 65535 * int64_t{128};      // of x: tiles of 128 are the second dimension of a grid
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
  const auto [n_rows, row_len, n_products, n_out] = check_linear(check, "narrow_linear", x, weight, out, is_gated);
  check.require(n_out % 8 == 0, [&, n_out = n_out] {
    return "out has rows of " + std::to_string(n_out) + " elements; accepted: multiples of 8";
  });
  check.require(starts_on_vector(out.data, {n_rows > 1 ? out.stride(0) : 0}, out.dtype),
                "out has rows that are not on 16 bytes");
  check.require(n_rows <= 1 || x.stride(0) != 0, "x has a stride of 0; copy its rows");
  check.require(n_products <= kMaxInt / 2, [&] { return "weight has shape " + shape_string(weight) + "; at most 2^30 rows"; });
  check.require(n_rows <= kMaxRows && row_len <= kMaxInt / 2, [&] {
    return "x has shape " + shape_string(x) + "; at most " + std::to_string(kMaxRows) + " rows of 2^30 elements";
  });
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
