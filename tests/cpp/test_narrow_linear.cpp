#include <doctest/doctest.h>

#include <stdexcept>

#include "astrai/narrow_linear.h"
#include "row_major.h"

using astrai::DType;
using astrai::TensorView;

TEST_CASE("narrow_linear: few rows of weights are summed in parts, as long as a part is worth it") {
  CHECK(astrai::narrow_linear_n_parts(28672, 4096) == 1);
  CHECK(astrai::narrow_linear_n_parts(8192, 1 << 20) == 1);
  CHECK(astrai::narrow_linear_n_parts(6144, 4096) == 2);
  CHECK(astrai::narrow_linear_n_parts(4096, 14336) == 2);
  CHECK(astrai::narrow_linear_n_parts(1024, 3072) == 4);
  CHECK(astrai::narrow_linear_n_parts(16, 1 << 20) == 4);
  CHECK(astrai::narrow_linear_n_parts(1024, 512) == 2);
  CHECK(astrai::narrow_linear_n_parts(1024, 448) == 1);
}

TEST_CASE("narrow_linear: sizes that the kernel's 32 bits or its grid cannot hold are refused") {
  alignas(16) char elsewhere[16];
  const auto check = [&](int64_t n_rows, int64_t row_len) {
    const TensorView x_view = row_major({n_rows, row_len}, DType::kBFloat16);
    const TensorView weight_view = row_major({8, row_len}, DType::kBFloat16);
    const TensorView out_view = row_major({n_rows, 8}, DType::kBFloat16, elsewhere);
    astrai::check_narrow_linear({x_view, weight_view, out_view}, std::nullopt, astrai::SkinnyOutput::kStore);
  };
  CHECK_NOTHROW(check(65535 * 128, 64));
  CHECK_THROWS_AS(check(65535 * 128 + 1, 64), std::invalid_argument);
  CHECK_NOTHROW(check(1, int64_t{1} << 29));
  CHECK_THROWS_AS(check(1, int64_t{1} << 31), std::invalid_argument);
}

TEST_CASE("narrow_linear: one row that stands for many is refused") {
  alignas(16) char elsewhere[16];
  TensorView x_view = row_major({17, 64}, DType::kBFloat16);
  const TensorView weight_view = row_major({8, 64}, DType::kBFloat16);
  const TensorView out_view = row_major({17, 8}, DType::kBFloat16, elsewhere);
  x_view.strides[0] = 0;
  CHECK_THROWS_AS(
      astrai::check_narrow_linear({x_view, weight_view, out_view}, std::nullopt, astrai::SkinnyOutput::kStore),
      std::invalid_argument);
}

TEST_CASE("narrow_linear: checked arguments have the sizes and what becomes of the product") {
  alignas(16) char elsewhere[16];
  const TensorView x_view = row_major({3, 64}, DType::kBFloat16), weight_view = row_major({32, 64}, DType::kBFloat16);
  const TensorView out_view = row_major({3, 16}, DType::kBFloat16, elsewhere);
  const TensorView bias_view = row_major({32}, DType::kBFloat16);
  const astrai::NarrowLinearArgs args =
      astrai::check_narrow_linear({x_view, weight_view, out_view}, bias_view, astrai::SkinnyOutput::kSiluMul);
  CHECK(args.n_rows == 3);
  CHECK(args.row_len == 64);
  CHECK(args.n_products == 32);
  CHECK(args.n_out == 16);
  CHECK(args.n_parts == 1);
  CHECK(args.is_gated);
  CHECK_FALSE(args.adds);
  CHECK_THROWS_AS(astrai::check_narrow_linear({x_view, weight_view, out_view}, bias_view, astrai::SkinnyOutput::kStore),
                  std::invalid_argument);
}
