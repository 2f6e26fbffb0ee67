// A borrowed run of int32 values: token ids, page indices or table entries. It owns nothing and must not outlive its source.
#pragma once

#include <cstdint>
#include <vector>

namespace astrai {

struct Int32Span {
  const int32_t* values = nullptr;  // [size]
  int64_t size = 0;

  const int32_t* begin() const { return values; }
  const int32_t* end() const { return values + size; }
  int32_t operator[](int64_t i) const { return values[i]; }
  // Elements from `first` on. Precondition: 0 <= first <= size.
  Int32Span from(int64_t first) const { return {values + first, size - first}; }
  // The first n elements. Precondition: 0 <= n <= size.
  Int32Span head(int64_t n) const { return {values, n}; }
};

// All of a vector; valid as long as the vector is alive and unchanged.
inline Int32Span span_of(const std::vector<int32_t>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

}  // namespace astrai
