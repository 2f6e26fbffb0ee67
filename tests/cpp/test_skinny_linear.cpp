// skinny_linear's argument checks; tests/python/ops/test_skinny_linear.py runs the kernel.
#include <doctest/doctest.h>

#include <limits>
#include <stdexcept>

#include "astrai/skinny_linear.h"
#include "row_major.h"

using astrai::DType;
using astrai::TensorView;

TEST_CASE("skinny_linear: rows that no shared memory holds have no place, however long") {
  CHECK(astrai::skinny_linear_max_rows(8) == 16);
  CHECK(astrai::skinny_linear_max_rows(16384) == 2);
  CHECK(astrai::skinny_linear_max_rows(44896) == 1);
  for (const int64_t row_len : {int64_t{-8}, int64_t{0}, int64_t{44897}, std::numeric_limits<int64_t>::max() - 99,
                                std::numeric_limits<int64_t>::max() - 159}) {
    CHECK(astrai::skinny_linear_max_rows(row_len) == 0);
  }
}

TEST_CASE("skinny_linear: a row that is normed has no more sums of squares than the kernel holds") {
  alignas(16) char elsewhere[16];
  const auto check = [&](int64_t row_len, bool has_norm) {
    const TensorView x_view = row_major({1, row_len}, DType::kBFloat16);
    const TensorView weight_view = row_major({8, row_len}, DType::kBFloat16);
    astrai::SkinnyLinearOptions options;
    if (has_norm) options.norm_weight = row_major({row_len}, DType::kBFloat16);
    astrai::check_skinny_linear({x_view, weight_view, row_major({1, 8}, DType::kBFloat16, elsewhere)}, options);
  };
  CHECK_NOTHROW(check(16384, true));
  CHECK_NOTHROW(check(16392, false));
  CHECK_THROWS_AS(check(16392, true), std::invalid_argument);
}
