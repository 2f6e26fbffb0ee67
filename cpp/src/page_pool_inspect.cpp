// What PagePool tells about its rows, and its integrity check.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "astrai/error.h"
#include "astrai/page_pool.h"

namespace astrai {

const char* miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::kEndOfPrompt: return "end_of_prompt";
    case MissReason::kTokenDiffers: return "token_differs";
    case MissReason::kPageBoundary: return "page_boundary";
    case MissReason::kEvicted: return "evicted";
    case MissReason::kOtherNamespace: return "other_namespace";
    case MissReason::kEmptyCache: return "empty_cache";
  }
  throw Error("miss_reason_name: unknown reason " + std::to_string(static_cast<int>(reason)));
}

int64_t PagePool::n_slots(int32_t req_idx) const {
  const Row& row = row_in_use("n_slots", req_idx);
  if (is_contiguous()) return max_seq_len();
  return std::min<int64_t>(static_cast<int64_t>(row.pages.size()) * page_size_, max_seq_len());
}

Int32Span PagePool::row_tokens(int32_t req_idx) const {
  const Row& row = row_in_use("tokens", req_idx);
  return {row.tokens.data(), static_cast<int64_t>(row.tokens.size())};
}

int64_t PagePool::n_tree_pages(int32_t req_idx) const { return row_in_use("n_tree_pages", req_idx).n_tree_pages; }

Int32Span PagePool::row_pages(int32_t req_idx) const {
  const Row& row = row_in_use("pages", req_idx);
  return {row.pages.data(), static_cast<int64_t>(row.pages.size())};
}

const int32_t* PagePool::row_slots(int32_t req_idx) const {
  row_in_use("row_slots", req_idx);
  return table_.row(req_idx);
}

std::vector<DirtySpan> PagePool::take_dirty() {
  std::vector<DirtySpan> spans;
  spans.reserve(dirty_rows_.size());
  for (const int32_t req_idx : dirty_rows_) {
    DirtySpan& span = dirty_[static_cast<size_t>(req_idx)];
    spans.push_back(span);
    span.end = span.begin;
  }
  dirty_rows_.clear();
  return spans;
}

int32_t PagePool::ref_count(int32_t page) const {
  if (page < 0 || page >= n_pages()) {
    throw std::invalid_argument("PagePool.ref_count: page is " + std::to_string(page) + "; pages are [0, " +
                                std::to_string(n_pages()) + ")");
  }
  if (is_contiguous()) return table_.is_used(page / max_seq_len());
  if (tree_ && tree_->has_page(page)) return tree_->ref_count(page);
  return allocator_->ref_count(page);
}

void PagePool::check_integrity() const {
  int32_t n_used = 0;
  for (int32_t req_idx = 0; req_idx < max_batch_size(); ++req_idx) n_used += table_.is_used(req_idx);
  if (n_used + n_free_rows() != max_batch_size()) {
    throw Error("PagePool: used rows(" + std::to_string(n_used) + ") + free rows(" + std::to_string(n_free_rows()) +
                ") != max_batch_size(" + std::to_string(max_batch_size()) + ")");
  }
  if (is_contiguous()) return;
  allocator_->check_integrity();
  // The allocator counts one owner for each page that is not free: a row, or the tree.
  std::vector<int32_t> owners(static_cast<size_t>(n_pages()), 0);
  std::vector<int32_t> held_nodes;
  for (int32_t req_idx = 0; req_idx < max_batch_size(); ++req_idx) {
    if (!table_.is_used(req_idx)) continue;
    const Row& row = rows_[static_cast<size_t>(req_idx)];
    if (tree_ && tree_->depth_of(row.held_node) != row.n_recorded) {
      throw Error("PagePool: row " + std::to_string(req_idx) + " has n_recorded(" + std::to_string(row.n_recorded) +
                  ") != depth of its node(" + std::to_string(tree_->depth_of(row.held_node)) + ")");
    }
    if (tree_) held_nodes.push_back(row.held_node);
    for (size_t i = 0; i < row.pages.size(); ++i) {
      const int32_t page = row.pages[i];
      const int64_t position = static_cast<int64_t>(i) * page_size_;
      if (position < max_seq_len() && table_.row(req_idx)[position] != page * page_size_) {
        throw Error("PagePool: row " + std::to_string(req_idx) + " position " + std::to_string(position) + ": table has slot " +
                    std::to_string(table_.row(req_idx)[position]) + " != first slot of page " + std::to_string(page));
      }
      if (tree_ && tree_->has_page(page)) {
        if (static_cast<int64_t>(i) < row.n_recorded && tree_->ref_count(page) > 0) continue;
        throw Error("PagePool: row " + std::to_string(req_idx) + " uses page " + std::to_string(page) +
                    " of the tree without holding it (ref_count " + std::to_string(tree_->ref_count(page)) + ")");
      }
      ++owners[static_cast<size_t>(page)];
    }
  }
  if (tree_) tree_->check_integrity(&held_nodes);
  int64_t n_private = 0;
  for (int32_t page = 0; page < n_pages(); ++page) {
    const int32_t n_owners = owners[static_cast<size_t>(page)] + (tree_ && tree_->has_page(page));
    n_private += owners[static_cast<size_t>(page)];
    if (n_owners != allocator_->ref_count(page)) {
      throw Error("PagePool: page " + std::to_string(page) + " has owners(" + std::to_string(n_owners) +
                  ") != allocator ref_count(" + std::to_string(allocator_->ref_count(page)) + ")");
    }
  }
  const int64_t n_in_tree = tree_ ? tree_->n_pages() : 0;
  if (n_free_pages() + n_in_tree + n_private != n_pages()) {
    throw Error("PagePool: free(" + std::to_string(n_free_pages()) + ") + in the tree(" + std::to_string(n_in_tree) +
                ") + private(" + std::to_string(n_private) + ") != n_pages(" + std::to_string(n_pages()) + ")");
  }
}

}  // namespace astrai
