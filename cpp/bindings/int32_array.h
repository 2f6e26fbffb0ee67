// _C.Int32Array, an int32 vector that Python can hold and see as a buffer, and the argument type that takes one in place.
// It exists so that ids are converted once and pages travel between Allocator and RadixCache without Python integers.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "astrai/int32_span.h"
#include "int_array.h"

namespace astrai::bindings {

struct Int32Array {
  std::vector<int32_t> values;
};

// An Int32Array, a list of integers or a one-dimensional int32/int64 buffer; valid for the call.
// Dense buffers go past pybind11's buffer_info: an admission or a lookup reads thousands of ids.
class Int32Argument {
 public:
  Int32Argument() = default;
  Int32Argument(const Int32Argument&) = delete;
  Int32Argument& operator=(const Int32Argument&) = delete;
  ~Int32Argument() { PyBuffer_Release(&view_); }  // does nothing when no buffer was taken

  bool load(pybind11::handle source) {
    if (pybind11::isinstance<Int32Array>(source)) {
      const auto& values = pybind11::cast<const Int32Array&>(source).values;
      span_ = {values.data(), static_cast<int64_t>(values.size())};
      return true;
    }
    if (PyObject_CheckBuffer(source.ptr()) && load_dense(source)) return true;
    if (!any_.load(source)) return false;
    span_ = {any_.data(), static_cast<int64_t>(any_.size())};
    return true;
  }
  Int32Span span() const { return span_; }
  // The values as a vector of their own; the argument is used up.
  std::vector<int32_t> take() {
    if (!narrowed_.empty()) return std::move(narrowed_);
    return std::vector<int32_t>(span_.begin(), span_.end());
  }

 private:
  // False for anything but a contiguous buffer of int32, or of int64 within [0, 2^31): IntArray reads or refuses the rest.
  bool load_dense(pybind11::handle source) {
    if (PyObject_GetBuffer(source.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      return false;
    }
    const bool is_integer = view_.format != nullptr && std::strlen(view_.format) == 1 &&
                            std::strchr("ilq", view_.format[0]) != nullptr;
    if (view_.ndim != 1 || !is_integer) return false;
    span_ = {static_cast<const int32_t*>(view_.buf), view_.shape[0]};
    return view_.itemsize == 4 || (view_.itemsize == 8 && narrow(static_cast<const int64_t*>(view_.buf)));
  }

  // One pass without branches, so that the compiler makes vector code of it.
  bool narrow(const int64_t* wide) {
    narrowed_.resize(static_cast<size_t>(span_.size));
    int32_t* out = narrowed_.data();
    uint64_t lost = 0;
    for (int64_t i = 0; i < span_.size; ++i) {
      out[i] = static_cast<int32_t>(wide[i]);
      lost |= static_cast<uint64_t>(wide[i]) >> 31;
    }
    span_.values = out;
    return lost == 0;
  }

  Int32Span span_;
  Py_buffer view_{};
  std::vector<int32_t> narrowed_;
  IntArray<int32_t> any_;
};

}  // namespace astrai::bindings

namespace pybind11::detail {

// Not copied or moved, since it may hold a Py_buffer: functions take it by reference, and the caster keeps it for the call.
template <>
struct type_caster<astrai::bindings::Int32Argument> {
  static constexpr auto name = const_name("Int32Array | list[int] | buffer");
  template <class T>
  using cast_op_type = astrai::bindings::Int32Argument&;

  bool load(handle source, bool) { return value.load(source); }
  operator astrai::bindings::Int32Argument&() { return value; }  // NOLINT: pybind11 converts implicitly

 private:
  astrai::bindings::Int32Argument value;
};

}  // namespace pybind11::detail
