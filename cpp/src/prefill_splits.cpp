// Which tiles of attn_paged_prefill have their keys split, and into how many. Contract: <astrai/attn_paged_prefill.h>.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "astrai/attn_paged_prefill.h"

namespace astrai {
namespace {

constexpr int kMinSplitLen = 512;  // keys; shorter ones spend their time on beginning and end
constexpr int kMinKeys = 2048;     // less gains too little for another launch
constexpr int kKeyTile = 128;      // of most kernels, which take whole tiles
constexpr int kMaxSplitWaves = 3;  // splits of a launch, in multiples of the multiprocessors: the workspace is made for them
constexpr int kMaxPlannedTiles = 1024;  // more fill a device, or nearly
// What a thread block's item, and the merge, cost beside the keys, in keys that take as long; measured on an H200.
constexpr int64_t kItemKeys = 400, kMergeKeys = 128;

// The tiles of a launch by the keys that they see.
struct Load {
  std::vector<int> keys;  // [n_tiles], most first
  int n_head_groups, n_multiprocessors;

  // Keys that the busiest multiprocessor takes when tiles of more than split_len keys are cut into n_splits, and items are
  // dealt in order, one a round to each.
  int64_t cost(int n_splits, int split_len) const {
    const int64_t n_whole_before = int64_t{n_split_tiles(split_len)} * n_head_groups;
    const int64_t n_split_items = n_splits * n_whole_before;
    const int64_t n_items = n_split_items - n_whole_before + static_cast<int64_t>(keys.size()) * n_head_groups;
    int64_t sum = n_split_items > 0 ? kMergeKeys : 0;
    for (int64_t item = 0; item < n_items; item += n_multiprocessors) {
      const int64_t whole = item - n_split_items + n_whole_before;
      sum += kItemKeys + (item < n_split_items ? split_len : keys[static_cast<std::size_t>(whole / n_head_groups)]);
    }
    return sum;
  }

  int n_split_tiles(int split_len) const {
    const auto whole = std::partition_point(keys.begin(), keys.end(), [=](int n_keys) { return n_keys > split_len; });
    return static_cast<int>(whole - keys.begin());
  }
};

int ceil_div(int n, int by) { return n / by + (n % by != 0 ? 1 : 0); }

}  // namespace

PrefillSplitPlan plan_prefill_splits(const std::vector<int>& q_lens, const std::vector<int>& kv_lens, int q_tile_rows,
                                     int n_heads, int n_kv_heads, int window, int n_multiprocessors) {
  if (q_lens.size() != kv_lens.size()) {
    throw std::invalid_argument("plan_prefill_splits: " + std::to_string(q_lens.size()) + " q_lens and " +
                                std::to_string(kv_lens.size()) + " kv_lens; one of each per request is needed");
  }
  if (q_tile_rows < 1 || n_heads < 1 || n_kv_heads < 1 || window < 0 || n_multiprocessors < 1) {
    throw std::invalid_argument(
        "plan_prefill_splits: q_tile_rows, n_heads, n_kv_heads and n_multiprocessors must be positive, window 0 or more");
  }
  const int n_head_groups = n_heads / prefill_heads_per_tile(n_heads, n_kv_heads);
  const int64_t most_keys = window > 0 ? int64_t{window} + q_tile_rows : INT32_MAX;
  const auto seen = [&](int64_t n_keys) { return static_cast<int>(std::clamp<int64_t>(n_keys, 0, most_keys)); };
  int longest = 0;
  int64_t n_tiles = 0;
  for (std::size_t i = 0; i < q_lens.size(); ++i) {
    if (q_lens[i] <= 0) continue;
    longest = std::max(longest, seen(kv_lens[i]));
    n_tiles += ceil_div(q_lens[i], q_tile_rows);
  }
  if (longest < kMinKeys || n_tiles > kMaxPlannedTiles) return {};

  Load load{{}, n_head_groups, n_multiprocessors};
  load.keys.reserve(static_cast<std::size_t>(n_tiles));
  for (std::size_t i = 0; i < q_lens.size(); ++i) {
    for (int64_t first = 0; first < q_lens[i]; first += q_tile_rows) {
      load.keys.push_back(seen(int64_t{kv_lens[i]} - q_lens[i] + std::min<int64_t>(first + q_tile_rows, q_lens[i])));
    }
  }
  std::sort(load.keys.begin(), load.keys.end(), [](int a, int b) { return a > b; });

  PrefillSplitPlan best;
  int64_t best_cost = load.cost(1, longest) * 15 / 16;
  const int64_t max_splits = int64_t{kMaxSplitWaves} * n_multiprocessors / load.n_head_groups;
  for (int n_wanted = 2; n_wanted <= std::min<int64_t>(max_splits, longest / kMinSplitLen); ++n_wanted) {
    const int split_len = ceil_div(ceil_div(longest, n_wanted), kKeyTile) * kKeyTile;
    const int n_splits = ceil_div(longest, split_len), n_split_tiles = load.n_split_tiles(split_len);
    if (int64_t{n_splits} * n_split_tiles > max_splits) continue;
    const int64_t cost = load.cost(n_splits, split_len);
    if (cost < best_cost) {
      best = {n_split_tiles, n_splits, split_len};
      best_cost = cost;
    }
  }
  return best;
}

int64_t prefill_workspace_size(int q_tile_rows, int n_heads, int n_kv_heads, int head_dim, int n_multiprocessors) {
  if (q_tile_rows < 1 || head_dim < 1 || n_multiprocessors < 1) {
    throw std::invalid_argument("prefill_workspace_size: q_tile_rows, head_dim and n_multiprocessors must be positive");
  }
  const int64_t n_rows = int64_t{kMaxSplitWaves} * n_multiprocessors * q_tile_rows;
  return n_rows * prefill_heads_per_tile(n_heads, n_kv_heads) * (head_dim + 2);
}

}  // namespace astrai
