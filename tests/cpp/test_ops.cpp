#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

#include "astrai/error.h"
#include "astrai/ops.h"
#include "row_major.h"

using astrai::DType;
using astrai::TensorView;

namespace {

const TensorView x3 = row_major({5, 4, 64}, DType::kBFloat16);
const TensorView freqs3 = row_major({5, 32, 2}, DType::kFloat32);

}  // namespace

TEST_CASE("rotary_emb takes packed and batched tensors with their strides") {
  const auto packed = astrai::check_rotary_emb(x3, freqs3, x3);
  CHECK(packed.n_batch == 1);
  CHECK(packed.n_seq == 5);
  CHECK(packed.x_strides[1] == 256);
  CHECK(packed.x_strides[2] == 64);
  CHECK(packed.freqs_strides[1] == 64);

  const TensorView x4 = row_major({2, 5, 4, 64}, DType::kFloat16);
  const auto batched = astrai::check_rotary_emb(x4, row_major({2, 5, 32, 2}, DType::kFloat32), x4);
  const auto flat_table = astrai::check_rotary_emb(x4, row_major({10, 32, 2}, DType::kFloat32), x4);
  CHECK(batched.freqs_strides[0] == 5 * 64);
  CHECK(flat_table.freqs_strides[0] == 5 * 64);
  CHECK(batched.x_strides[0] == 5 * 4 * 64);
}

TEST_CASE("rotary_emb uses vectors only when every row starts on 16 bytes") {
  CHECK(astrai::check_rotary_emb(x3, freqs3, x3).is_vectorizable);
  TensorView odd_start = x3;
  odd_start.data = memory + 2;
  CHECK_FALSE(astrai::check_rotary_emb(odd_start, freqs3, odd_start).is_vectorizable);
  TensorView odd_stride = x3;
  odd_stride.strides[0] = 260;
  CHECK_FALSE(astrai::check_rotary_emb(odd_stride, freqs3, odd_stride).is_vectorizable);
}

TEST_CASE("rotary_emb refuses shapes, dtypes and aliases that its kernel cannot serve") {
  const TensorView other = row_major({5, 4, 64}, DType::kBFloat16, memory + 16);
  CHECK_THROWS_AS(astrai::check_rotary_emb(x3, row_major({4, 32, 2}, DType::kFloat32), other), std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_rotary_emb(x3, row_major({5, 32, 2}, DType::kBFloat16), other), std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_rotary_emb(x3, freqs3, row_major({5, 4, 64}, DType::kFloat16)), std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_rotary_emb(row_major({5, 64}, DType::kBFloat16), freqs3, x3), std::invalid_argument);
  const TensorView full = row_major({5, 4, 64}, DType::kFloat32);
  CHECK_THROWS_AS(astrai::check_rotary_emb(full, freqs3, full), astrai::KernelUnavailableError);
  TensorView shifted = x3;
  shifted.strides[0] = 512;
  CHECK_THROWS_AS(astrai::check_rotary_emb(x3, freqs3, shifted), std::invalid_argument);
  TensorView expanded = other;
  expanded.strides[0] = 0;
  CHECK_THROWS_AS(astrai::check_rotary_emb(x3, freqs3, expanded), std::invalid_argument);
}

TEST_CASE("store_kv matches heads, slots and dtypes across its tensors") {
  const TensorView rows = row_major({3, 2, 64}, DType::kBFloat16);
  const TensorView cache = row_major({100, 2, 64}, DType::kBFloat16);
  const TensorView loc = row_major({3}, DType::kInt32);
  const auto args = astrai::check_store_kv(rows, rows, cache, cache, loc);
  CHECK(args.row_len == 128);
  CHECK(args.n_slots == 100);
  CHECK(args.is_vectorizable);

  CHECK_THROWS_AS(astrai::check_store_kv(rows, rows, cache, cache, row_major({4}, DType::kInt32)), std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_store_kv(rows, rows, cache, cache, row_major({3}, DType::kInt64)), std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_store_kv(rows, rows, cache, row_major({99, 2, 64}, DType::kBFloat16), loc),
                  std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_store_kv(rows, rows, row_major({100, 2, 64}, DType::kFloat16), cache, loc),
                  std::invalid_argument);
}

TEST_CASE("store_kv falls back to single elements for rows that do not start on 16 bytes") {
  const TensorView rows = row_major({3, 1, 6}, DType::kFloat16);
  const TensorView cache = row_major({10, 1, 6}, DType::kFloat16);
  CHECK_FALSE(astrai::check_store_kv(rows, rows, cache, cache, row_major({3}, DType::kInt32)).is_vectorizable);
}
