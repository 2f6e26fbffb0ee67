#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <vector>

#include "astrai/error.h"
#include "astrai/moe_ops.h"
#include "astrai/moe_tiles.h"
#include "row_major.h"

using astrai::DType;
using astrai::TensorView;

namespace {

int64_t n_tiles(const std::vector<int64_t>& counts, int rows) {
  int64_t n = 0;
  for (const int64_t count : counts) n += (count + rows - 1) / rows;
  return n;
}

}  // namespace

TEST_CASE("no routing gives more tiles than moe_max_tiles, and some gives as many") {
  std::mt19937 random(7);
  for (const int64_t n_experts : {1, 4, 60, 128}) {
    for (const int64_t n_pairs : {0, 1, 7, 8, 128, 129, 1000, 2048, 65536}) {
      const int rows = astrai::moe_tile_rows(n_pairs, n_experts);
      const int64_t most = astrai::moe_max_tiles(n_pairs, n_experts);
      for (int attempt = 0; attempt < 20; ++attempt) {
        // Few experts at first, so that some get none and one may get all.
        std::uniform_int_distribution<int64_t> expert(0, std::min<int64_t>(n_experts - 1, attempt));
        std::vector<int64_t> counts(static_cast<size_t>(n_experts));
        for (int64_t i = 0; i < n_pairs; ++i) ++counts[static_cast<size_t>(expert(random))];
        CHECK(n_tiles(counts, rows) <= most);
      }
      // The worst: one pair in each, the rest of whole tiles in the first.
      std::vector<int64_t> counts(static_cast<size_t>(n_experts), 0);
      const int64_t touched = std::min(n_pairs, n_experts);
      std::fill_n(counts.begin(), touched, 1);
      if (n_pairs > touched) counts[0] += n_pairs - touched;
      CHECK(n_tiles(counts, rows) == most);
    }
  }
}

TEST_CASE("tiles are small where experts get few rows") {
  CHECK(astrai::moe_tile_rows(8, 128) == 16);
  CHECK(astrai::moe_tile_rows(16 * 8, 128) == 16);
  CHECK(astrai::moe_tile_rows(256 * 8, 128) == 64);
  CHECK(astrai::moe_tile_rows(8192 * 8, 128) == 128);
}

TEST_CASE("tiles of gate and up rows hold each row once, gate and up of a column 8 apart") {
  for (const int n_columns : {8, 24, 768, 1408}) {
    for (const int tile_rows : {64, 128}) {
      std::vector<int> seen(2 * static_cast<size_t>(n_columns));
      for (int first = 0; first < n_columns; first += tile_rows / 2) {
        for (int row = 0; row < tile_rows; ++row) {
          const int found = astrai::moe_gate_up_row(row, first, n_columns);
          if (found < 0) continue;
          REQUIRE(found < 2 * n_columns);
          ++seen[static_cast<size_t>(found)];
          if (found < n_columns) CHECK(astrai::moe_gate_up_row(row + 8, first, n_columns) == found + n_columns);
        }
      }
      CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    }
  }
}

TEST_CASE("the checks give launchers the sizes of the products") {
  const TensorView x = row_major({16, 64}, DType::kBFloat16), order = row_major({32}, DType::kInt32);
  const TensorView tiles = row_major({astrai::moe_max_tiles(32, 8), 4}, DType::kInt32);
  const TensorView gated = row_major({32, 24}, DType::kBFloat16);
  const auto up = astrai::check_moe_gate_up(x, row_major({8, 48, 64}, DType::kBFloat16), order, tiles, gated);
  CHECK(up.n_active == 2);
  CHECK(up.n_in == 64);
  CHECK(up.n_out == 24);
  CHECK(up.n_weight_rows == 48);
  CHECK(up.n_tiles == 8 + 24 / 16);
  const auto down = astrai::check_moe_down(gated, row_major({8, 64, 24}, DType::kBFloat16), order, tiles,
                                           row_major({32, 64}, DType::kBFloat16));
  CHECK(down.n_active == 1);
  CHECK(down.n_in == 24);
  CHECK(down.n_out == 64);
}

TEST_CASE("a mixture of experts refuses what its kernels do not take") {
  const TensorView x = row_major({16, 64}, DType::kBFloat16), order = row_major({32}, DType::kInt32);
  const TensorView tiles = row_major({astrai::moe_max_tiles(32, 8), 4}, DType::kInt32);
  const TensorView gated = row_major({32, 24}, DType::kBFloat16), gate_up = row_major({8, 48, 64}, DType::kBFloat16);
  CHECK_THROWS_AS(astrai::check_moe_gate_up(x, row_major({8, 47, 64}, DType::kBFloat16), order, tiles, gated),
                  std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_moe_gate_up(x, gate_up, order, row_major({3, 4}, DType::kInt32), gated),
                  std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_moe_gate_up(row_major({15, 64}, DType::kBFloat16), gate_up, order, tiles, gated),
                  std::invalid_argument);
  TensorView odd = x;
  odd.data = memory + 2;
  CHECK_THROWS_AS(astrai::check_moe_gate_up(odd, gate_up, order, tiles, gated), std::invalid_argument);
  const TensorView x32 = row_major({16, 64}, DType::kFloat32);
  CHECK_THROWS_AS(astrai::check_moe_gate_up(x32, gate_up, order, tiles, gated), astrai::KernelUnavailableError);
  CHECK_THROWS_AS(astrai::check_moe_down(gated, row_major({8, 60, 24}, DType::kBFloat16), order, tiles,
                                         row_major({32, 60}, DType::kBFloat16)),
                  std::invalid_argument);
  const TensorView logits = row_major({4, 8}, DType::kBFloat16);
  CHECK_THROWS_AS(astrai::check_moe_route(logits, row_major({4, 9}, DType::kInt32), row_major({4, 9}, DType::kFloat32),
                                          true),
                  std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_moe_route(row_major({4, 513}, DType::kBFloat16), row_major({4, 2}, DType::kInt32),
                                          row_major({4, 2}, DType::kFloat32), true),
                  std::invalid_argument);
  CHECK_THROWS_AS(astrai::check_moe_sort(row_major({16, 2}, DType::kInt32), order, tiles, 0), std::invalid_argument);
}
