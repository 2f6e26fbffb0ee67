// Are the values of a tensor finite? For checkpoints, which are input: one NaN in a weight spoils every answer.
#pragma once

#include "astrai/tensor_view.h"

namespace astrai {

class ThreadPool;

// Whether no value is NaN or infinite; true for no values. Reads each once and allocates nothing.
//   values  float32, bfloat16 or float16 of any shape and strides, on the CPU
// Thread safe: calls from several threads take turns at the pool.
// Throws std::invalid_argument for another dtype or device.
bool all_finite(const TensorView& values, ThreadPool& pool);

}  // namespace astrai
