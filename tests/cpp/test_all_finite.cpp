#include "astrai/all_finite.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "astrai/thread_pool.h"
#include "half.h"

using namespace astrai;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_one_finite(uint16_t bits, DType dtype) {
  ThreadPool pool(1);
  return all_finite(row_major(&bits, dtype, {1}), pool);
}

}  // namespace

TEST_CASE("all_finite tells every 16-bit pattern as float32 tells its value") {
  for (uint32_t word = 0; word < 0x10000; ++word) {
    const auto bits = static_cast<uint16_t>(word);
    const bool is_bf16_finite = (word & 0x7f80u) != 0x7f80u;
    CHECK(is_one_finite(bits, DType::kFloat16) == std::isfinite(float_from_half(bits)));
    CHECK(is_one_finite(bits, DType::kBFloat16) == is_bf16_finite);
  }
}

TEST_CASE("all_finite sees one bad float32 at any place, on any number of threads") {
  constexpr int64_t n = 600'007;  // several chunks
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads);
    std::vector<float> values(n, std::numeric_limits<float>::max());
    const TensorView view = row_major(values.data(), DType::kFloat32, {n});
    values[5] = -std::numeric_limits<float>::max();
    values[6] = std::numeric_limits<float>::denorm_min();
    CHECK(all_finite(view, pool));
    for (const int64_t place : {int64_t{0}, int64_t{17}, int64_t{300'003}, int64_t{300'004}, n - 1}) {
      for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
        float& value = values[static_cast<size_t>(place)];
        const float good = value;
        value = bad;
        CHECK_FALSE(all_finite(view, pool));
        value = good;
      }
    }
    CHECK(all_finite(view, pool));
  }
}

TEST_CASE("all_finite looks at the values of a strided tensor and not between them") {
  ThreadPool pool(2);
  std::vector<float> memory(3 * 5 * 8, kNan);
  TensorView view = row_major(memory.data(), DType::kFloat32, {3, 5, 4});
  view.strides[0] = 40;
  view.strides[1] = 8;
  TensorView turned = view;  // the same values, the last dimension with gaps
  std::swap(turned.shape[0], turned.shape[2]);
  std::swap(turned.strides[0], turned.strides[2]);
  const auto at = [&](int i, int j, int k) -> float& { return memory[static_cast<size_t>(40 * i + 8 * j + k)]; };
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 5; ++j) {
      for (int k = 0; k < 4; ++k) at(i, j, k) = 1.0f;
    }
  }
  CHECK(all_finite(view, pool));
  CHECK(all_finite(turned, pool));
  for (int place = 0; place < 60; ++place) {
    float& value = at(place / 20, place / 4 % 5, place % 4);
    value = kInfinity;
    CHECK_FALSE(all_finite(view, pool));
    CHECK_FALSE(all_finite(turned, pool));
    value = 1.0f;
  }
}

TEST_CASE("all_finite: no values are finite, a scalar is one value, other dtypes are refused") {
  ThreadPool pool(1);
  float value = kNan;
  CHECK(all_finite(row_major(&value, DType::kFloat32, {0, 4}), pool));
  CHECK(all_finite(row_major(nullptr, DType::kBFloat16, {4, 0}), pool));
  CHECK_FALSE(all_finite(row_major(&value, DType::kFloat32, {}), pool));
  CHECK_THROWS_AS(all_finite(row_major(&value, DType::kInt32, {1}), pool), std::invalid_argument);
  CHECK_THROWS_AS(all_finite(row_major(&value, DType::kFloat32, {1}, kCuda), pool), std::invalid_argument);
}
