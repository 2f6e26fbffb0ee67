// narrow_linear: the product of some tens to some hundreds of rows with a weight, which leaves the memory once, with what
// stands behind it in a decoder layer. As in <astrai/ops.h>: checked here, launched on the caller's stream, nothing
// allocated, nothing synchronised, capturable. bfloat16 or float16, all of one dtype. For compute capability 9.0 alone.
// Thread safe.
#pragma once

#include <cstdint>
#include <optional>

#include "astrai/skinny_linear.h"
#include "astrai/tensor_view.h"

namespace astrai {

struct NarrowLinearTensors {
  TensorView x;       // [T, K], K a multiple of 8, rows contiguous and on 16 bytes
  TensorView weight;  // [N, K], likewise; read before the kernels launched before have ended, which must not write it
  TensorView out;     // [T, N], with kSiluMul [T, N / 2]; columns a multiple of 8, rows contiguous and on 16 bytes; not x
};

// out = f(x @ weight^T + bias), bias [N], with what becomes of a product as in skinny_linear. Sums are float32 in an order
// that N and K alone decide: a row's bits do not depend on the number of rows, nor on its place among them. Throws
// std::invalid_argument naming an argument that does not fit, KernelUnavailableError on another device than 9.0.
void narrow_linear(const NarrowLinearTensors& tensors, const std::optional<TensorView>& bias, SkinnyOutput output,
                   void* stream);

// Parts that a sum over K is cut into, which run side by side and are added one after the other.
int narrow_linear_n_parts(int64_t n_products, int64_t row_len);

// ---- checked arguments, which the launcher works from ----
struct NarrowLinearArgs {
  const void *x, *weight, *bias;  // bias may be null
  void* out;
  int64_t x_stride, weight_stride, out_stride;  // elements from row to row
  int n_rows, row_len;                          // T, K
  int n_products;                               // N
  int n_out;                                    // columns of out
  int n_parts;                                  // see narrow_linear_n_parts
  bool is_gated, adds;
};
// Checks all but the device.
NarrowLinearArgs check_narrow_linear(const NarrowLinearTensors& tensors, const std::optional<TensorView>& bias,
                                     SkinnyOutput output);

}  // namespace astrai
