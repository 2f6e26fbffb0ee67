// Finds the first of several stop strings in a text that arrives in pieces.
//
// Every stop string keeps how many of its bytes the end of the text matches (Knuth, Morris, Pratt, "Fast Pattern
// Matching in Strings", SIAM J. Comput. 6(2), 1977), so no byte of the text is looked at twice and the text itself is
// not needed. UTF-8 synchronises itself: in a text of whole characters a match, and a partial match at the end of the
// text, begins and ends between characters.
//
// The match that is complete first wins; of several that end at the same byte, the longest. This depends on the text
// alone, never on how it is cut into pieces. Single-threaded; copies go on from where the original is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace astrai {

struct StopMatch {
  std::size_t stop_idx;  // which stop string
  std::size_t end;       // bytes of the piece up to and including the last byte of the match
};

class StopMatcher {
 public:
  static constexpr std::size_t kMaxStops = 256;
  static constexpr std::size_t kMaxStopBytes = 4096;  // of one stop string

  // Throws std::invalid_argument for an empty stop string, one over kMaxStopBytes, or more than kMaxStops.
  explicit StopMatcher(std::vector<std::string> stops);

  // Reads `piece` up to the end of the first match, or all of it when there is none. To go on after a match, call
  // again with the rest: matches that overlap the last one are found too. O(piece bytes x stops), amortised.
  std::optional<StopMatch> advance(std::string_view piece);

  // Bytes at the end of the text read that could be the beginning of a stop string: the longest such tail. O(stops).
  std::size_t n_held() const;

  // Precondition: stop_idx is below the number of stop strings.
  const std::string& stop(std::size_t stop_idx) const { return patterns_[stop_idx].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<std::uint16_t> border;  // [i] length of the longest proper border of the first i + 1 bytes of text
    std::uint16_t n_matched = 0;        // bytes of text that the end of the text read matches; < text.size()
  };
  // True when `byte` completes the pattern.
  static bool step(Pattern& pattern, char byte);

  std::vector<Pattern> patterns_;
};

}  // namespace astrai
