// Host bookkeeping of the KV pool: which row (live request) owns which token slots, in both modes of the pool.
//
//   contiguous  n_tokens not given: slot = req_idx * max_seq_len + position, fixed; one page is one slot
//   paged       pages of page_size slots on demand from an Allocator; with page_size > 1 a RadixCache shares prefixes
//
//   slots   [0, n_tokens) in pages             n_tokens = reserved_slot(): takes the writes of padding rows, owned by nobody
//   page p  [p * page_size, (p + 1) * page_size)
//
// Who owns a page (and frees it):
//   free      the allocator
//   private   one row: not recorded (partial, not yet written, or a duplicate of a page the tree has)   freed by release()
//   recorded  the tree; held by every row whose path in the tree runs through it                        freed by eviction
// A row whose own page is a duplicate holds the tree's page too, so that no page outlives its prefix.
//
// A transaction (admit, extend, append, commit, release and their batches) happens whole or leaves the pool as it was: an
// exception or a refusal changes nothing. The pool owns its bookkeeping alone; the memory of the slots is the caller's.
// Single-threaded: one thread, the scheduler's, owns a pool. Movable, not copyable; BatchPlan and others point to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "astrai/allocator.h"
#include "astrai/int32_span.h"
#include "astrai/radix_cache.h"
#include "astrai/req_to_token_pool.h"

namespace astrai {

struct Admission {
  int32_t req_idx;
  int64_t n_cached;        // leading prompt tokens whose KV is there already
  const char* miss_reason;  // name of why the hit ended there; "disabled" without a tree
  int64_t miss_position;   // see RadixMiss
};

// Positions [begin, end) of a row of the table were written since the device copy was last brought up to date.
struct DirtySpan {
  int32_t req_idx;
  int32_t begin;
  int32_t end;
};

class PagePool {
 public:
  static constexpr int32_t kPendingId = -1;

  // n_tokens absent: contiguous, page_size has no effect. Else n_tokens / page_size pages (a remainder is unused).
  // Throws std::invalid_argument on sizes below 1, a pool below one page, or slots beyond int32.
  PagePool(int32_t max_batch_size, int32_t max_seq_len, int32_t page_size = 1,
           std::optional<int64_t> n_tokens = std::nullopt);

  // Takes a row for a prompt: holds the cached prefix under the namespace (never the last prompt token), allocates pages for
  // the rest, evicting unheld ones as needed, and writes the table row. nullopt when row or pages are lacking now.
  // Throws std::invalid_argument when even an empty pool could not hold the prompt (see fits). O(prompt + pages evicted).
  std::optional<Admission> admit(Int32Span token_ids, const std::string& namespace_name = "");
  // Whether admit() of n_tokens ids would succeed now if nothing of them were cached.
  bool can_admit(int64_t n_tokens) const;
  // Whether an empty pool could admit n_tokens ids: 1 <= n_tokens < max_seq_len, and no more pages than there are.
  bool fits(int64_t n_tokens) const;
  // Slots for all positions below new_len. False, and nothing changed, when pages are lacking or new_len > max_seq_len.
  // O(1) while the row's last page has room, else O(pages taken and evicted). Throws std::invalid_argument, as do all that
  // take a row, on one that is not in use.
  bool extend(int32_t req_idx, int64_t new_len);
  // extend() in order; returns how many succeeded before the first that did not. Throws before any change on a bad row.
  int64_t extend_batch(Int32Span req_indices, Int32Span new_lens);
  // A sampled token: known, not yet written, behind no pending one. At most max_seq_len + 1 tokens (the last sampled one needs no slot).
  void append(int32_t req_idx, int32_t token_id);
  // append() for each pair; throws before any change.
  void append_batch(Int32Span req_indices, Int32Span token_ids);
  // A token that a step in flight is drawing: as append() of kPendingId for each row, each named once.
  void append_pending(Int32Span req_indices);
  // The step is done: the oldest pending token of each row gets its id. Throws, and nothing changed, on a row without one.
  void settle(Int32Span req_indices, Int32Span token_ids);
  // The row's first n_written tokens are in KV by a completed forward: records their whole pages in the tree. Returns the
  // number of pages recorded. Throws std::invalid_argument when n_written exceeds the row's slots or its tokens
  // of known id. The same n_written again changes nothing. O(tokens since the last commit), amortised.
  int64_t commit(int32_t req_idx, int64_t n_written);
  // Drops the row: recorded pages stay cached unless another row holds them, the others become free. O(pages).
  void release(int32_t req_idx);
  // Evicts every cached page; returns how many. O(pages).
  int64_t flush_cache();

  bool is_contiguous() const { return !allocator_.has_value(); }
  int32_t page_size() const { return page_size_; }  // 1 when contiguous
  int32_t max_batch_size() const { return table_.size(); }
  int32_t max_seq_len() const { return table_.max_context_len(); }
  int64_t n_pages() const;
  int64_t n_tokens() const { return n_pages() * page_size_; }
  int64_t reserved_slot() const { return n_tokens(); }
  int64_t n_free_pages() const;
  int64_t n_cached_pages() const { return tree_ ? tree_->n_cached() : 0; }
  int64_t n_held_pages() const { return n_pages() - n_free_pages() - n_cached_pages(); }
  int32_t n_free_rows() const { return table_.n_free(); }
  // Live rows holding the page: its owner, or all rows whose path in the tree runs through it.
  int32_t ref_count(int32_t page) const;

  // All of these throw std::invalid_argument on a row that is not in use. A span is valid until the row changes.
  int64_t n_slots(int32_t req_idx) const;
  Int32Span row_tokens(int32_t req_idx) const;    // prompt, then appended tokens, the pending ones last
  Int32Span row_pages(int32_t req_idx) const;     // by position; empty when contiguous
  // How many leading pages are the tree's own: a row that has the same page at the same place has the same ones before it.
  int64_t n_tree_pages(int32_t req_idx) const;
  const int32_t* row_slots(int32_t req_idx) const;  // [n_slots] token slot of each position
  int32_t* table() { return table_.table(); }     // [max_batch_size, max_seq_len]
  const int32_t* table() const { return table_.table(); }
  // Spans written since the last call (paged only; the contiguous table never changes). The first call starts from a table
  // that was copied whole.
  std::vector<DirtySpan> take_dirty();

  // The tree, for display; nullptr without one.
  const RadixCache* tree() const { return tree_ ? &*tree_ : nullptr; }
  int64_t n_prompt_tokens() const { return n_prompt_tokens_; }  // of all admissions
  int64_t n_hit_tokens() const { return n_hit_tokens_; }        // of them cached
  int64_t n_evicted_pages() const { return n_evicted_pages_; }
  // O(pool). Throws Error naming both sides of the invariant that fails.
  void check_integrity() const;

 private:
  struct Row {
    std::vector<int32_t> tokens;  // prompt, then appended
    int64_t n_pending = 0;        // the last of them, whose id is kPendingId
    std::vector<int32_t> pages;   // page of positions [i * page_size, (i + 1) * page_size)
    int64_t n_recorded = 0;       // leading pages whose ids the tree knows
    int64_t n_tree_pages = 0;     // of those, the ones before the first duplicate of a page of the tree
    int32_t held_node = -1;       // where the row's path in the tree ends, -1 without a tree
    std::string namespace_name;
  };

  Row& row_in_use(const char* operation, int32_t req_idx);
  const Row& row_in_use(const char* operation, int32_t req_idx) const;
  int64_t pages_for(int64_t n_tokens) const { return (n_tokens + page_size_ - 1) / page_size_; }
  void push_tokens(Int32Span req_indices, Int32Span token_ids);
  void take_pages(int64_t n, std::vector<int32_t>& out);
  void write_row(int32_t req_idx, int64_t first_page);
  void mark_dirty(int32_t req_idx, int32_t begin, int32_t end);

  int32_t page_size_;
  ReqToTokenPool table_;
  std::optional<Allocator> allocator_;  // paged
  std::optional<RadixCache> tree_;      // paged, page_size > 1
  std::vector<Row> rows_;               // [max_batch_size]
  std::vector<DirtySpan> dirty_;        // [max_batch_size] begin == end when clean
  std::vector<int32_t> dirty_rows_;
  std::vector<int32_t> evicted_;        // scratch of take_pages
  int64_t n_prompt_tokens_ = 0;
  int64_t n_hit_tokens_ = 0;
  int64_t n_evicted_pages_ = 0;
};

// "end_of_prompt", "token_differs", ...
const char* miss_reason_name(MissReason reason);

}  // namespace astrai
