#include "astrai/bitmask.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "astrai/error.h"

namespace astrai {
namespace {

// Index of the lowest set bit. Precondition: word != 0.
int count_trailing_zeros(uint64_t word) { return __builtin_ctzll(word); }

}  // namespace

Bitmask::Bitmask(int64_t size, bool is_full) : size_(size), count_(is_full ? size : 0) {
  if (size < 0) throw std::invalid_argument("Bitmask: size is " + std::to_string(size) + "; it must be 0 or more");
  const size_t n_words = (static_cast<size_t>(size) + 63) / 64;
  words_.assign(n_words, is_full ? ~uint64_t{0} : 0);
  summary_.assign((n_words + 63) / 64, is_full ? ~uint64_t{0} : 0);
  // Bits past the end stay clear in both levels, so that lowest() needs no bound check.
  if (is_full && size % 64 != 0) words_.back() = (uint64_t{1} << (size % 64)) - 1;
  if (is_full && n_words % 64 != 0) summary_.back() = (uint64_t{1} << (n_words % 64)) - 1;
}

void Bitmask::set(int64_t i) {
  const size_t w = word_of(i);
  const uint64_t bit = uint64_t{1} << (i & 63);
  count_ += (words_[w] & bit) == 0;
  words_[w] |= bit;
  summary_[w >> 6] |= uint64_t{1} << (w & 63);
}

bool Bitmask::has_any(int64_t i, int64_t n) const {
  while (n > 0) {
    const int64_t n_in_word = std::min<int64_t>(n, 64 - (i & 63));
    if (words_[word_of(i)] & ((~uint64_t{0} >> (64 - n_in_word)) << (i & 63))) return true;
    i += n_in_word;
    n -= n_in_word;
  }
  return false;
}

void Bitmask::set_run(int64_t i, int64_t n) {
  count_ += n;
  while (n > 0) {
    const size_t w = word_of(i);
    const int64_t n_in_word = std::min<int64_t>(n, 64 - (i & 63));
    words_[w] |= (~uint64_t{0} >> (64 - n_in_word)) << (i & 63);
    summary_[w >> 6] |= uint64_t{1} << (w & 63);
    i += n_in_word;
    n -= n_in_word;
  }
}

void Bitmask::reset(int64_t i) {
  const size_t w = word_of(i);
  const uint64_t bit = uint64_t{1} << (i & 63);
  count_ -= (words_[w] & bit) != 0;
  words_[w] &= ~bit;
  if (words_[w] == 0) summary_[w >> 6] &= ~(uint64_t{1} << (w & 63));
}

int64_t Bitmask::lowest() const {
  for (size_t s = 0; s < summary_.size(); ++s) {
    if (summary_[s] == 0) continue;
    const size_t w = s * 64 + static_cast<size_t>(count_trailing_zeros(summary_[s]));
    return static_cast<int64_t>(w * 64) + count_trailing_zeros(words_[w]);
  }
  return -1;
}

void Bitmask::take_lowest(int64_t n, int32_t* out) {
  count_ -= n;
  for (size_t s = 0; n > 0; ++s) {
    while (summary_[s] != 0 && n > 0) {
      const size_t w = s * 64 + static_cast<size_t>(count_trailing_zeros(summary_[s]));
      uint64_t word = words_[w];
      while (word != 0 && n > 0) {  // one run of neighbours a turn
        const int start = count_trailing_zeros(word);
        const uint64_t after = ~(word >> start);
        const int n_ones = after == 0 ? 64 : count_trailing_zeros(after);
        const int n_run = static_cast<int>(std::min<int64_t>(n, n_ones));
        for (int i = 0; i < n_run; ++i) out[i] = static_cast<int32_t>(w * 64) + start + i;
        out += n_run;
        n -= n_run;
        word &= ~((~uint64_t{0} >> (64 - n_run)) << start);
      }
      words_[w] = word;
      if (word == 0) summary_[s] &= summary_[s] - 1;
    }
  }
}

void Bitmask::check_integrity() const {
  int64_t n_set = 0;
  for (size_t w = 0; w < words_.size(); ++w) {
    n_set += __builtin_popcountll(words_[w]);
    const bool is_marked = (summary_[w >> 6] >> (w & 63)) & 1;
    if (is_marked != (words_[w] != 0)) {
      throw Error("Bitmask: summary bit of word " + std::to_string(w) + " is " + std::to_string(is_marked) +
                  " but the word is " + (words_[w] != 0 ? "not empty" : "empty"));
    }
  }
  if (n_set != count_) {
    throw Error("Bitmask: " + std::to_string(n_set) + " bits set != count(" + std::to_string(count_) + ")");
  }
}

}  // namespace astrai
