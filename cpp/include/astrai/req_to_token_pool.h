// The index table req_to_token: row req_idx, column position -> token slot. Host side; the device copy is made in Python.
//
// Rows are handed out first in, first out, and are not cleared when they come back: only entries that a holder wrote since
// it took the row mean anything. It owns the table; pointers into it stay valid as long as the pool lives. Single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "astrai/int32_span.h"

namespace astrai {

class ReqToTokenPool {
 public:
  // Throws std::invalid_argument unless both are positive.
  ReqToTokenPool(int32_t size, int32_t max_context_len);

  // n rows, all or nothing: nullopt when fewer are free. Throws std::invalid_argument when n is negative. O(n).
  std::optional<std::vector<int32_t>> alloc(int32_t n);
  // Gives rows back. Throws std::invalid_argument, before any change, on a row that is not in use or is listed twice.
  // O(rows).
  void free(Int32Span req_indices);
  // Writes slots to positions [start, start + slots.size) of a row. Throws std::invalid_argument outside the table.
  // O(slots).
  void write(int32_t req_idx, int32_t start, Int32Span slots);

  int32_t size() const { return size_; }
  int32_t max_context_len() const { return max_context_len_; }
  int32_t n_free() const { return static_cast<int32_t>(free_rows_.size()); }
  // Precondition: 0 <= req_idx < size.
  bool is_used(int32_t req_idx) const { return used_[static_cast<size_t>(req_idx)] != 0; }
  // [max_context_len] token slots of one row. Precondition: 0 <= req_idx < size.
  const int32_t* row(int32_t req_idx) const { return table_.data() + offset(req_idx); }
  int32_t* row(int32_t req_idx) { return table_.data() + offset(req_idx); }
  int32_t* table() { return table_.data(); }  // [size, max_context_len]
  const int32_t* table() const { return table_.data(); }

 private:
  size_t offset(int32_t req_idx) const {
    return static_cast<size_t>(req_idx) * static_cast<size_t>(max_context_len_);
  }

  int32_t size_;
  int32_t max_context_len_;
  std::vector<int32_t> table_;  // [size * max_context_len] token slots, zero at first
  std::vector<char> used_;      // [size]
  std::deque<int32_t> free_rows_;
};

}  // namespace astrai
