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

TEST_CASE("row_major describes memory without gaps") {
  float memory[6];
  const TensorView t = astrai::row_major(memory, DType::kFloat32, {1, 2, 3});
  CHECK(t.data == memory);
  CHECK(t.device_type == astrai::kCpu);
  CHECK(t.numel() == 6);
  CHECK(t.stride(0) == 6);
  CHECK(t.stride(1) == 3);
  CHECK(t.stride(2) == 1);
  CHECK(t.is_contiguous());
  CHECK(astrai::row_major(nullptr, DType::kInt32, {0, 4}, astrai::kCuda, 1).device_idx == 1);
  CHECK_THROWS_AS(astrai::row_major(memory, DType::kFloat32, {2, -1}), std::invalid_argument);
  CHECK_THROWS_AS(astrai::row_major(memory, DType::kFloat32, {1, 1, 1, 1, 1, 1, 1, 1, 1}), std::invalid_argument);
}
