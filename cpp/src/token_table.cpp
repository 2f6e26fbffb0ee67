#include "astrai/token_table.h"

#include <stdexcept>
#include <utility>

namespace astrai {

TokenTable::TokenTable(const std::vector<std::string>& pieces, std::vector<std::uint8_t> special)
    : special_(std::move(special)) {
  if (pieces.size() != special_.size()) {
    throw std::invalid_argument("TokenTable: got " + std::to_string(pieces.size()) + " pieces and " +
                                std::to_string(special_.size()) + " special flags; give one flag for each piece");
  }
  std::size_t n_bytes = 0;
  for (const std::string& piece : pieces) n_bytes += piece.size();
  bytes_.reserve(n_bytes);
  offsets_.reserve(pieces.size() + 1);
  offsets_.push_back(0);
  for (const std::string& piece : pieces) {
    bytes_ += piece;
    offsets_.push_back(bytes_.size());
  }
}

}  // namespace astrai
