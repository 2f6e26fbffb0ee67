// Turns bytes that arrive in any cuts into text of whole UTF-8 characters.
//
// A sequence that may still become a character is held until its next byte comes. What can never become one turns
// into U+FFFD as soon as that is known: one for each maximal subpart of an ill-formed sequence (Unicode 16.0, section
// 3.9, "U+FFFD Substitution of Maximal Subparts"), which is also what Python's bytes.decode("utf-8", "replace") does.
// The one difference: a sequence cut off by the end of the text is in neither the text nor replaced; it stays held.
// Single-threaded; a copy goes on from where the original is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace astrai {

class Utf8Assembler {
 public:
  // Appends to `text` every character that `bytes`, after what is held, complete. O(bytes).
  void push(std::string_view bytes, std::string& text);

  // Bytes held: 0 to 3, always the beginning of one well-formed character.
  std::size_t n_held() const { return n_held_; }

 private:
  void start(std::uint8_t byte, std::string& text);

  char held_[4] = {};
  std::uint8_t n_held_ = 0;
  std::uint8_t n_missing_ = 0;        // continuation bytes that the held sequence still needs
  std::uint8_t next_min_ = 0x80;      // the range of the next continuation byte; narrower than 80..BF after
  std::uint8_t next_max_ = 0xBF;      //   E0, ED, F0 and F4 (overlong forms, surrogates, above U+10FFFF)
};

}  // namespace astrai
