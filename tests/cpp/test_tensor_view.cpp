#include <doctest/doctest.h>

#include <string>

#include "astrai/tensor_view.h"

using astrai::DType;
using astrai::TensorView;

namespace {

TensorView strided(std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides) {
  TensorView t;
  t.ndim = static_cast<int>(shape.size());
  for (int i = 0; i < t.ndim; ++i) {
    t.shape[i] = shape.begin()[i];
    t.strides[i] = strides.begin()[i];
  }
  return t;
}

}  // namespace

TEST_CASE("a row-major tensor is contiguous and a transposed one is not") {
  CHECK(strided({2, 3, 4}, {12, 4, 1}).is_contiguous());
  CHECK_FALSE(strided({4, 3}, {1, 4}).is_contiguous());
  CHECK_FALSE(strided({2, 3, 4}, {24, 4, 1}).is_contiguous());
}

TEST_CASE("contiguity can be asked for the last dimensions alone") {
  const TensorView sliced = strided({2, 3, 4}, {24, 4, 1});
  CHECK(sliced.is_contiguous_from(1));
  CHECK(sliced.is_contiguous_from(2));
  CHECK_FALSE(strided({2, 3, 4}, {24, 8, 2}).is_contiguous_from(2));
}

TEST_CASE("strides of dimensions of size one and of empty tensors do not matter") {
  CHECK(strided({1, 4}, {99, 1}).is_contiguous());
  CHECK(strided({3, 1}, {1, 99}).is_contiguous());
  CHECK(strided({0, 4}, {7, 7}).is_contiguous());
}

TEST_CASE("numel multiplies the sizes and is one for a scalar") {
  CHECK(strided({2, 3, 4}, {12, 4, 1}).numel() == 24);
  CHECK(strided({}, {}).numel() == 1);
  CHECK(strided({5, 0}, {0, 1}).numel() == 0);
}

TEST_CASE("element sizes and names agree with torch") {
  CHECK(astrai::dtype_size(DType::kBFloat16) == 2);
  CHECK(astrai::dtype_size(DType::kInt64) == 8);
  CHECK(std::string(astrai::dtype_name(DType::kBFloat16)) == "bfloat16");
}
