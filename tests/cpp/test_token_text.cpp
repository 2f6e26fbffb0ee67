// Token table, UTF-8 assembly, stop matching and text streams; random inputs are in tests/python/text.
#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "astrai/token_text.h"

using namespace astrai;

namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

// Ids 0 to 255 are the bytes, 256 is special "<end>", 257 is "stop", 258 is empty.
std::shared_ptr<const TokenTable> byte_table() {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.push_back(std::string(1, static_cast<char>(byte)));
  pieces.insert(pieces.end(), {"<end>", "stop", ""});
  std::vector<std::uint8_t> special(pieces.size(), 0);
  special[256] = 1;
  return std::make_shared<TokenTable>(pieces, special);
}

TextOptions options_of(std::vector<std::string> stops, std::int64_t max_tokens = 100) {
  TextOptions options;
  options.stops = std::move(stops);
  options.max_tokens = max_tokens;
  return options;
}

std::vector<TextEvent> push(TextStreams& streams, std::int64_t handle, std::int64_t token_id) {
  return streams.push_batch(&handle, 1, &token_id, 1);
}

std::string assembled(std::string_view bytes) {
  Utf8Assembler utf8;
  std::string text;
  for (const char c : bytes) utf8.push(std::string_view(&c, 1), text);
  return text;
}

}  // namespace

TEST_CASE("TokenTable refuses a number of flags that differs from the number of pieces") {
  CHECK_THROWS_WITH_AS(TokenTable({"a", "b"}, {0}),
                       "TokenTable: got 2 pieces and 1 special flags; give one flag for each piece",
                       std::invalid_argument);
}

TEST_CASE("TokenTable gives back every piece, zero bytes and empty pieces too") {
  const std::string zero("\0x", 2);
  const TokenTable table({"", zero, "\xC3"}, {1, 0, 0});
  CHECK(table.n_tokens() == 3);
  CHECK(table.piece(0) == "");
  CHECK(table.piece(1) == zero);
  CHECK(table.piece(2) == "\xC3");
  CHECK(table.is_special(0));
  CHECK_FALSE(table.contains(3));
  CHECK_FALSE(table.contains(-1));
}

TEST_CASE("Utf8Assembler replaces each maximal subpart once") {
  // The rows of table 3-8 to 3-11 in section 3.9 of the Unicode Standard 16.0.
  CHECK(assembled("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") ==
        kReplacement + kReplacement + kReplacement + kReplacement + kReplacement + kReplacement + kReplacement +
            kReplacement + "A");
  CHECK(assembled("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41") ==
        kReplacement + kReplacement + kReplacement + kReplacement + kReplacement + kReplacement + kReplacement +
            kReplacement + "A");
  CHECK(assembled("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42") ==
        kReplacement + kReplacement + kReplacement + kReplacement + kReplacement + "A" + kReplacement + kReplacement +
            "B");
  CHECK(assembled("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") ==
        kReplacement + kReplacement + kReplacement + kReplacement + "A");
}

TEST_CASE("Utf8Assembler holds a character until its last byte") {
  Utf8Assembler utf8;
  std::string text;
  utf8.push("\xF0\x9F\xA7", text);
  CHECK(text.empty());
  CHECK(utf8.n_held() == 3);
  utf8.push("\xAA!", text);
  CHECK(text == "\xF0\x9F\xA7\xAA!");
  CHECK(utf8.n_held() == 0);
}

TEST_CASE("StopMatcher falls back to the longest border") {
  StopMatcher matcher({"aabaaa"});
  CHECK_FALSE(matcher.advance("aabaa"));
  CHECK(matcher.n_held() == 5);
  CHECK_FALSE(matcher.advance("b"));
  CHECK(matcher.n_held() == 3);  // aab
  const auto match = matcher.advance("aaab");
  REQUIRE(match);
  CHECK(match->end == 3);
}

TEST_CASE("StopMatcher prefers the match that is complete first, then the longest") {
  StopMatcher matcher({"bcd", "c", "abc"});
  const auto match = matcher.advance("abcd");
  REQUIRE(match);
  CHECK(match->stop_idx == 2);
  CHECK(match->end == 3);
}

TEST_CASE("StopMatcher refuses empty, huge and too many stop strings") {
  CHECK_THROWS_AS(StopMatcher({"a", ""}), std::invalid_argument);
  CHECK_THROWS_AS(StopMatcher({std::string(StopMatcher::kMaxStopBytes + 1, 'x')}), std::invalid_argument);
  CHECK_THROWS_AS(StopMatcher(std::vector<std::string>(StopMatcher::kMaxStops + 1, "x")), std::invalid_argument);
  CHECK_NOTHROW(StopMatcher({std::string(StopMatcher::kMaxStopBytes, 'x')}));
}

TEST_CASE("a stop string at the last allowed token ends the stream with stop, not length") {
  TextStreams streams(byte_table());
  const auto handle = streams.open(options_of({"ab"}, 2));
  CHECK(push(streams, handle, 'a').empty());
  const auto events = push(streams, handle, 'b');
  REQUIRE(events.size() == 1);
  CHECK(events[0].finish == FinishReason::kStop);
  CHECK(events[0].stop_string == "ab");
  CHECK(events[0].text.empty());
  CHECK(events[0].n_tokens == 2);
}

TEST_CASE("a stop token flushes held text and adds none of its own") {
  TextStreams streams(byte_table());
  TextOptions options = options_of({"no way"});
  options.stop_ids = {257};
  const auto handle = streams.open(options);
  CHECK(push(streams, handle, 'n').empty());
  const auto events = push(streams, handle, 257);
  REQUIRE(events.size() == 1);
  CHECK(events[0].text == "n");
  CHECK(events[0].stop_token == 257);
  CHECK_FALSE(events[0].stop_string);
}

TEST_CASE("a refused batch pushes nothing") {
  TextStreams streams(byte_table());
  const auto first = streams.open(options_of({}));
  const auto second = streams.open(options_of({}));
  streams.close(second);
  const std::int64_t handles[] = {first, second};
  const std::int64_t token_ids[] = {'a', 'b'};
  CHECK_THROWS_AS(streams.push_batch(handles, 2, token_ids, 2), std::invalid_argument);
  CHECK_THROWS_AS(streams.push_batch(handles, 1, token_ids, 2), std::invalid_argument);
  CHECK(push(streams, first, 'c')[0].n_tokens == 1);
  CHECK(streams.text(first) == "c");
}

TEST_CASE("several tokens of one stream in one call make one event, and tokens after its end do not count") {
  TextStreams streams(byte_table());
  const auto handle = streams.open(options_of({"stop"}));
  const std::int64_t handles[] = {handle, handle, handle};
  const std::int64_t token_ids[] = {'x', 257, 'y'};
  const auto events = streams.push_batch(handles, 3, token_ids, 3);
  REQUIRE(events.size() == 1);
  CHECK(events[0].text == "x");
  CHECK(events[0].n_tokens == 2);
  CHECK(events[0].finish == FinishReason::kStop);
  CHECK_THROWS_AS(push(streams, handle, 'z'), std::invalid_argument);
}

TEST_CASE("a closed handle stays invalid after its slot is used again") {
  TextStreams streams(byte_table());
  const auto closed = streams.open(options_of({}));
  streams.close(closed);
  const auto reopened = streams.open(options_of({}));
  CHECK(reopened != closed);
  CHECK_THROWS_AS(streams.close(closed), std::invalid_argument);
  CHECK_THROWS_AS(push(streams, closed, 'a'), std::invalid_argument);
  CHECK(streams.text(reopened).empty());
  CHECK(streams.n_open() == 1);
}
