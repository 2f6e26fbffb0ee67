// The bytes that each token id stands for, and which ids are special (control tokens such as an end marker).
//
//   offsets_   0     5  5     8            n_tokens + 1 entries
//   bytes_     H e l l o  â ˜ ƒ            one string; id 1 has no text here
//   special_   0     1  0                  one flag an id
//
// A piece need not be whole characters: byte-level tokenizers split one character over several ids. A model without
// a tokenizer has a table whose pieces are all empty. It owns a copy of the bytes. Immutable after construction, so any number of threads may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace astrai {

class TokenTable {
 public:
  // pieces: bytes of each id, in id order. special: one flag for each piece; not 0 marks a special id.
  // Throws std::invalid_argument when the lengths differ.
  TokenTable(const std::vector<std::string>& pieces, std::vector<std::uint8_t> special);

  std::int64_t n_tokens() const { return static_cast<std::int64_t>(special_.size()); }
  bool contains(std::int64_t token_id) const { return token_id >= 0 && token_id < n_tokens(); }

  // Precondition of both: contains(token_id). O(1). The view lives as long as the table.
  std::string_view piece(std::int64_t token_id) const {
    const auto id = static_cast<std::size_t>(token_id);
    return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  bool is_special(std::int64_t token_id) const { return special_[static_cast<std::size_t>(token_id)] != 0; }

 private:
  std::string bytes_;                 // all pieces, one after the other
  std::vector<std::size_t> offsets_;  // [n_tokens + 1] where each piece begins in bytes_
  std::vector<std::uint8_t> special_;  // [n_tokens]
};

}  // namespace astrai
