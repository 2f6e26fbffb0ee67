// IEEE half precision (float16), kept as its 16 bits. Without branches, so that loops over them become vectors.
#pragma once

#include <cstdint>

#include "float_bits.h"

namespace astrai {

// Exact.
inline float float_from_half(uint16_t half) {
  const uint32_t exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
  const uint32_t normal = (exponent + 112u) << 23 | fraction << 13;  // biases 15 and 127
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int>(fraction)) * 0x1p-24f);
  const uint32_t special = 0x7f800000u | fraction << 13;  // infinity, and NaN with its payload
  return float_of((half & 0x8000u) << 16 | (exponent == 0 ? subnormal : exponent == 31 ? special : normal));
}

// Rounds to nearest, ties to even; what is too large becomes infinity, NaN stays NaN.
inline uint16_t half_from_float(float value) {
  constexpr uint32_t kSmallestNormal = (127u - 14u) << 23, kTooLarge = (127u + 16u) << 23, kOneHalf = 126u << 23;
  const uint32_t magnitude = bits_of(value) & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // One step of float32 at 0.5 is one step of subnormal halves, so the sum rounds as it should.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - kOneHalf;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  return static_cast<uint16_t>((bits_of(value) >> 16 & 0x8000u) | (magnitude >= kTooLarge ? special : finite));
}

}  // namespace astrai
