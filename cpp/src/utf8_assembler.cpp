#include "astrai/utf8_assembler.h"

namespace astrai {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
}

// Unicode 16.0, table 3-7, "Well-Formed UTF-8 Byte Sequences": what a first byte asks of those after it.
void Utf8Assembler::start(std::uint8_t byte, std::string& text) {
  if (byte < 0x80) {
    text.push_back(static_cast<char>(byte));
    return;
  }
  if (byte < 0xC2 || byte > 0xF4) {  // a continuation byte without a start, an overlong form, above U+10FFFF
    text += kReplacement;
    return;
  }
  held_[0] = static_cast<char>(byte);
  n_held_ = 1;
  n_missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  next_min_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  next_max_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
}

void Utf8Assembler::push(std::string_view bytes, std::string& text) {
  for (const char c : bytes) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (n_held_ == 0) {
      start(byte, text);
      continue;
    }
    if (byte < next_min_ || byte > next_max_) {
      text += kReplacement;  // the held bytes are a maximal subpart; this byte begins something else
      n_held_ = 0;
      start(byte, text);
      continue;
    }
    held_[n_held_++] = c;
    next_min_ = 0x80;
    next_max_ = 0xBF;
    if (--n_missing_ == 0) {
      text.append(held_, n_held_);
      n_held_ = 0;
    }
  }
}

}  // namespace astrai
