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

Allocator::Allocator(int64_t n_pages) : free_(checked_n_pages(n_pages), true) {}

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
  }
  if (!on_evict_) return true;
  try {
    for (int64_t i = n_from_free; i < n; ++i) on_evict_(out[i]);
  } catch (...) {
    for (int64_t i = 0; i < n; ++i) free_.set(out[i]);
    throw;
  }
  return true;
}

void Allocator::free(int32_t page, bool keep_cached) {
  check_page("free", page);
  if (!is_held(page)) {
    throw std::invalid_argument("Allocator.free: page " + std::to_string(page) + " has ref_count 0; it was freed before");
  }
  if (keep_cached) cached_.grow(static_cast<int32_t>(n_pages()));
  if (!extra_owners_.empty() && extra_owners_[static_cast<size_t>(page)] > 0) {
    --extra_owners_[static_cast<size_t>(page)];
  } else if (keep_cached) {
    cached_.push_newest(page);
  } else {
    free_.set(page);
  }
}

// Whether no page of the run is free, cached or shared.
bool Allocator::is_run_held_once(int64_t first, int64_t n) const {
  if (first < 0 || first + n > n_pages() || free_.has_any(first, n)) return false;
  if (cached_.count() == 0 && extra_owners_.empty()) return true;
  for (auto page = static_cast<int32_t>(first); page < first + n; ++page) {
    if (ref_count(page) != 1) return false;
  }
  return true;
}

void Allocator::free_many(Int32Span pages) {
  for (int64_t i = 0, n_run = 0; i < pages.size; i += n_run) {
    const int64_t first = pages[i];
    n_run = 1;
    while (i + n_run < pages.size && pages[i + n_run] == first + n_run) ++n_run;
    if (is_run_held_once(first, n_run)) {
      free_.set_run(first, n_run);
      continue;
    }
    n_run = 1;
    if (first >= 0 && first < n_pages() && is_held(pages[i])) {
      free(pages[i]);
      continue;
    }
    for (int64_t k = i - 1; k >= 0; --k) {  // take the pages before it back
      if (free_.test(pages[k])) {
        free_.reset(pages[k]);
      } else {
        ++extra_owners_[static_cast<size_t>(pages[k])];
      }
    }
    throw std::invalid_argument("Allocator.free_many: page " + std::to_string(first) + " at position " + std::to_string(i) +
                                " is not held, or not as often as it is listed; nothing was freed");
  }
}

void Allocator::inc_ref(int32_t page) {
  check_page("inc_ref", page);
  if (free_.test(page)) {
    throw std::invalid_argument("Allocator.inc_ref: page " + std::to_string(page) + " is free; take it with alloc()");
  }
  if (cached_.contains(page)) {
    cached_.remove(page);
    return;
  }
  extra_owners_.resize(static_cast<size_t>(n_pages()), 0);
  ++extra_owners_[static_cast<size_t>(page)];
}

int32_t Allocator::ref_count(int32_t page) const {
  check_page("ref_count", page);
  if (!is_held(page)) return 0;
  return extra_owners_.empty() ? 1 : 1 + extra_owners_[static_cast<size_t>(page)];
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
  for (int32_t page = 0; page < n_pages(); ++page) {
    const int32_t n_extra = extra_owners_.empty() ? 0 : extra_owners_[static_cast<size_t>(page)];
    if ((free_.test(page) && cached_.contains(page)) || n_extra < 0 || (n_extra > 0 && !is_held(page))) {
      throw Error("Allocator: page " + std::to_string(page) + " has " + std::to_string(n_extra) + " extra owners, free " +
                  std::to_string(free_.test(page)) + ", cached " + std::to_string(cached_.contains(page)) +
                  "; exactly one state must hold");
    }
  }
  if (n_free() + n_cached() > n_pages()) {
    throw Error("Allocator: free(" + std::to_string(n_free()) + ") + cached(" + std::to_string(n_cached()) +
                ") > n_pages(" + std::to_string(n_pages()) + ")");
  }
}

int64_t Allocator::state_bytes() const {
  return static_cast<int64_t>(extra_owners_.capacity() * sizeof(int32_t)) + free_.size() / 8 + cached_.state_bytes();
}

}  // namespace astrai
