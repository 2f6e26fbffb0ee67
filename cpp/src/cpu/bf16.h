// bfloat16 is the upper half of a float32; kept as its 16 bits.
#pragma once

#include <cstdint>

#include "float_bits.h"

namespace astrai {

inline float float_from_bf16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace astrai
