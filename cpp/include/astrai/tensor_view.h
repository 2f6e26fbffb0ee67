// TensorView: where a tensor's elements lie, without owning them. Whoever makes a view keeps the memory alive while the
// view is used; the bindings make one per argument and drop it when the call returns.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "astrai/dtype.h"

namespace astrai {

enum DeviceType : int { kCpu = 1, kCuda = 2 };  // the numbers DLPack gives them

constexpr int kMaxDims = 8;

struct TensorView {
  void* data = nullptr;           // first element; may be null when a size is 0
  int device_type = kCpu;         // DeviceType
  int device_idx = 0;             // which GPU; 0 on the CPU
  DType dtype = DType::kFloat32;
  int ndim = 0;                   // 0..kMaxDims
  int64_t shape[kMaxDims] = {};   // [ndim] sizes
  int64_t strides[kMaxDims] = {}; // [ndim] steps in elements, 0 or negative allowed
  bool is_readonly = false;       // true for a buffer that its owner exports as constant

  int64_t size(int dim) const { return shape[dim]; }
  int64_t stride(int dim) const { return strides[dim]; }

  // Product of the sizes; 1 for a scalar.
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }

  // Row-major without gaps. Strides of dimensions of size 1 do not matter, and an empty tensor is contiguous.
  bool is_contiguous() const { return is_contiguous_from(0); }

  // The same for the dimensions first_dim..ndim-1 alone: is_contiguous_from(ndim - 1) asks for unit stride in the last.
  bool is_contiguous_from(int first_dim) const {
    bool has_gap = false;
    int64_t expected = 1;
    for (int i = ndim - 1; i >= first_dim; --i) {
      has_gap = has_gap || (shape[i] != 1 && strides[i] != expected);
      expected *= shape[i];
    }
    return !has_gap || expected == 0;
  }

  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data);
  }
};

// A row-major tensor without gaps over memory that the caller owns: GPU memory when device_type is kCuda. Throws
// std::invalid_argument for more than kMaxDims sizes or a negative one.
inline TensorView row_major(void* data, DType dtype, std::initializer_list<int64_t> shape, int device_type = kCpu,
                            int device_idx = 0) {
  if (shape.size() > kMaxDims) throw std::invalid_argument("row_major: a shape of more than 8 sizes");
  TensorView t;
  t.data = data;
  t.device_type = device_type;
  t.device_idx = device_idx;
  t.dtype = dtype;
  t.ndim = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.shape[i] = shape.begin()[i];
    if (t.shape[i] < 0) throw std::invalid_argument("row_major: a negative size");
    t.strides[i] = stride;
    stride *= t.shape[i];
  }
  return t;
}

}  // namespace astrai
