// Layouts by hand, rounding, and what is refused. Every format against the gguf package, on random blocks:
// tests/python/ops/test_dequantize.py.
#include "astrai/dequantize.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "astrai/thread_pool.h"
#include "half.h"

using namespace astrai;

namespace {

TensorView view(void* memory, DType dtype, std::vector<int64_t> shape) {
  TensorView v;
  v.data = memory;
  v.dtype = dtype;
  v.ndim = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    v.shape[i] = shape[i];
    v.strides[i] = stride;
  }
  return v;
}

// One row of one format as float32.
std::vector<float> decoded(std::vector<uint8_t> packed, const std::string& format, int64_t n_values) {
  ThreadPool pool(1);
  std::vector<float> out(static_cast<size_t>(n_values), -1.0f);
  dequantize(view(packed.data(), DType::kUInt8, {1, static_cast<int64_t>(packed.size())}), format,
             view(out.data(), DType::kFloat32, {1, n_values}), std::nullopt, pool);
  return out;
}

constexpr uint8_t kHalfOne[] = {0x00, 0x3c};  // 1.0, little endian

}  // namespace

TEST_CASE("every half but NaN survives the way to float32 and back, and the value is right") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = float_from_half(half);
    const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
    if (exponent == 31 && fraction != 0) {
      CHECK(std::isnan(value));
      CHECK((half_from_float(value) & 0x7fff) > 0x7c00);
      continue;
    }
    const double magnitude = exponent == 31  ? std::numeric_limits<double>::infinity()
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, exponent - 25);
    CHECK(static_cast<double>(std::abs(value)) == magnitude);
    CHECK(std::signbit(value) == (bits >> 15 != 0));
    CHECK(half_from_float(value) == half);
  }
}

TEST_CASE("half_from_float rounds to the nearest half, ties to even") {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {  // neighbours up to the largest finite one
    const float below = float_from_half(static_cast<uint16_t>(bits));
    const float above = float_from_half(static_cast<uint16_t>(bits + 1));
    const float middle = (below + above) / 2;  // exact: a float32 has 13 bits more
    CHECK(half_from_float(middle) == (bits % 2 == 0 ? bits : bits + 1));
    CHECK(half_from_float(std::nextafter(middle, below)) == bits);
    CHECK(half_from_float(std::nextafter(middle, above)) == bits + 1);
  }
  CHECK(half_from_float(65519.99f) == 0x7bff);
  CHECK(half_from_float(65520.0f) == 0x7c00);
  CHECK(half_from_float(-1e30f) == 0xfc00);
  CHECK(half_from_float(-1e-30f) == 0x8000);
}

TEST_CASE("Q4_0 holds the first half of a block in low nibbles, less eight") {
  std::vector<uint8_t> block(kHalfOne, kHalfOne + 2);
  for (int i = 0; i < 16; ++i) block.push_back(static_cast<uint8_t>(i | (15 - i) << 4));
  const std::vector<float> values = decoded(block, "Q4_0", 32);
  for (int i = 0; i < 16; ++i) {
    CHECK(values[static_cast<size_t>(i)] == static_cast<float>(i - 8));
    CHECK(values[static_cast<size_t>(i + 16)] == static_cast<float>(7 - i));
  }
}

TEST_CASE("Q8_0 is a signed byte times the scale") {
  std::vector<uint8_t> block = {0x00, 0x38};  // 0.5
  for (int i = 0; i < 32; ++i) block.push_back(static_cast<uint8_t>(i * 8));
  const std::vector<float> values = decoded(block, "Q8_0", 32);
  for (int i = 0; i < 32; ++i) {
    CHECK(values[static_cast<size_t>(i)] == static_cast<float>(i < 16 ? i * 8 : i * 8 - 256) * 0.5f);
  }
}

TEST_CASE("numbers that are not packed come out as they are, in rows of any length") {
  for (const int64_t n_values : {1, 63, 64, 65, 129}) {
    std::vector<uint16_t> bits(static_cast<size_t>(n_values));
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(0x3c00 + i);
    std::vector<uint16_t> same(bits.size());
    ThreadPool pool(1);
    dequantize(view(bits.data(), DType::kUInt8, {1, 2 * n_values}), "F16",
               view(same.data(), DType::kFloat16, {1, n_values}), std::nullopt, pool);
    CHECK(same == bits);
    dequantize(view(bits.data(), DType::kUInt8, {1, 2 * n_values}), "BF16",
               view(same.data(), DType::kBFloat16, {1, n_values}), std::nullopt, pool);
    CHECK(same == bits);
  }
}

TEST_CASE("rows go where row_index says, and nowhere else, on any number of threads") {
  constexpr int64_t n_rows = 301, row_len = 640;
  std::vector<uint8_t> packed;
  for (int64_t row = 0; row < n_rows; ++row) {
    for (int64_t block = 0; block < row_len / 32; ++block) {
      packed.insert(packed.end(), kHalfOne, kHalfOne + 2);
      packed.insert(packed.end(), 32, static_cast<uint8_t>(row % 128));
    }
  }
  std::vector<int64_t> row_index(n_rows);
  for (int64_t row = 0; row < n_rows; ++row) row_index[static_cast<size_t>(row)] = row * 11 % n_rows;
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads);
    std::vector<float> out(static_cast<size_t>((n_rows + 2) * row_len), -5.0f);  // a row before and behind
    dequantize(view(packed.data(), DType::kUInt8, {n_rows, row_len / 32 * 34}), "Q8_0",
               view(out.data() + row_len, DType::kFloat32, {n_rows, row_len}),
               view(row_index.data(), DType::kInt64, {n_rows}), pool);
    bool is_right = true;
    for (int64_t row = -1; row <= n_rows; ++row) {
      for (int64_t i = 0; i < row_len; ++i) {
        const float value = out[static_cast<size_t>((row + 1) * row_len + i)];
        const int64_t source = row * 219 % n_rows;  // 11 * 219 is 1 modulo 301
        is_right = is_right && value == (row < 0 || row == n_rows ? -5.0f : static_cast<float>(source % 128));
      }
    }
    CHECK(is_right);
  }
}

TEST_CASE("arguments that do not fit are refused by name") {
  ThreadPool pool(1);
  std::vector<uint8_t> packed(4 * 18);
  std::vector<float> out(4 * 32);
  std::vector<int64_t> row_index = {0, 1, 1, 3};
  const TensorView rows = view(packed.data(), DType::kUInt8, {4, 18}), to = view(out.data(), DType::kFloat32, {4, 32});
  const auto refused = [&](const TensorView& from, const char* format, const TensorView& into,
                           const std::optional<TensorView>& index = std::nullopt) -> std::string {
    try {
      dequantize(from, format, into, index, pool);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refused(rows, "Q4_0", to) == "");
  CHECK(refused(rows, "Q8_K", to).find("format is 'Q8_K'; accepted are F32, F16") != std::string::npos);
  CHECK(refused(view(packed.data(), DType::kUInt8, {4, 17}), "Q4_0", to).find("rows of 17 bytes") != std::string::npos);
  CHECK(refused(rows, "Q4_0", view(out.data(), DType::kFloat32, {4, 31})).find("out") != std::string::npos);
  CHECK(refused(rows, "Q4_0", view(out.data(), DType::kInt32, {4, 32})).find("out") != std::string::npos);
  const std::string twice = refused(rows, "Q4_0", to, view(row_index.data(), DType::kInt64, {4}));
  CHECK(twice.find("row_index[2] is 1") != std::string::npos);
  row_index = {0, 1, 2, -1};
  CHECK(refused(rows, "Q4_0", to, view(row_index.data(), DType::kInt64, {4})).find("is -1") != std::string::npos);
}

TEST_CASE("no rows and no columns are nothing to do") {
  ThreadPool pool(2);
  uint8_t none = 0;
  float out = 3.0f;
  dequantize(view(&none, DType::kUInt8, {0, 34}), "Q8_0", view(&out, DType::kFloat32, {0, 32}), std::nullopt, pool);
  dequantize(view(&none, DType::kUInt8, {5, 0}), "Q8_0", view(&out, DType::kFloat32, {5, 0}), std::nullopt, pool);
  CHECK(out == 3.0f);
}
