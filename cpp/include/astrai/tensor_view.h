// TensorView: where a tensor's elements lie, without owning them. Whoever makes a view keeps the memory alive while the
// view is used; the bindings make one per argument and drop it when the call returns.
#pragma once

#include <cstdint>

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

}  // namespace astrai
