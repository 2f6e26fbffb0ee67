#include "astrai/batch_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace astrai {

namespace {

enum SectionIdx {
  kTokenIds,
  kPositionIds,
  kOutCacheLoc,
  kSeqLens,
  kReqPoolIndices,
  kKvIndptr,
  kQoIndptr,
  kLogitsIndices,
  kQTileToBatch,
  kQTileToIndex,
  kDecodeSplitIndptr,
  kDecodeMembers,
  kDecodeNUnits,
  kDecodeUnits,
};

constexpr int64_t kAlignment = 4;  // int32 elements: 16 bytes, the widest vector load of a kernel
constexpr int64_t kMemberInt32 = sizeof(DecodeMember) / sizeof(int32_t);
constexpr int64_t kUnitInt32 = sizeof(DecodeUnit) / sizeof(int32_t);
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

int64_t ceil_div(int64_t n, int64_t unit) { return n / unit + (n % unit != 0 ? 1 : 0); }

// Gives each section its place and returns the elements in use.
int64_t place(std::array<PlanSection, 14>& sections, int64_t total_q, int64_t n_rows, int64_t n_decode,
              int64_t n_tiles, int64_t n_units) {
  sections = {{{"token_ids", 0, total_q},
               {"position_ids", 0, total_q},
               {"out_cache_loc", 0, total_q},
               {"seq_lens", 0, n_rows},
               {"req_pool_indices", 0, n_rows},
               {"kv_indptr", 0, n_rows + 1},
               {"qo_indptr", 0, n_rows + 1},
               {"logits_indices", 0, n_rows},
               {"q_tile_to_batch", 0, n_tiles},
               {"q_tile_to_index", 0, n_tiles},
               {"decode_split_indptr", 0, n_decode + 1},
               {"decode_members", 0, n_decode * kMemberInt32},
               {"decode_n_units", 0, 2},
               {"decode_units", 0, n_units * kUnitInt32}}};
  int64_t end = 0;
  for (PlanSection& section : sections) {
    section.offset = ceil_div(end, kAlignment) * kAlignment;
    end = section.offset + section.length;
  }
  return end;
}

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument("BatchPlan.build: " + message); }

[[noreturn]] void refuse_row(int64_t row, int32_t req_idx, const std::string& message) {
  refuse("row " + std::to_string(row) + " (request " + std::to_string(req_idx) + ") " + message);
}

}  // namespace

BatchPlan::BatchPlan(PagePool& pool, int64_t max_total_q, int64_t max_batch_size, int64_t split_len)
    : pool_(&pool),
      max_total_q_(max_total_q),
      max_batch_size_(max_batch_size),
      split_len_(split_len),
      last_step_(static_cast<std::size_t>(pool.max_batch_size()), 0) {
  if (max_total_q < 1 || max_batch_size < 1 || split_len < 1) {
    throw std::invalid_argument("BatchPlan: max_total_q " + std::to_string(max_total_q) + ", max_batch_size " +
                                std::to_string(max_batch_size) + " and split_len " + std::to_string(split_len) +
                                " must be at least 1");
  }
}

int64_t BatchPlan::staging_size(int64_t max_total_q, int64_t max_batch_size, int64_t max_splits) {
  if (max_total_q < 0 || max_batch_size < 0 || max_splits < 0) {
    throw std::invalid_argument("BatchPlan.staging_size: sizes are " + std::to_string(max_total_q) + ", " +
                                std::to_string(max_batch_size) + " and " + std::to_string(max_splits) +
                                "; none may be negative");
  }
  std::array<PlanSection, 14> sections;
  // A tile has at least one query row.
  return place(sections, max_total_q, max_batch_size, max_batch_size, max_total_q, max_splits);
}

void BatchPlan::check_row(const PlanRows& rows, int64_t row) {
  const int32_t req_idx = rows.req_indices[row];
  const int64_t start = rows.starts[row];
  const int64_t end = start + rows.q_lens[row];
  if (start < 0 || end <= start) {
    refuse_row(row, req_idx, "has start " + std::to_string(start) + " and q_len " +
                                 std::to_string(rows.q_lens[row]) + "; start must be at least 0, q_len at least 1");
  }
  const int64_t n_known = pool_->row_tokens(req_idx).size;  // throws when the row is not in use
  if (end > n_known) {
    refuse_row(row, req_idx, "computes tokens " + std::to_string(start) + " to " + std::to_string(end - 1) +
                                 " but knows " + std::to_string(n_known) + "; append them first");
  }
  const int64_t n_slots = pool_->n_slots(req_idx);
  if (end > n_slots) {
    refuse_row(row, req_idx, "needs slots for " + std::to_string(end) + " tokens but has " + std::to_string(n_slots) +
                                 "; extend it first");
  }
  int64_t& last_step = last_step_[static_cast<std::size_t>(req_idx)];
  if (last_step == step_) refuse_row(row, req_idx, "is in this step twice");
  last_step = step_;
}

// Checks the rows and sums them up; writes nothing but step_, last_step_ and runs_.
Layout BatchPlan::measure(const PlanRows& rows, const PlanOptions& options) {
  const int64_t n_real = rows.req_indices.size, pad_to = options.pad_to, q_tile_rows = options.q_tile_rows;
  if (rows.starts.size != n_real || rows.q_lens.size != n_real) {
    refuse("got " + std::to_string(n_real) + " req_indices, " + std::to_string(rows.starts.size) + " starts and " +
           std::to_string(rows.q_lens.size) + " q_lens; give one of each for every row");
  }
  if (q_tile_rows < 1) refuse("q_tile_rows is " + std::to_string(q_tile_rows) + "; it must be at least 1");
  if (pad_to != 0 && pad_to < n_real) {
    refuse("pad_to is " + std::to_string(pad_to) + " but there are " + std::to_string(n_real) + " rows");
  }
  if (options.stack_len < 1 || options.stack_len >= kUnitMembers) {
    refuse("stack_len is " + std::to_string(options.stack_len) + "; 1 to " + std::to_string(kUnitMembers - 1) +
           " are accepted");
  }
  const auto is_one = [](int32_t q_len) { return q_len == 1; };
  const int64_t n_decode =
      options.n_decode.value_or(std::all_of(rows.q_lens.begin(), rows.q_lens.end(), is_one) ? n_real : 0);
  if (n_decode < 0 || n_decode > n_real) {
    refuse("n_decode is " + std::to_string(n_decode) + "; 0 to the " + std::to_string(n_real) + " rows are accepted");
  }
  ++step_;
  const int64_t n_padding = pad_to == 0 ? 0 : pad_to - n_real;
  Layout layout{};
  layout.n_rows = n_real + n_padding;
  if (layout.n_rows < 1 || layout.n_rows > max_batch_size_) {
    refuse("the step has " + std::to_string(layout.n_rows) + " rows; 1 to max_batch_size " +
           std::to_string(max_batch_size_) + " are accepted");
  }
  const int64_t n_decode_padding = n_decode == n_real ? n_padding : 0;
  layout.n_decode = n_decode + n_decode_padding;
  layout.total_q = n_padding;
  layout.n_tiles = n_padding - n_decode_padding;
  layout.n_splits = n_decode_padding;
  layout.max_len = layout.max_q_len = n_padding > 0 ? 1 : 0;
  int64_t n_kv = n_padding;
  for (int64_t row = 0; row < n_real; ++row) {
    check_row(rows, row);
    const int64_t q_len = rows.q_lens[row];
    const int64_t seq_len = rows.starts[row] + q_len;
    layout.total_q += q_len;
    if (row >= n_decode) {
      layout.n_tiles += ceil_div(q_len, q_tile_rows);
    } else {
      layout.n_splits += ceil_div(seq_len, split_len_);
      if (q_len != 1) {
        refuse_row(row, rows.req_indices[row], "is among the first n_decode " + std::to_string(n_decode) + " and has " +
                                                   std::to_string(q_len) +
                                                   " new tokens; a row that decodes has one. Put it behind them");
      }
    }
    layout.max_len = std::max(layout.max_len, seq_len);
    layout.max_q_len = std::max(layout.max_q_len, q_len);
    n_kv += seq_len;
  }
  if (layout.total_q > max_total_q_) {
    refuse("the step computes " + std::to_string(layout.total_q) + " tokens; max_total_q is " +
           std::to_string(max_total_q_));
  }
  if (n_kv > kInt32Max) {
    refuse("the rows' sequences are " + std::to_string(n_kv) + " tokens together; kv_indptr holds at most " +
           std::to_string(kInt32Max));
  }
  runs_.find(*pool_, rows.req_indices.head(n_decode), rows.starts.head(n_decode), n_decode_padding, split_len_);
  layout.has_shared = runs_.has_shared();
  layout.n_units = runs_.n_units(options.stack_len);
  layout.n_int32 =
      place(layout.sections, layout.total_q, layout.n_rows, layout.n_decode, layout.n_tiles, layout.n_units);
  return layout;
}

Layout BatchPlan::build(const PlanRows& rows, PlanStaging staging, const PlanOptions& options) {
  Layout layout = measure(rows, options);
  if (layout.n_int32 > staging.size) {
    refuse("the plan takes " + std::to_string(layout.n_int32) + " int32 elements; staging has " +
           std::to_string(staging.size) + ". BatchPlan.staging_size tells what suffices");
  }
  write_packed(rows, layout, staging.values);
  write_rows(rows, layout, staging.values);
  write_tiles(rows, layout, options.q_tile_rows, staging.values);
  write_units(layout, options.stack_len, staging.values);
  layout.dirty_spans = pool_->take_dirty();
  return layout;
}

// The sections with one entry a token.
void BatchPlan::write_packed(const PlanRows& rows, const Layout& layout, int32_t* staging) const {
  int32_t* token_ids = staging + layout.sections[kTokenIds].offset;
  int32_t* position_ids = staging + layout.sections[kPositionIds].offset;
  int32_t* out_cache_loc = staging + layout.sections[kOutCacheLoc].offset;
  for (int64_t row = 0; row < rows.req_indices.size; ++row) {
    const int32_t start = rows.starts[row];
    const int32_t q_len = rows.q_lens[row];
    const int32_t* known_ids = pool_->row_tokens(rows.req_indices[row]).values + start;
    const int32_t* slots = pool_->row_slots(rows.req_indices[row]) + start;
    token_ids = std::copy(known_ids, known_ids + q_len, token_ids);
    out_cache_loc = std::copy(slots, slots + q_len, out_cache_loc);
    for (int32_t i = 0; i < q_len; ++i) *position_ids++ = start + i;
  }
  const int64_t n_padding = layout.n_rows - rows.req_indices.size;
  std::fill_n(token_ids, n_padding, 0);
  std::fill_n(position_ids, n_padding, 0);
  std::fill_n(out_cache_loc, n_padding, static_cast<int32_t>(pool_->reserved_slot()));
}

// The sections with one entry a row.
void BatchPlan::write_rows(const PlanRows& rows, const Layout& layout, int32_t* staging) const {
  int32_t* seq_lens = staging + layout.sections[kSeqLens].offset;
  int32_t* req_pool_indices = staging + layout.sections[kReqPoolIndices].offset;
  int32_t* kv_indptr = staging + layout.sections[kKvIndptr].offset;
  int32_t* qo_indptr = staging + layout.sections[kQoIndptr].offset;
  int32_t* logits_indices = staging + layout.sections[kLogitsIndices].offset;
  int32_t* decode_split_indptr = staging + layout.sections[kDecodeSplitIndptr].offset;
  kv_indptr[0] = qo_indptr[0] = decode_split_indptr[0] = 0;
  for (int64_t row = 0; row < layout.n_rows; ++row) {
    const bool is_padding = row >= rows.req_indices.size;
    const int32_t q_len = is_padding ? 1 : rows.q_lens[row];
    const int32_t seq_len = is_padding ? 1 : rows.starts[row] + q_len;
    seq_lens[row] = seq_len;
    req_pool_indices[row] = is_padding ? pool_->max_batch_size() : rows.req_indices[row];
    kv_indptr[row + 1] = kv_indptr[row] + seq_len;
    qo_indptr[row + 1] = qo_indptr[row] + q_len;
    logits_indices[row] = qo_indptr[row + 1] - 1;
    if (row < layout.n_decode) {
      decode_split_indptr[row + 1] = decode_split_indptr[row] + static_cast<int32_t>(ceil_div(seq_len, split_len_));
    }
  }
}

void BatchPlan::write_tiles(const PlanRows& rows, const Layout& layout, int64_t q_tile_rows, int32_t* staging) const {
  struct Tile {
    int64_t n_keys;  // that its last query row sees
    int32_t row, index;
  };
  std::vector<Tile> tiles;
  tiles.reserve(static_cast<std::size_t>(layout.n_tiles));
  for (int64_t row = layout.n_decode; row < layout.n_rows; ++row) {
    const bool is_padding = row >= rows.req_indices.size;
    const int64_t q_len = is_padding ? 1 : rows.q_lens[row], start = is_padding ? 0 : rows.starts[row];
    for (int64_t index = 0; index * q_tile_rows < q_len; ++index) {
      const int64_t n_keys = start + std::min((index + 1) * q_tile_rows, q_len);
      tiles.push_back({n_keys, static_cast<int32_t>(row), static_cast<int32_t>(index)});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.n_keys < b.n_keys; });
  int32_t* q_tile_to_batch = staging + layout.sections[kQTileToBatch].offset;
  int32_t* q_tile_to_index = staging + layout.sections[kQTileToIndex].offset;
  for (const Tile& tile : tiles) {
    *q_tile_to_batch++ = tile.row;
    *q_tile_to_index++ = tile.index;
  }
}

// Reads seq_lens, req_pool_indices and decode_split_indptr, which are written before.
void BatchPlan::write_units(const Layout& layout, int64_t stack_len, int32_t* staging) const {
  const auto section = [&](SectionIdx idx) { return staging + layout.sections[idx].offset; };
  int32_t* members = section(kDecodeMembers);
  for (const int32_t row : runs_.order()) {
    const DecodeMember member{row, section(kReqPoolIndices)[row], section(kSeqLens)[row], section(kDecodeSplitIndptr)[row]};
    std::memcpy(members, &member, sizeof(member));
    members += kMemberInt32;
  }
  section(kDecodeNUnits)[0] = static_cast<int32_t>(layout.n_units);
  section(kDecodeNUnits)[1] = 0;
  runs_.write_units(stack_len, reinterpret_cast<DecodeUnit*>(section(kDecodeUnits)));
}

}  // namespace astrai
