// Argument checks of skinny_linear. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/skinny_linear.h"

#include <algorithm>
#include <limits>
#include <string>

#include "astrai/shape_check.h"
#include "linear_checks.h"

namespace astrai {
namespace {

constexpr int kMaxRows = 16;                   // of the matrix instruction
constexpr int64_t kMaxSharedBytes = 88 << 10;  // for the rows; 8.6 and 8.9 have 99 KB a block, partial sums take 8
constexpr int64_t kRowOverhead = 64 + 256;     // bytes of padding and of sums of squares, see the kernel
constexpr int64_t kMaxNormLen = 64 * 32 * 8;   // elements of a row whose sums of squares, of 32 vectors each, the kernel holds
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

}  // namespace

int skinny_linear_max_rows(int64_t row_len) {
  if (row_len < 1 || row_len > kMaxSharedBytes) return 0;
  return static_cast<int>(std::min<int64_t>(kMaxRows, kMaxSharedBytes / (2 * row_len + kRowOverhead)));
}

SkinnyLinearArgs check_skinny_linear(const SkinnyLinearTensors& tensors, const SkinnyLinearOptions& options) {
  const TensorView &x = tensors.x, &weight = tensors.weight, &out = tensors.out;
  const bool is_gated = options.output == SkinnyOutput::kSiluMul;
  ShapeCheck check("skinny_linear");
  const auto [n_rows, row_len, n_products, n_out] = check_linear(check, "skinny_linear", x, weight, out, is_gated);
  const int max_rows = skinny_linear_max_rows(row_len);
  check.require(n_rows <= max_rows, [&] {
    return "x has shape " + shape_string(x) + "; at most " + std::to_string(max_rows) +
           " rows of this length: see skinny_linear_max_rows";
  });
  check.require(n_products <= kMaxInt, [&] { return "weight has shape " + shape_string(weight) + "; at most 2^31 - 1 rows"; });
  if (options.bias) {
    check.shape("bias", *options.bias, {"N"}).dtype("bias", *options.bias, {x.dtype});
    check.contiguous_from(0, "bias", *options.bias);
  }
  if (options.norm_weight) {
    const TensorView& norm = *options.norm_weight;
    check.shape("norm_weight", norm, {"K"}).dtype("norm_weight", norm, {x.dtype}).contiguous_from(0, "norm_weight", norm);
    check.require(starts_on_vector(norm.data, {}, norm.dtype), "norm_weight is not on 16 bytes");
    check.require(row_len <= kMaxNormLen, [&, row_len = row_len] {
      return "norm_weight has " + std::to_string(row_len) + " elements; accepted: up to " + std::to_string(kMaxNormLen) +
             ". Call rms_norm first";
    });
    check.require(options.eps >= 0, [&] { return "eps is " + std::to_string(options.eps) + "; accepted: 0 or more"; });
  }

  SkinnyLinearArgs args{};
  args.x = x.data;
  args.weight = weight.data;
  args.bias = options.bias ? options.bias->data : nullptr;
  args.norm_weight = options.norm_weight ? options.norm_weight->data : nullptr;
  args.out = out.data;
  args.x_stride = x.strides[0];
  args.weight_stride = weight.strides[0];
  args.out_stride = out.strides[0];
  args.n_rows = static_cast<int>(n_rows);
  args.row_len = static_cast<int>(row_len);
  args.n_out = static_cast<int>(n_out);
  args.eps = options.eps;
  args.adds = options.output == SkinnyOutput::kAdd;
  return args;
}

}  // namespace astrai
