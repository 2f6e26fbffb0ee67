#include "astrai/req_to_token_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace astrai {

ReqToTokenPool::ReqToTokenPool(int32_t size, int32_t max_context_len) : size_(size), max_context_len_(max_context_len) {
  if (size < 1 || max_context_len < 1) {
    throw std::invalid_argument("ReqToTokenPool: size is " + std::to_string(size) + " and max_context_len is " +
                                std::to_string(max_context_len) + "; both must be positive");
  }
  table_.assign(static_cast<size_t>(size) * static_cast<size_t>(max_context_len), 0);
  used_.assign(static_cast<size_t>(size), 0);
  for (int32_t row = 0; row < size; ++row) free_rows_.push_back(row);
}

std::optional<std::vector<int32_t>> ReqToTokenPool::alloc(int32_t n) {
  if (n < 0) throw std::invalid_argument("ReqToTokenPool.alloc: n is " + std::to_string(n) + "; it must be 0 or more");
  if (n > n_free()) return std::nullopt;
  std::vector<int32_t> rows(free_rows_.begin(), free_rows_.begin() + n);
  free_rows_.erase(free_rows_.begin(), free_rows_.begin() + n);
  for (const int32_t row : rows) used_[static_cast<size_t>(row)] = 1;
  return rows;
}

void ReqToTokenPool::free(Int32Span req_indices) {
  for (int64_t i = 0; i < req_indices.size; ++i) {
    const int32_t row = req_indices[i];
    const bool is_repeated = std::find(req_indices.begin(), req_indices.begin() + i, row) != req_indices.begin() + i;
    if (row < 0 || row >= size_ || !is_used(row) || is_repeated) {
      throw std::invalid_argument("ReqToTokenPool.free: row " + std::to_string(row) + " at position " + std::to_string(i) +
                                  " is not in use, or is listed twice; nothing was freed");
    }
  }
  for (const int32_t row : req_indices) {
    used_[static_cast<size_t>(row)] = 0;
    free_rows_.push_back(row);
  }
}

void ReqToTokenPool::write(int32_t req_idx, int32_t start, Int32Span slots) {
  if (req_idx < 0 || req_idx >= size_ || start < 0 || slots.size > max_context_len_ - start) {
    throw std::invalid_argument("ReqToTokenPool.write: row " + std::to_string(req_idx) + ", positions [" +
                                std::to_string(start) + ", " + std::to_string(start + slots.size) +
                                ") lie outside the table [" + std::to_string(size_) + ", " +
                                std::to_string(max_context_len_) + "]");
  }
  std::copy(slots.begin(), slots.end(), row(req_idx) + start);
}

}  // namespace astrai
