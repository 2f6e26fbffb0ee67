#include "astrai/stop_matcher.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace astrai {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    throw std::invalid_argument("stop: got " + std::to_string(stops.size()) + " stop strings; at most " +
                                std::to_string(kMaxStops) + " are accepted");
  }
  patterns_.reserve(stops.size());
  for (std::size_t i = 0; i < stops.size(); ++i) {
    std::string& text = stops[i];
    if (text.empty()) throw std::invalid_argument("stop[" + std::to_string(i) + "] is empty; leave it out");
    if (text.size() > kMaxStopBytes) {
      throw std::invalid_argument("stop[" + std::to_string(i) + "] is " + std::to_string(text.size()) +
                                  " bytes of UTF-8; at most " + std::to_string(kMaxStopBytes) + " are accepted");
    }
    std::vector<std::uint16_t> border(text.size(), 0);
    std::uint16_t length = 0;
    for (std::size_t end = 1; end < text.size(); ++end) {
      while (length > 0 && text[end] != text[length]) length = border[length - 1u];
      if (text[end] == text[length]) ++length;
      border[end] = length;
    }
    patterns_.push_back({std::move(text), std::move(border)});
  }
}

bool StopMatcher::step(Pattern& pattern, char byte) {
  std::uint16_t length = pattern.n_matched;
  while (length > 0 && pattern.text[length] != byte) length = pattern.border[length - 1u];
  if (pattern.text[length] == byte) ++length;
  const bool is_complete = length == pattern.text.size();
  pattern.n_matched = is_complete ? pattern.border[length - 1u] : length;
  return is_complete;
}

std::optional<StopMatch> StopMatcher::advance(std::string_view piece) {
  if (patterns_.empty()) return std::nullopt;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    std::optional<StopMatch> match;
    for (std::size_t p = 0; p < patterns_.size(); ++p) {
      if (!step(patterns_[p], piece[i])) continue;
      if (!match || patterns_[p].text.size() > stop(match->stop_idx).size()) match = StopMatch{p, i + 1};
    }
    if (match) return match;
  }
  return std::nullopt;
}

std::size_t StopMatcher::n_held() const {
  std::size_t longest = 0;
  for (const Pattern& pattern : patterns_) longest = std::max<std::size_t>(longest, pattern.n_matched);
  return longest;
}

}  // namespace astrai
