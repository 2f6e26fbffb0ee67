// skinny_linear: the product of few rows with a large weight, which is read once at the rate of the memory, with what stands
// before and behind it in a decoder layer. As in <astrai/ops.h>: checked here, launched on the caller's stream, nothing
// allocated, nothing synchronised, capturable. bfloat16 or float16, all of one dtype. Thread safe.
#pragma once

#include <cstdint>
#include <optional>

#include "astrai/tensor_view.h"

namespace astrai {

// What becomes of a product, which is rounded to the dtype first.
enum class SkinnyOutput {
  kStore,    // out = product
  kAdd,      // out += product, rounded
  kSiluMul,  // out = silu(gate) * up, where the product's row is gates and then ups
};

struct SkinnyLinearTensors {
  TensorView x;       // [T, K], K a multiple of 8, rows contiguous and on 16 bytes, T up to skinny_linear_max_rows(K)
  TensorView weight;  // [N, K], likewise; read before the kernels launched before have ended, which must not write it
  TensorView out;     // [T, N], with kSiluMul [T, N / 2]; rows contiguous; not x
};

struct SkinnyLinearOptions {
  std::optional<TensorView> bias;         // [N]
  std::optional<TensorView> norm_weight;  // [K], K up to 16384: rms_norm(x) takes the place of x, bit for bit that of
                                          // <astrai/fused_ops.h>
  float eps = 0;                          // of the norm
  SkinnyOutput output = SkinnyOutput::kStore;
};

// out = f(x @ weight^T + bias). Sums are float32 in an order that K alone decides: a row's result does not depend on the
// number of rows. Throws std::invalid_argument naming an argument that does not fit.
void skinny_linear(const SkinnyLinearTensors& tensors, const SkinnyLinearOptions& options, void* stream);

// Rows that a block's shared memory holds on every supported card; 0 when there are none.
int skinny_linear_max_rows(int64_t row_len);

// ---- checked arguments, which the launcher works from ----
struct SkinnyLinearArgs {
  const void *x, *weight, *bias, *norm_weight;  // bias and norm_weight may be null
  void* out;
  int64_t x_stride, weight_stride, out_stride;  // elements from row to row
  int n_rows, row_len;                          // T, K
  int n_out;                                    // columns of out
  float eps;
  bool adds;
};
// Checks all but the device.
SkinnyLinearArgs check_skinny_linear(const SkinnyLinearTensors& tensors, const SkinnyLinearOptions& options);

}  // namespace astrai
