// An order of use over small integers: a doubly linked list that lives in two arrays, oldest member first.
//
//   sentinel_ -> oldest -> ... -> newest -> sentinel_      next_/prev_ index by member; kAbsent when not in the list
//
// Every operation is O(1). Single-threaded.
// A part of <astrai/allocator.h>, not an interface: it may change with any version (docs/developer/abi.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace astrai {

class LruList {
 public:
  // Members come from [0, size); contains() is false beyond.
  explicit LruList(int32_t size = 0);

  // Lets members up to size - 1 in. Keeps the order. Never shrinks.
  void grow(int32_t size);
  bool contains(int32_t i) const { return slot(i) < next_.size() && next_[slot(i)] != kAbsent; }
  int32_t count() const { return count_; }
  // The least recently used member, -1 when the list is empty.
  int32_t oldest() const;
  // The member used next after i, -1 when i is the newest. Precondition: contains(i).
  int32_t newer(int32_t i) const;
  // Makes i the most recently used. Precondition: !contains(i).
  void push_newest(int32_t i);
  // Puts i directly after `older` in the order of use. Precondition: contains(older), !contains(i).
  void insert_newer(int32_t older, int32_t i);
  // Precondition: contains(i).
  void remove(int32_t i);
  // O(count). Throws Error when links and count disagree.
  void check_integrity() const;
  int64_t state_bytes() const;

 private:
  static constexpr int32_t kAbsent = -1;
  static size_t slot(int32_t i) { return static_cast<size_t>(i) + 1; }  // slot 0 is the sentinel
  void link_between(int32_t before, int32_t added, int32_t after);

  int32_t count_ = 0;
  std::vector<int32_t> next_;  // [size + 1] slot of the next newer member, kAbsent outside the list
  std::vector<int32_t> prev_;  // [size + 1] slot of the next older member
};

}  // namespace astrai
