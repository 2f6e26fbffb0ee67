// A block is decoded to float32 on the stack (or in place) and rounded from there, so that there is one decoder for each
// format and one rounding for each dtype. Loops are plain: the compiler turns them into vectors, and writing the result
// to memory takes longer than computing it.
#include "astrai/dequantize.h"

#include <algorithm>
#include <cstring>

#include "astrai/shape_check.h"
#include "astrai/thread_pool.h"
#include "gguf_blocks.h"

namespace astrai {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

void round_into(const float* values, int n, Half* out) {
  for (int i = 0; i < n; ++i) out[i].bits = half_from_float(values[i]);
}

void round_into(const float* values, int n, BFloat16* out) {
  for (int i = 0; i < n; ++i) out[i].bits = bf16_from_float(values[i]);
}

template <typename Block, typename Out>
void decode_row(const uint8_t* row, int64_t n_blocks, Out* out) {
  // Blocks at a time: a call of round_into() for a single number would cost more than the number.
  constexpr int kBatch = Block::kValues == 1 ? 64 : 1;
  for (int64_t begin = 0; begin < n_blocks; begin += kBatch) {
    const int n = static_cast<int>(std::min<int64_t>(kBatch, n_blocks - begin));
    float values[kBatch * Block::kValues];
    for (int i = 0; i < n; ++i) Block::decode(row + (begin + i) * Block::kBytes, values + i * Block::kValues);
    round_into(values, n * Block::kValues, out + begin * Block::kValues);
  }
}

template <typename Block>
void decode_row(const uint8_t* row, int64_t n_blocks, float* out) {
  for (int64_t i = 0; i < n_blocks; ++i) Block::decode(row + i * Block::kBytes, out + i * Block::kValues);
}

// What is stored as it is wanted.
template <>
void decode_row<BF16>(const uint8_t* row, int64_t n_blocks, BFloat16* out) {
  std::memcpy(out, row, sizeof(BFloat16) * static_cast<size_t>(n_blocks));
}

template <>
void decode_row<F16>(const uint8_t* row, int64_t n_blocks, Half* out) {
  std::memcpy(out, row, sizeof(Half) * static_cast<size_t>(n_blocks));
}

struct Rows {
  const uint8_t* packed;     // [n_rows, n_blocks blocks]
  void* out;                 // [n_rows, row_len]
  const int64_t* row_index;  // [n_rows], null for 0, 1, 2, ...
  int64_t n_blocks;          // of a row
  int64_t row_len;
};

template <typename Block, typename Out>
void decode_rows(const Rows& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t target = rows.row_index == nullptr ? row : rows.row_index[row];
    decode_row<Block>(rows.packed + row * rows.n_blocks * Block::kBytes, rows.n_blocks,
                      static_cast<Out*>(rows.out) + target * rows.row_len);
  }
}

using RowsFn = void (*)(const Rows& rows, int64_t begin, int64_t end);

struct Decoder {
  BlockFormat format;
  RowsFn to_float32, to_half, to_bfloat16;
};

template <typename Block>
constexpr Decoder decoder(const char* name) {
  return {{name, Block::kValues, Block::kBytes},
          &decode_rows<Block, float>,
          &decode_rows<Block, Half>,
          &decode_rows<Block, BFloat16>};
}

constexpr Decoder kDecoders[] = {
    decoder<F32>("F32"),       decoder<F16>("F16"),       decoder<BF16>("BF16"), decoder<Q4_0>("Q4_0"),
    decoder<Q4_1>("Q4_1"),     decoder<Q5_0>("Q5_0"),     decoder<Q5_1>("Q5_1"), decoder<Q8_0>("Q8_0"),
    decoder<Q2_K>("Q2_K"),     decoder<Q3_K>("Q3_K"),     decoder<Q4_K>("Q4_K"), decoder<Q5_K>("Q5_K"),
    decoder<Q6_K>("Q6_K"),     decoder<IQ4_NL>("IQ4_NL"), decoder<IQ4_XS>("IQ4_XS"),
};

const Decoder* find_decoder(const std::string& name) {
  for (const Decoder& decoder : kDecoders) {
    if (name == decoder.format.name) return &decoder;
  }
  return nullptr;
}

std::string known_formats() {
  std::string names;
  for (const Decoder& decoder : kDecoders) names += (names.empty() ? "" : ", ") + std::string(decoder.format.name);
  return names;
}

RowsFn function_for(const Decoder& decoder, DType dtype) {
  if (dtype == DType::kFloat32) return decoder.to_float32;
  return dtype == DType::kFloat16 ? decoder.to_half : decoder.to_bfloat16;
}

void check_row_index(ShapeCheck& check, const TensorView& row_index) {
  check.shape("row_index", row_index, {"N"}).dtype("row_index", row_index, {DType::kInt64});
  check.device("row_index", row_index, kCpu).contiguous_from(0, "row_index", row_index);
  const int64_t n_rows = row_index.size(0);
  std::vector<bool> is_taken(static_cast<size_t>(n_rows));
  for (int64_t row = 0; row < n_rows; ++row) {
    const int64_t target = row_index.data_as<int64_t>()[row];
    check.require(target >= 0 && target < n_rows && !is_taken[static_cast<size_t>(target)], [&] {
      return "row_index[" + std::to_string(row) + "] is " + std::to_string(target) + "; it must name each of the " +
             std::to_string(n_rows) + " rows once";
    });
    is_taken[static_cast<size_t>(target)] = true;
  }
}

}  // namespace

const std::vector<BlockFormat>& block_formats() {
  static const std::vector<BlockFormat> formats = [] {
    std::vector<BlockFormat> found;
    for (const Decoder& decoder : kDecoders) found.push_back(decoder.format);
    return found;
  }();
  return formats;
}

void dequantize(const TensorView& packed, const std::string& format, const TensorView& out,
                const std::optional<TensorView>& row_index, ThreadPool& pool) {
  ShapeCheck check("dequantize");
  const Decoder* decoder = find_decoder(format);
  check.require(decoder != nullptr, [&] { return "format is '" + format + "'; accepted are " + known_formats(); });
  check.shape("packed", packed, {"N", "B"}).dtype("packed", packed, {DType::kUInt8});
  const int64_t n_blocks = packed.size(1) / decoder->format.n_bytes;
  check.require(n_blocks * decoder->format.n_bytes == packed.size(1), [&] {
    return "packed has rows of " + std::to_string(packed.size(1)) + " bytes; " + format + " needs a multiple of " +
           std::to_string(decoder->format.n_bytes);
  });
  check.shape("out", out, {"N", n_blocks * decoder->format.n_values});
  check.dtype("out", out, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}).writable("out", out);
  check.device("packed", packed, kCpu).device("out", out, kCpu);
  check.contiguous_from(0, "packed", packed).contiguous_from(0, "out", out);
  if (row_index) check_row_index(check, *row_index);

  const Rows rows{packed.data_as<uint8_t>(), out.data, row_index ? row_index->data_as<int64_t>() : nullptr, n_blocks,
                  out.size(1)};
  const RowsFn decode = function_for(*decoder, out.dtype);
  constexpr int64_t kMinChunkValues = 65'536;  // some 50 us of work
  const int64_t max_chunks = std::clamp<int64_t>(out.numel() / kMinChunkValues, 1, 16 * pool.n_threads());
  pool.run(packed.size(0), max_chunks, [&](int64_t begin, int64_t end) { decode(rows, begin, end); });
}

}  // namespace astrai
