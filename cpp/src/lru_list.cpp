#include "astrai/lru_list.h"

#include <string>

#include "astrai/error.h"

namespace astrai {

LruList::LruList(int32_t size) : next_(1, 0), prev_(1, 0) { grow(size); }

void LruList::grow(int32_t size) {
  const size_t n_slots = slot(size);
  if (n_slots <= next_.size()) return;
  prev_.resize(n_slots, kAbsent);
  next_.resize(n_slots, kAbsent);
}

int32_t LruList::oldest() const { return next_[0] - 1; }  // the sentinel's slot 0 reads as -1: empty

int32_t LruList::newer(int32_t i) const { return next_[slot(i)] - 1; }

void LruList::link_between(int32_t before, int32_t added, int32_t after) {
  const auto s = static_cast<size_t>(added);
  next_[static_cast<size_t>(before)] = added;
  prev_[s] = before;
  next_[s] = after;
  prev_[static_cast<size_t>(after)] = added;
  ++count_;
}

void LruList::push_newest(int32_t i) { link_between(prev_[0], i + 1, 0); }

void LruList::insert_newer(int32_t older, int32_t i) { link_between(older + 1, i + 1, next_[slot(older)]); }

void LruList::remove(int32_t i) {
  const size_t s = slot(i);
  next_[static_cast<size_t>(prev_[s])] = next_[s];
  prev_[static_cast<size_t>(next_[s])] = prev_[s];
  next_[s] = prev_[s] = kAbsent;
  --count_;
}

void LruList::check_integrity() const {
  int32_t n_linked = 0;
  for (int32_t at = 0, next = next_[0]; next != 0; at = next, next = next_[static_cast<size_t>(next)]) {
    if (next < 0 || prev_[static_cast<size_t>(next)] != at || ++n_linked > count_) {
      throw Error("LruList: broken link after member " + std::to_string(at - 1) + " (next is " + std::to_string(next - 1) +
                  ", count is " + std::to_string(count_) + ")");
    }
  }
  if (n_linked != count_) {
    throw Error("LruList: " + std::to_string(n_linked) + " linked != count(" + std::to_string(count_) + ")");
  }
}

int64_t LruList::state_bytes() const {
  return static_cast<int64_t>((next_.capacity() + prev_.capacity()) * sizeof(int32_t));
}

}  // namespace astrai
