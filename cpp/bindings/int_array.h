// Argument type for "a list of integers or a one-dimensional int32/int64 buffer" (numpy array, array.array, memoryview).
// A buffer of the right width is read in place; anything else is converted once. A view must not outlive its call.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace astrai::bindings {

// Whether a buffer holds signed integers of n_bytes each in the machine's order. Producers write the same type as "i", "<i"
// (ctypes) or, for 64 bits, "l" and "q"; pybind11's own comparison takes one spelling.
inline bool holds_integers(const pybind11::buffer_info& view, pybind11::ssize_t n_bytes) {
  const std::string& format = view.format;
  const std::size_t prefix = !format.empty() && (format[0] == '<' || format[0] == '=' || format[0] == '@') ? 1 : 0;
  return view.itemsize == n_bytes && format.size() == prefix + 1 &&
         std::string("ilq").find(format[prefix]) != std::string::npos;
}

// T is std::int32_t or std::int64_t.
template <class T>
class IntArray {
 public:
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }

  // False when `source` is neither a sequence nor a buffer. Throws ValueError for integers that do not fit T and
  // TypeError for elements that are no integers.
  bool load(pybind11::handle source) {
    if (PyList_Check(source.ptr()) || PyTuple_Check(source.ptr())) {
      read_sequence(source);
      return true;
    }
    if (!PyObject_CheckBuffer(source.ptr())) return false;
    read_buffer(pybind11::reinterpret_borrow<pybind11::buffer>(source));
    return true;
  }

 private:
  static T narrowed(std::int64_t value) {
    if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
      throw pybind11::value_error("integer " + std::to_string(value) + " does not fit " +
                                  std::to_string(8 * sizeof(T)) + " bits");
    }
    return static_cast<T>(value);
  }

  void read_sequence(pybind11::handle source) {
    const auto n = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(source.ptr()));
    owned_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (i >= static_cast<std::size_t>(PySequence_Fast_GET_SIZE(source.ptr()))) {  // an __index__() changed the list
        throw pybind11::value_error("the list changed while it was read");
      }
      PyObject* item = PySequence_Fast_GET_ITEM(source.ptr(), static_cast<Py_ssize_t>(i));
      pybind11::object held;  // what the list may drop while its __index__() runs
      if (!PyLong_CheckExact(item)) held = pybind11::reinterpret_borrow<pybind11::object>(item);
      int overflow = 0;
      const long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
      if (overflow != 0) throw pybind11::value_error("integer does not fit 64 bits");
      if (value == -1 && PyErr_Occurred()) throw pybind11::error_already_set();
      owned_[i] = narrowed(value);
    }
    data_ = owned_.data();
    size_ = n;
  }

  void read_buffer(const pybind11::buffer& source) {
    view_ = source.request();
    const bool is_32 = holds_integers(view_, 4);
    const bool is_64 = holds_integers(view_, 8);
    if (view_.ndim != 1 || !(is_32 || is_64)) {
      throw pybind11::type_error("got a buffer of format '" + view_.format + "' with " + std::to_string(view_.ndim) +
                                 " dimensions; one dimension of int32 or int64 is accepted");
    }
    size_ = static_cast<std::size_t>(view_.shape[0]);
    const bool is_dense = view_.strides[0] == view_.itemsize || size_ < 2;
    if (is_dense && static_cast<std::size_t>(view_.itemsize) == sizeof(T)) {
      data_ = static_cast<const T*>(view_.ptr);
      return;
    }
    owned_.resize(size_);
    const char* item = static_cast<const char*>(view_.ptr);
    for (std::size_t i = 0; i < size_; ++i, item += view_.strides[0]) {
      owned_[i] = is_32 ? narrowed(*reinterpret_cast<const std::int32_t*>(item))
                        : narrowed(*reinterpret_cast<const std::int64_t*>(item));
    }
    data_ = owned_.data();
  }

  const T* data_ = nullptr;
  std::size_t size_ = 0;
  std::vector<T> owned_;
  pybind11::buffer_info view_;
};

}  // namespace astrai::bindings

namespace pybind11::detail {

template <class T>
struct type_caster<astrai::bindings::IntArray<T>> {
  PYBIND11_TYPE_CASTER(astrai::bindings::IntArray<T>, const_name("list[int] | buffer"));
  bool load(handle source, bool) { return value.load(source); }
};

}  // namespace pybind11::detail
