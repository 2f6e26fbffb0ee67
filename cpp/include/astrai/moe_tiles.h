// How the rows of a mixture of experts are cut into tiles for the grouped matrix products. Arithmetic alone, for host and
// device; the kernels of cuda/moe and their callers must agree on it.
//
// A pair is one (row, expert of that row): row t of n_rows with n_active experts has the pairs t * n_active + j. Sorted by
// expert and then by number, pairs have positions; a tile is up to moe_tile_rows() successive positions of one expert.
#pragma once

#include <cstdint>

namespace astrai {

constexpr int kMoeMaxExperts = 512;  // the routing kernel holds a row's shares in one warp's registers
constexpr int kMoeMaxActive = 32;    // one choice a lane

// Rows of a tile: about twice what an expert gets on average, so that most experts are one tile.
constexpr int moe_tile_rows(int64_t n_pairs, int64_t n_experts) {
  if (n_pairs <= 8 * n_experts) return 16;
  return n_pairs <= 48 * n_experts ? 64 : 128;
}

// The most tiles that n_pairs can give, however they fall: the size of the grid, which must not depend on the routing.
// Each of m experts with pairs has at most (n - 1) / rows + 1 tiles, and that is largest for as many experts as possible.
constexpr int64_t moe_max_tiles(int64_t n_pairs, int64_t n_experts) {
  const int64_t touched = n_pairs < n_experts ? n_pairs : n_experts;
  return (n_pairs - touched) / moe_tile_rows(n_pairs, n_experts) + touched;
}

// The row of an expert's [2 * n_columns, K] gate and up matrix that lies in row tile_row of a tile of weights for the
// output columns from first_column on; -1 beyond the last. Groups of 8 gate rows and 8 up rows take turns, so that one
// thread gets gate and up of the same column from neighbouring products.
constexpr int moe_gate_up_row(int tile_row, int first_column, int n_columns) {
  const int group = tile_row / 8, column = first_column + group / 2 * 8 + tile_row % 8;
  if (column >= n_columns) return -1;
  return group % 2 * n_columns + column;
}

}  // namespace astrai
