// Packed rows of GGUF files to float32, bfloat16 or float16: the block formats that open models are published in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "astrai/tensor_view.h"

namespace astrai {

class ThreadPool;

// A block format: n_values consecutive values of a row lie in n_bytes bytes.
struct BlockFormat {
  const char* name;  // as ggml spells it: "Q4_K"
  int n_values;
  int n_bytes;
};

// F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL and IQ4_XS.
const std::vector<BlockFormat>& block_formats();

// Writes the values of packed rows into out, rounded once from float32 to out's dtype, to nearest, ties to even.
//   packed     [N, B] uint8, B a multiple of the format's n_bytes; any alignment
//   format     name of one of block_formats()
//   out        [N, B / n_bytes * n_values] float32, bfloat16 or float16; overwritten, must not overlap packed
//   row_index  [N] int64, each row once: row r of packed goes to row row_index[r] of out. Without it, to row r
// All contiguous, on the CPU. Where out is float32 each value has the bits that ggml's dequantize_row_* gives it, NaN
// apart; the number of threads changes nothing.
// Throws std::invalid_argument naming the argument when a name, shape, dtype, device or index is not as above.
void dequantize(const TensorView& packed, const std::string& format, const TensorView& out,
                const std::optional<TensorView>& row_index, ThreadPool& pool);

}  // namespace astrai
