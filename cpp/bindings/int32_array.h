// _C.Int32Array, an int32 vector that Python can hold and see as a buffer, and the argument type that takes one in place.
// It exists so that ids are converted once and pages travel between Allocator and RadixCache without Python integers.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "astrai/int32_span.h"
#include "int_array.h"

namespace astrai::bindings {

struct Int32Array {
  std::vector<int32_t> values;
};

// An Int32Array, a list of integers or a one-dimensional int32/int64 buffer; valid for the call.
class Int32Argument {
 public:
  bool load(pybind11::handle source) {
    if (pybind11::isinstance<Int32Array>(source)) {
      const auto& values = pybind11::cast<const Int32Array&>(source).values;
      span_ = {values.data(), static_cast<int64_t>(values.size())};
      return true;
    }
    if (!converted_.load(source)) return false;
    span_ = {converted_.data(), static_cast<int64_t>(converted_.size())};
    return true;
  }
  Int32Span span() const { return span_; }

 private:
  Int32Span span_;
  IntArray<int32_t> converted_;
};

}  // namespace astrai::bindings

namespace pybind11::detail {

template <>
struct type_caster<astrai::bindings::Int32Argument> {
  PYBIND11_TYPE_CASTER(astrai::bindings::Int32Argument, const_name("Int32Array | list[int] | buffer"));
  bool load(handle source, bool) { return value.load(source); }
};

}  // namespace pybind11::detail
