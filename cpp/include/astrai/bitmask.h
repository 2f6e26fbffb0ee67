// A set of small integers with a fast "lowest member", used for the free pages of a pool.
//
// Two levels: one bit per member, and one bit per 64-bit word of the first level that says "this word is not empty".
//
//   summary_  1 0 1 ...              bit w set <=> words_[w] != 0
//   words_    0110..  0000..  1000..   bit i of word w set <=> 64 * w + i is in the set
//
// Single-threaded.
// A part of <astrai/allocator.h>, not an interface: it may change with any version (docs/developer/abi.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace astrai {

class Bitmask {
 public:
  // Holds members of [0, size). Starts with all of them, or with none. Throws std::invalid_argument if size < 0.
  Bitmask(int64_t size, bool is_full);

  int64_t size() const { return size_; }
  int64_t count() const { return count_; }
  // O(1). Precondition for all three: 0 <= i < size().
  bool test(int64_t i) const { return (words_[word_of(i)] >> (i & 63)) & 1; }
  // O(1). Inserts i; nothing happens when it is a member.
  void set(int64_t i);
  // O(n / 64). Whether one of i, i + 1, ..., i + n - 1 is a member. Precondition: n >= 1, all inside.
  bool has_any(int64_t i, int64_t n) const;
  // O(n / 64). set() for i, i + 1, ..., i + n - 1. Precondition: n >= 1, none of them is a member.
  void set_run(int64_t i, int64_t n);
  // O(1). Removes i; nothing happens when it is not a member.
  void reset(int64_t i);
  // O(size / 4096). The lowest member, -1 when the set is empty.
  int64_t lowest() const;
  // O(n + size / 4096). Removes the n lowest members and writes them in rising order to out [n].
  // Precondition: n <= count().
  void take_lowest(int64_t n, int32_t* out);
  // O(size). Throws Error naming both sides if count or summary disagree with the bits.
  void check_integrity() const;

 private:
  static size_t word_of(int64_t i) { return static_cast<size_t>(i) >> 6; }

  int64_t size_;
  int64_t count_;
  std::vector<uint64_t> words_;    // [ceil(size / 64)]
  std::vector<uint64_t> summary_;  // [ceil(words / 64)]
};

}  // namespace astrai
