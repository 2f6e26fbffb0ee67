// What the products of rows with a weight have in common: x [T, K], weight [N, K] and out [T, N], or [T, N / 2] where the
// weight's rows are gates and then ups.
#pragma once

#include <string>

#include "astrai/shape_check.h"
#include "astrai/tensor_view.h"
#include "op_checks.h"

namespace astrai {

struct LinearSizes {
  int64_t n_rows, row_len, n_products, n_out;  // T, K, N, columns of out
};

// Checks what any such product needs, but out's alignment, and binds T, K and N.
inline LinearSizes check_linear(ShapeCheck& check, const char* op, const TensorView& x, const TensorView& weight,
                                const TensorView& out, bool is_gated) {
  check.shape("x", x, {"T", "K"}).shape("weight", weight, {"N", "K"});
  require_half_precision(op, "x", x);
  LinearSizes sizes{check.size("T"), check.size("K"), check.size("N"), check.size("N")};
  check.require(!is_gated || sizes.n_products % 2 == 0, [&] {
    return "weight has " + std::to_string(sizes.n_products) + " rows; gates and ups are as many each";
  });
  if (is_gated) sizes.n_out /= 2;
  check.shape("out", out, {"T", sizes.n_out});
  check.dtype("weight", weight, {x.dtype}).dtype("out", out, {x.dtype});
  check.contiguous_from(1, "x", x).contiguous_from(1, "weight", weight).contiguous_from(1, "out", out);
  check.writable("out", out);
  check.require(has_own_rows(out), "out has a stride of 0; each row needs memory of its own");
  check.require(out.data == nullptr || out.data != x.data, "out is x; every block reads all of x");
  check.require(sizes.row_len % 8 == 0 && sizes.row_len > 0, [&] {
    return "x has rows of " + std::to_string(sizes.row_len) + " elements; accepted: multiples of 8";
  });
  check.require(starts_on_vector(x.data, {sizes.n_rows > 1 ? x.stride(0) : 0}, x.dtype),
                "x has rows that are not on 16 bytes");
  check.require(starts_on_vector(weight.data, {sizes.n_products > 1 ? weight.stride(0) : 0}, weight.dtype),
                "weight has rows that are not on 16 bytes");
  return sizes;
}

}  // namespace astrai
