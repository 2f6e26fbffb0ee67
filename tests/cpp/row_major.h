// Views for tests of argument checks, which look at shapes and addresses but not at elements.
#pragma once

#include <initializer_list>

#include "astrai/tensor_view.h"

alignas(16) inline char memory[64];

inline astrai::TensorView row_major(std::initializer_list<int64_t> shape, astrai::DType dtype, void* data = memory) {
  astrai::TensorView t;
  t.data = data;
  t.dtype = dtype;
  t.ndim = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.shape[i] = shape.begin()[i];
    t.strides[i] = stride;
    stride *= t.shape[i];
  }
  return t;
}
