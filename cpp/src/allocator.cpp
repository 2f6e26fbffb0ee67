#include "astrai/allocator.h"

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
  int64_t run_start = 0;  // pages[run_start .. i) are neighbours whose last owner is gone, not yet in free_
  const auto free_run = [&](int64_t end) {
    if (end > run_start) free_.set_run(pages[run_start], end - run_start);
    n_held_ -= end - run_start;
  };
  for (int64_t i = 0; i < pages.size; ++i) {
    const int32_t page = pages[i];
    if (page < 0 || page >= n_pages() || ref_counts_[static_cast<size_t>(page)] == 0) {
      free_run(i);
      for (int64_t k = 0; k < i; ++k) {  // take the pages before it back
        n_held_ += ref_counts_[static_cast<size_t>(pages[k])]++ == 0;
        free_.reset(pages[k]);
      }
      throw std::invalid_argument("Allocator.free_many: page " + std::to_string(page) + " at position " +
                                  std::to_string(i) + " is not held often enough; nothing was freed");
    }
    if (i > run_start && page != pages[i - 1] + 1) {
      free_run(i);
      run_start = i;
    }
    if (--ref_counts_[static_cast<size_t>(page)] == 0) continue;
    free_run(i);  // still held by others: left out of the runs
    run_start = i + 1;
  }
  free_run(pages.size);
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
