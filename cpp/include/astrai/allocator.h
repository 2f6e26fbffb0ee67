// Page allocator: which pages are free, how many owners each page has, and which unowned pages still hold something useful.
//
// Each page is in exactly one state, and free + cached + held = n_pages:
//   free    ref_count 0, in free_       alloc() takes the lowest one first, so that neighbours in time are neighbours in memory
//   held    ref_count > 0, in neither     owned by the callers who counted themselves in
//   cached  ref_count 0, in cached_     kept by free(page, keep_cached = true); alloc() evicts the oldest when nothing is free
//
// The first owner of a page is not stored: a held page has one owner more than extra_owners_ says. Without sharing, taking
// and freeing pages touches nothing but bits.
//
// PagePool takes pages one owner at a time and leaves sharing and eviction order to its RadixCache, which knows which
// page is the prefix of which. Single-threaded. Pages are numbers: the memory behind them is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "astrai/bitmask.h"
#include "astrai/int32_span.h"
#include "astrai/lru_list.h"

namespace astrai {

class Allocator {
 public:
  // Throws std::invalid_argument unless 1 <= n_pages <= 2^31 - 2.
  explicit Allocator(int64_t n_pages);

  // Called with each page that alloc evicts, after it left the cached state. It must not call back into the allocator. What it
  // throws goes to alloc's caller, who gets no page: all that were asked for are free.
  void set_on_evict(std::function<void(int32_t)> on_evict) { on_evict_ = std::move(on_evict); }

  // A page with ref_count 1: the lowest free one, else the least recently cached one. -1 when all pages are held.
  // O(n_pages / 4096).
  int32_t alloc();
  // n pages with ref_count 1 into out [n]. False, and nothing changed, when fewer than n are free or cached. Throws
  // std::invalid_argument when n is negative. O(n + n_pages / 4096).
  bool alloc_many(int64_t n, int32_t* out);
  // Drops one owner. The last one leaves the page cached (newest) or free. Throws std::invalid_argument on a page nobody holds.
  // O(1), as are inc_ref, ref_count and touch; all of them throw std::invalid_argument on a number that is no page.
  void free(int32_t page, bool keep_cached = false);
  // free() of every page in order. Throws std::invalid_argument, and nothing changed, when one of them is not held or is
  // listed more often than held. O(pages).
  void free_many(Int32Span pages);
  // Adds an owner to a held or cached page. Throws std::invalid_argument on a free page.
  void inc_ref(int32_t page);
  int32_t ref_count(int32_t page) const;  // owners; 0 for a free or cached page
  // Makes a cached page the most recently used one; other pages are left alone.
  void touch(int32_t page);

  int64_t n_pages() const { return free_.size(); }
  int64_t n_free() const { return free_.count(); }
  int64_t n_cached() const { return cached_.count(); }
  int64_t n_held() const { return n_pages() - n_free() - n_cached(); }
  bool is_free(int32_t page) const { return free_.test(page); }  // precondition: 0 <= page < n_pages()
  // O(n_pages). Throws Error naming both sides of the equation that fails.
  void check_integrity() const;
  int64_t state_bytes() const;  // memory of the bookkeeping itself

 private:
  void check_page(const char* operation, int32_t page) const;
  bool is_held(int32_t page) const { return !free_.test(page) && !cached_.contains(page); }
  bool is_run_held_once(int64_t first, int64_t n) const;

  Bitmask free_;
  LruList cached_;                     // empty until the first page is kept
  std::vector<int32_t> extra_owners_;  // [n_pages] owners beyond the first; empty until the first inc_ref of a held page
  std::function<void(int32_t)> on_evict_;
};

}  // namespace astrai
