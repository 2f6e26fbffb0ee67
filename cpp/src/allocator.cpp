#include "astrai/allocator.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "astrai/error.h"

namespace astrai {
namespace {

int32_t checked_n_pages(int64_t n_pages) {
  if (n_pages < 1 || n_pages > INT32_MAX - 1) {
    throw std::invalid_argument("Allocator: n_pages is " + std::to_string(n_pages) + "; it must be in [1, 2^31 - 2]");
  }
  return static_cast<int32_t>(n_pages);
}

}  // namespace

Allocator::Allocator(int64_t n_pages)
    : free_(checked_n_pages(n_pages), true),
      ref_counts_(static_cast<size_t>(n_pages), 0) {}

void Allocator::check_page(const char* operation, int32_t page) const {
  if (page < 0 || page >= n_pages()) {
    throw std::invalid_argument(std::string("Allocator.") + operation + ": page is " + std::to_string(page) +
                                "; pages are [0, " + std::to_string(n_pages()) + ")");
  }
}

int32_t Allocator::alloc() {
  int32_t page = -1;
  return alloc_many(1, &page) ? page : -1;
}

bool Allocator::alloc_many(int64_t n, int32_t* out) {
  if (n < 0) throw std::invalid_argument("Allocator.alloc_many: n is " + std::to_string(n) + "; it must be 0 or more");
  if (n > n_free() + n_cached()) return false;
  const int64_t n_from_free = n < n_free() ? n : n_free();
  free_.take_lowest(n_from_free, out);
  for (int64_t i = n_from_free; i < n; ++i) {
    out[i] = cached_.oldest();
    cached_.remove(out[i]);
    if (on_evict_) on_evict_(out[i]);
  }
  for (int64_t i = 0; i < n; ++i) ref_counts_[static_cast<size_t>(out[i])] = 1;
  n_held_ += n;
  return true;
}

void Allocator::free(int32_t page, bool keep_cached) {
  check_page("free", page);
  int32_t& ref_count = ref_counts_[static_cast<size_t>(page)];
  if (ref_count == 0) {
    throw std::invalid_argument("Allocator.free: page " + std::to_string(page) + " has ref_count 0; it was freed before");
  }
  if (keep_cached) cached_.grow(static_cast<int32_t>(n_pages()));  // 8 bytes a page, from the first use on
  if (--ref_count > 0) return;
  --n_held_;
  if (keep_cached) {
    cached_.push_newest(page);
  } else {
    free_.set(page);
  }
}

void Allocator::free_many(Int32Span pages) {
  for (int64_t i = 0, n_run = 0; i < pages.size; i += n_run) {
    const int64_t first = pages[i];
    n_run = 1;
    while (i + n_run < pages.size && pages[i + n_run] == first + n_run) ++n_run;
    const bool is_inside = first >= 0 && first + n_run <= n_pages();
    if (is_inside && drop_run(first, n_run)) continue;
    for (int64_t k = 0; k < i; ++k) {  // take the runs before it back
      n_held_ += ref_counts_[static_cast<size_t>(pages[k])]++ == 0;
      free_.reset(pages[k]);
    }
    throw std::invalid_argument("Allocator.free_many: pages " + std::to_string(first) + " to " +
                                std::to_string(first + n_run - 1) + " at position " + std::to_string(i) +
                                " are not all held, or not as often as they are listed; nothing was freed");
  }
}

// Drops one owner of n neighbouring pages; false, and nothing changed, when one has none.
bool Allocator::drop_run(int64_t first, int64_t n) {
  int32_t* ref_counts = ref_counts_.data() + first;
  int32_t lowest = INT32_MAX;
  int32_t highest = 0;
  for (int64_t i = 0; i < n; ++i) {
    lowest = std::min(lowest, ref_counts[i]);
    highest = std::max(highest, ref_counts[i]);
  }
  if (lowest < 1) return false;
  for (int64_t i = 0; i < n; ++i) --ref_counts[i];
  if (highest == 1) {
    free_.set_run(first, n);
    n_held_ -= n;
    return true;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (ref_counts[i] > 0) continue;
    free_.set(first + i);
    --n_held_;
  }
  return true;
}

void Allocator::inc_ref(int32_t page) {
  check_page("inc_ref", page);
  int32_t& ref_count = ref_counts_[static_cast<size_t>(page)];
  if (ref_count == 0) {
    if (!cached_.contains(page)) {
      throw std::invalid_argument("Allocator.inc_ref: page " + std::to_string(page) + " is free; take it with alloc()");
    }
    cached_.remove(page);
    ++n_held_;
  }
  ++ref_count;
}

int32_t Allocator::ref_count(int32_t page) const {
  check_page("ref_count", page);
  return ref_counts_[static_cast<size_t>(page)];
}

void Allocator::touch(int32_t page) {
  check_page("touch", page);
  if (!cached_.contains(page)) return;
  cached_.remove(page);
  cached_.push_newest(page);
}

void Allocator::check_integrity() const {
  free_.check_integrity();
  cached_.check_integrity();
  int64_t n_held = 0;
  for (int32_t page = 0; page < n_pages(); ++page) {
    const int32_t ref_count = ref_counts_[static_cast<size_t>(page)];
    const int n_states = (ref_count > 0) + free_.test(page) + cached_.contains(page);
    if (ref_count < 0 || n_states != 1) {
      throw Error("Allocator: page " + std::to_string(page) + " has ref_count " + std::to_string(ref_count) + ", free " +
                  std::to_string(free_.test(page)) + ", cached " + std::to_string(cached_.contains(page)) +
                  "; exactly one state must hold");
    }
    n_held += ref_count > 0;
  }
  if (n_held != n_held_ || n_free() + n_cached() + n_held_ != n_pages()) {
    throw Error("Allocator: free(" + std::to_string(n_free()) + ") + cached(" + std::to_string(n_cached()) + ") + held(" +
                std::to_string(n_held_) + ", counted " + std::to_string(n_held) + ") != n_pages(" +
                std::to_string(n_pages()) + ")");
  }
}

int64_t Allocator::state_bytes() const {
  return static_cast<int64_t>(ref_counts_.capacity() * sizeof(int32_t)) + free_.size() / 8 + cached_.state_bytes();
}

}  // namespace astrai
