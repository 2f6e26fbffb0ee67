#include "astrai/page_pool.h"

#include <algorithm>
#include <stdexcept>

#include "astrai/error.h"

namespace astrai {
namespace {

// The last slot index must leave room for the reserved slot behind it.
constexpr int64_t kMaxTokens = INT32_MAX - 1;

// Checks all sizes, ahead of the table: one that is refused may be larger than the memory.
int32_t checked_page_size(int32_t max_batch_size, int32_t max_seq_len, int32_t page_size, std::optional<int64_t> n_tokens) {
  if (page_size < 1) {
    throw std::invalid_argument("PagePool: page_size is " + std::to_string(page_size) + "; it must be 1 or more");
  }
  const int64_t n = n_tokens.value_or(static_cast<int64_t>(max_batch_size) * max_seq_len);
  if (n > kMaxTokens) {
    throw std::invalid_argument("PagePool: KV cache token count exceeds the int32 slot index limit: " + std::to_string(n) +
                                " > " + std::to_string(kMaxTokens));
  }
  if (n_tokens && n < page_size) {
    throw std::invalid_argument("PagePool: n_tokens is " + std::to_string(n) + ", less than one page of " +
                                std::to_string(page_size) + " tokens");
  }
  return n_tokens ? page_size : 1;
}

}  // namespace

PagePool::PagePool(int32_t max_batch_size, int32_t max_seq_len, int32_t page_size, std::optional<int64_t> n_tokens)
    : page_size_(checked_page_size(max_batch_size, max_seq_len, page_size, n_tokens)),
      table_(max_batch_size, max_seq_len),
      rows_(static_cast<size_t>(max_batch_size)),
      dirty_(static_cast<size_t>(max_batch_size), DirtySpan{0, 0, 0}) {
  const int64_t n = n_tokens.value_or(static_cast<int64_t>(max_batch_size) * max_seq_len);
  dirty_rows_.reserve(dirty_.size());
  if (n_tokens) {
    allocator_.emplace(n / page_size);
    if (page_size > 1) tree_.emplace(page_size);
    return;
  }
  for (int32_t slot = 0; slot < static_cast<int32_t>(n); ++slot) table_.table()[slot] = slot;
}

int64_t PagePool::n_pages() const {
  return allocator_ ? allocator_->n_pages() : static_cast<int64_t>(max_batch_size()) * max_seq_len();
}

int64_t PagePool::n_free_pages() const {
  return allocator_ ? allocator_->n_free() : static_cast<int64_t>(n_free_rows()) * max_seq_len();
}

const PagePool::Row& PagePool::row_in_use(const char* operation, int32_t req_idx) const {
  if (req_idx < 0 || req_idx >= max_batch_size() || !table_.is_used(req_idx)) {
    throw std::invalid_argument(std::string("PagePool.") + operation + ": row " + std::to_string(req_idx) +
                                " is not in use; rows come from admit() and end with release()");
  }
  return rows_[static_cast<size_t>(req_idx)];
}

PagePool::Row& PagePool::row_in_use(const char* operation, int32_t req_idx) {
  return const_cast<Row&>(static_cast<const PagePool*>(this)->row_in_use(operation, req_idx));
}

bool PagePool::fits(int64_t n_tokens) const {
  if (n_tokens < 1 || n_tokens >= max_seq_len()) return false;
  return is_contiguous() || pages_for(n_tokens) <= n_pages();
}

bool PagePool::can_admit(int64_t n_tokens) const {
  if (!fits(n_tokens) || n_free_rows() == 0) return false;
  return is_contiguous() || pages_for(n_tokens) <= n_free_pages() + n_cached_pages();
}

// Appends n pages to out, evicting as needed. Precondition: n <= free + cached.
void PagePool::take_pages(int64_t n, std::vector<int32_t>& out) {
  out.reserve(out.size() + static_cast<size_t>(n));
  const int64_t n_lacking = n - allocator_->n_free();
  if (n_lacking > 0) {
    evicted_.clear();
    evicted_.reserve(static_cast<size_t>(n_lacking));
    n_evicted_pages_ += tree_->evict_lru(n_lacking, evicted_);
    allocator_->free_many({evicted_.data(), static_cast<int64_t>(evicted_.size())});
  }
  const size_t start = out.size();
  out.resize(start + static_cast<size_t>(n));
  allocator_->alloc_many(n, out.data() + start);
}

// Writes the table entries of a row's pages from first_page on.
void PagePool::write_row(int32_t req_idx, int64_t first_page) {
  const std::vector<int32_t>& pages = rows_[static_cast<size_t>(req_idx)].pages;
  const auto begin = static_cast<int32_t>(first_page * page_size_);
  const auto end =
      static_cast<int32_t>(std::min<int64_t>(static_cast<int64_t>(pages.size()) * page_size_, max_seq_len()));
  if (begin >= end) return;
  int32_t* slots = table_.row(req_idx);
  int32_t position = begin;
  for (auto i = static_cast<size_t>(first_page); position < end; ++i) {
    const int32_t first_slot = pages[i] * page_size_;
    const int32_t page_end = std::min(position + page_size_, end);
    for (int32_t slot = first_slot; position < page_end; ++position, ++slot) slots[position] = slot;
  }
  mark_dirty(req_idx, begin, end);
}

void PagePool::mark_dirty(int32_t req_idx, int32_t begin, int32_t end) {
  DirtySpan& span = dirty_[static_cast<size_t>(req_idx)];
  if (span.begin == span.end) {
    span = {req_idx, begin, end};
    dirty_rows_.push_back(req_idx);
    return;
  }
  span.begin = std::min(span.begin, begin);
  span.end = std::max(span.end, end);
}

std::optional<Admission> PagePool::admit(Int32Span token_ids, const std::string& namespace_name) {
  const int64_t n_tokens = token_ids.size;
  if (!fits(n_tokens)) {
    throw std::invalid_argument("PagePool.admit: the prompt has " + std::to_string(n_tokens) + " tokens; this pool takes 1 to " +
                                std::to_string(std::min<int64_t>(max_seq_len() - 1, this->n_tokens())));
  }
  const auto negative = std::find_if(token_ids.begin(), token_ids.end(), [](int32_t id) { return id < 0; });
  if (negative != token_ids.end()) {
    throw std::invalid_argument("PagePool.admit: token id at position " + std::to_string(negative - token_ids.begin()) +
                                " is " + std::to_string(*negative) + "; ids are 0 or more");
  }
  if (n_free_rows() == 0) return std::nullopt;
  Row row;
  row.tokens.assign(token_ids.begin(), token_ids.end());
  row.namespace_name = namespace_name;
  Admission admission{-1, 0, "disabled", 0};
  if (!is_contiguous()) {
    RadixMatch match;
    const Int32Span matchable = token_ids.head(n_tokens - 1);  // one token is always left to compute
    if (tree_) match = tree_->lookup(matchable, namespace_name);
    const int64_t n_needed = pages_for(n_tokens) - match.n_pages;
    if (n_needed > n_free_pages() + n_cached_pages() - match.n_pages_unheld) return std::nullopt;
    row.pages.reserve(static_cast<size_t>(pages_for(n_tokens)));
    if (tree_) {
      const RadixMiss miss = tree_->explain_miss(match, matchable);
      admission.miss_reason = miss_reason_name(miss.reason);
      admission.miss_position = miss.position;
      tree_->append_pages(match, row.pages);
      row.held_node = tree_->lock(match, namespace_name);  // first, so that eviction cannot take the hit
      row.n_recorded = row.n_tree_pages = match.n_pages;
      admission.n_cached = row.n_recorded * page_size_;
    }
    take_pages(n_needed, row.pages);
  }
  admission.req_idx = table_.alloc(1)->front();
  rows_[static_cast<size_t>(admission.req_idx)] = std::move(row);
  if (!is_contiguous()) write_row(admission.req_idx, 0);
  n_prompt_tokens_ += n_tokens;
  n_hit_tokens_ += admission.n_cached;
  return admission;
}

bool PagePool::extend(int32_t req_idx, int64_t new_len) {
  Row& row = row_in_use("extend", req_idx);
  if (new_len > max_seq_len()) return false;
  const auto n_have = static_cast<int64_t>(row.pages.size());
  const int64_t n_needed = pages_for(std::max<int64_t>(new_len, 0)) - n_have;
  if (is_contiguous() || n_needed <= 0) return true;
  if (n_needed > n_free_pages() + n_cached_pages()) return false;
  take_pages(n_needed, row.pages);
  write_row(req_idx, n_have);
  return true;
}

int64_t PagePool::extend_batch(Int32Span req_indices, Int32Span new_lens) {
  if (req_indices.size != new_lens.size) {
    throw std::invalid_argument("PagePool.extend_batch: " + std::to_string(req_indices.size) + " req_indices but " +
                                std::to_string(new_lens.size) + " new_lens");
  }
  for (const int32_t req_idx : req_indices) row_in_use("extend_batch", req_idx);
  int64_t n_extended = 0;
  while (n_extended < req_indices.size && extend(req_indices[n_extended], new_lens[n_extended])) ++n_extended;
  return n_extended;
}

void PagePool::append(int32_t req_idx, int32_t token_id) { append_batch({&req_idx, 1}, {&token_id, 1}); }

void PagePool::append_batch(Int32Span req_indices, Int32Span token_ids) {
  if (req_indices.size != token_ids.size) {
    throw std::invalid_argument("PagePool.append_batch: " + std::to_string(req_indices.size) + " req_indices but " +
                                std::to_string(token_ids.size) + " token_ids");
  }
  for (const int32_t token_id : token_ids) {
    if (token_id < 0) throw std::invalid_argument("PagePool.append: token id " + std::to_string(token_id) + " is negative");
  }
  for (const int32_t req_idx : req_indices) {
    if (row_in_use("append", req_idx).n_pending == 0) continue;
    throw std::invalid_argument("PagePool.append: row " + std::to_string(req_idx) +
                                " has a pending token; settle() it first");
  }
  push_tokens(req_indices, token_ids);
}

void PagePool::push_tokens(Int32Span req_indices, Int32Span token_ids) {
  for (int64_t i = 0; i < req_indices.size; ++i) {
    Row& row = rows_[static_cast<size_t>(req_indices[i])];
    if (static_cast<int64_t>(row.tokens.size()) <= max_seq_len()) {
      row.tokens.push_back(token_ids[i]);
      continue;
    }
    for (int64_t k = 0; k < i; ++k) rows_[static_cast<size_t>(req_indices[k])].tokens.pop_back();
    throw std::invalid_argument("PagePool.append: row " + std::to_string(req_indices[i]) + " has " +
                                std::to_string(row.tokens.size()) + " tokens already; max_seq_len is " +
                                std::to_string(max_seq_len()));
  }
}

void PagePool::append_pending(Int32Span req_indices) {
  const std::vector<int32_t> ids(static_cast<size_t>(req_indices.size), kPendingId);
  for (const int32_t req_idx : req_indices) row_in_use("append_pending", req_idx);
  push_tokens(req_indices, {ids.data(), req_indices.size});
  for (const int32_t req_idx : req_indices) ++rows_[static_cast<size_t>(req_idx)].n_pending;
}

void PagePool::settle(Int32Span req_indices, Int32Span token_ids) {
  if (req_indices.size != token_ids.size) {
    throw std::invalid_argument("PagePool.settle: " + std::to_string(req_indices.size) + " req_indices but " +
                                std::to_string(token_ids.size) + " token_ids");
  }
  for (const int32_t req_idx : req_indices) row_in_use("settle", req_idx);
  for (const int32_t token_id : token_ids) {
    if (token_id < 0) throw std::invalid_argument("PagePool.settle: token id " + std::to_string(token_id) + " is negative");
  }
  for (int64_t i = 0; i < req_indices.size; ++i) {
    Row& row = rows_[static_cast<size_t>(req_indices[i])];
    if (row.n_pending > 0) {
      row.tokens[row.tokens.size() - static_cast<size_t>(row.n_pending--)] = token_ids[i];
      continue;
    }
    for (int64_t k = i - 1; k >= 0; --k) {  // take the tokens before it back
      Row& settled = rows_[static_cast<size_t>(req_indices[k])];
      settled.tokens[settled.tokens.size() - static_cast<size_t>(++settled.n_pending)] = kPendingId;
    }
    throw std::invalid_argument("PagePool.settle: row " + std::to_string(req_indices[i]) + " at position " + std::to_string(i) +
                                " has no pending token, or fewer than it is named; append_pending() it first");
  }
}

int64_t PagePool::commit(int32_t req_idx, int64_t n_written) {
  Row& row = row_in_use("commit", req_idx);
  const int64_t n_known = static_cast<int64_t>(row.tokens.size()) - row.n_pending;
  if (n_written < 0 || n_written > n_known || n_written > n_slots(req_idx)) {
    throw std::invalid_argument("PagePool.commit: n_written is " + std::to_string(n_written) + " but row " +
                                std::to_string(req_idx) + " has " + std::to_string(n_known) + " tokens and " +
                                std::to_string(n_slots(req_idx)) + " slots");
  }
  const int64_t n_whole = n_written / page_size_;
  if (!tree_ || n_whole <= row.n_recorded) return 0;
  const Int32Span fresh{row.pages.data() + row.n_recorded, n_whole - row.n_recorded};
  int64_t n_new = 0;
  row.held_node = tree_->insert(row.held_node, row.tokens.data() + row.n_recorded * page_size_, fresh, &n_new);
  if (row.n_tree_pages == row.n_recorded && n_new == fresh.size) row.n_tree_pages = n_whole;
  row.n_recorded = n_whole;
  return n_new;
}

void PagePool::release(int32_t req_idx) {
  Row& row = row_in_use("release", req_idx);
  if (tree_) {
    tree_->unlock(row.held_node);
    const auto is_recorded = [this](int32_t page) { return tree_->has_page(page); };
    row.pages.erase(std::remove_if(row.pages.begin(), row.pages.end(), is_recorded), row.pages.end());
  }
  if (allocator_) allocator_->free_many({row.pages.data(), static_cast<int64_t>(row.pages.size())});
  row = Row{};
  table_.free({&req_idx, 1});
}

int64_t PagePool::flush_cache() {
  if (!tree_) return 0;
  evicted_.clear();
  const int64_t n_evicted = tree_->evict_lru(tree_->n_cached(), evicted_);
  allocator_->free_many({evicted_.data(), n_evicted});
  n_evicted_pages_ += n_evicted;
  return n_evicted;
}

}  // namespace astrai
