// Views for tests of argument checks, which look at shapes and addresses but not at elements.
#pragma once

#include <initializer_list>

#include "astrai/tensor_view.h"

alignas(16) inline char memory[64];

inline astrai::TensorView row_major(std::initializer_list<int64_t> shape, astrai::DType dtype, void* data = memory) {
  return astrai::row_major(data, dtype, shape);
}
