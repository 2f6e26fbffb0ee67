// Checks that several GPU operations share.
#pragma once

#include <initializer_list>
#include <string>

#include "astrai/error.h"
#include "astrai/tensor_view.h"

namespace astrai {

constexpr int64_t kVectorBytes = 16;

// Every row that these strides (in elements) lead to starts on a vector.
inline bool starts_on_vector(const void* data, std::initializer_list<int64_t> strides, DType dtype) {
  bool aligned = reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
  for (int64_t stride : strides) aligned = aligned && stride * static_cast<int64_t>(dtype_size(dtype)) % kVectorBytes == 0;
  return aligned;
}

// A dtype without a kernel is not a bad argument: another backend can serve it.
inline void require_half_precision(const char* op, const char* arg, const TensorView& t) {
  if (t.dtype == DType::kBFloat16 || t.dtype == DType::kFloat16) return;
  throw KernelUnavailableError(std::string(op) + ": " + arg + " is " + dtype_name(t.dtype) +
                               "; there are kernels for bfloat16 and float16");
}

// No two rows of t share memory by a stride of 0.
inline bool has_own_rows(const TensorView& t) {
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] > 1 && t.strides[i] == 0) return false;
  }
  return true;
}

inline bool is_same_memory(const TensorView& a, const TensorView& b) {
  bool same = a.data == b.data;
  for (int i = 0; i < a.ndim; ++i) same = same && (a.shape[i] <= 1 || a.strides[i] == b.strides[i]);
  return same;
}

}  // namespace astrai
