// Between a launcher's checked arguments and its instances: the DType of a C++ element type, the error for a pair that
// was not compiled, and the check that all tensors lie on one GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <initializer_list>
#include <utility>

#include "astrai/tensor_view.h"

namespace astrai {

template <typename T>
constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<__nv_bfloat16> = DType::kBFloat16;
template <>
inline constexpr DType kDTypeOf<__half> = DType::kFloat16;

// Throws KernelUnavailableError naming the pairs that this build has.
[[noreturn]] void throw_no_instance(const char* op, DType dtype, int head_dim);

// Throws std::invalid_argument unless every tensor is on the GPU of the first.
void check_on_one_gpu(const char* op, std::initializer_list<std::pair<const char*, const TensorView*>> tensors);

}  // namespace astrai
