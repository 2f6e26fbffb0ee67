#include <doctest/doctest.h>

#include <stdexcept>

#include "astrai/shape_check.h"

using astrai::DType;
using astrai::ShapeCheck;
using astrai::TensorView;

namespace {

TensorView row_major(std::initializer_list<int64_t> shape, DType dtype = DType::kFloat32) {
  return astrai::row_major(nullptr, dtype, shape);
}

}  // namespace

TEST_CASE("a named size is bound once and must agree in every later tensor") {
  ShapeCheck check("op");
  check.shape("q", row_major({2, 8, 64}), {"T", "H", "D"});
  CHECK(check.size("H") == 8);
  check.shape("k", row_major({2, 4, 64}), {"T", "H_kv", "D"});
  CHECK_THROWS_WITH_AS(check.shape("v", row_major({2, 4, 32}), {"T", "H_kv", "D"}),
                       "op: v has shape [2, 4, 32]; expected [T=2, H_kv=4, D=64]", std::invalid_argument);
}

TEST_CASE("one name twice in a shape asks for equal sizes") {
  CHECK_NOTHROW(ShapeCheck("op").shape("m", row_major({3, 3}), {"N", "N"}));
  CHECK_THROWS_AS(ShapeCheck("op").shape("m", row_major({3, 4}), {"N", "N"}), std::invalid_argument);
}

TEST_CASE("the number of dimensions is part of a shape") {
  CHECK_THROWS_WITH_AS(ShapeCheck("op").shape("x", row_major({2, 3}), {"T", "H", 2}),
                       "op: x has shape [2, 3]; expected [T, H, 2]", std::invalid_argument);
}

TEST_CASE("an error about an element type names the accepted ones") {
  CHECK_THROWS_WITH_AS(ShapeCheck("op").dtype("x", row_major({1}), {DType::kBFloat16, DType::kFloat16}),
                       "op: x is float32; accepted: bfloat16, float16", std::invalid_argument);
}

TEST_CASE("an error about a device says where the tensor is") {
  CHECK_THROWS_WITH_AS(ShapeCheck("op").device("x", row_major({1}), astrai::kCuda), "op: x is on the CPU; expected a CUDA device",
                       std::invalid_argument);
  TensorView second_gpu = row_major({1});
  second_gpu.device_type = astrai::kCuda;
  second_gpu.device_idx = 1;
  CHECK_NOTHROW(ShapeCheck("op").device("x", second_gpu, astrai::kCuda));
  CHECK_THROWS_WITH_AS(ShapeCheck("op").device("x", second_gpu, astrai::kCuda, 0), "op: x is on cuda:1; expected cuda:0",
                       std::invalid_argument);
}

TEST_CASE("a gap in memory is refused where contiguity is asked for") {
  TensorView sliced = row_major({2, 3});
  sliced.strides[0] = 6;
  CHECK_NOTHROW(ShapeCheck("op").contiguous_from(1, "x", sliced));
  CHECK_THROWS_AS(ShapeCheck("op").contiguous_from(0, "x", sliced), std::invalid_argument);
}

TEST_CASE("a read-only buffer cannot be an output") {
  TensorView constant = row_major({2});
  constant.is_readonly = true;
  CHECK_THROWS_AS(ShapeCheck("op").writable("out", constant), std::invalid_argument);
}

TEST_CASE("asking for a size that no shape has shown is a fault of the caller") {
  CHECK_THROWS_AS(ShapeCheck("op").size("T"), std::logic_error);
}

TEST_CASE("a message is made only for a condition that is false") {
  ShapeCheck check("op");
  int n_made = 0;
  const auto message = [&] {
    ++n_made;
    return std::string("it does not fit");
  };

  check.require(true, message);
  CHECK(n_made == 0);
  CHECK_THROWS_WITH_AS(check.require(false, message), "op: it does not fit", std::invalid_argument);
  CHECK(n_made == 1);
  CHECK_THROWS_WITH_AS(check.require(false, "text"), "op: text", std::invalid_argument);
}
