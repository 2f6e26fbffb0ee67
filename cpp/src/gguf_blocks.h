// How each block format spells its values. Layouts: ggml's ggml-common.h; formulas: dequantize_row_* in ggml-quants.c
// (https://github.com/ggml-org/ggml/tree/master/src). A decode() writes kValues floats of one block.
//
// Included by dequantize.cpp alone, which is compiled without contraction of a * b + c: one rounding less would be
// another number than ggml's.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/bf16.h"
#include "half.h"

namespace astrai {

inline float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return float_from_half(bits);
}

constexpr float to_float(int value) { return static_cast<float>(value); }

// ---- numbers as they are: blocks of one value

struct F32 {
  static constexpr int kValues = 1, kBytes = 4;
  static void decode(const uint8_t* block, float* out) { std::memcpy(out, block, sizeof(float)); }
};

struct F16 {
  static constexpr int kValues = 1, kBytes = 2;
  static void decode(const uint8_t* block, float* out) { *out = half_at(block); }
};

struct BF16 {
  static constexpr int kValues = 1, kBytes = 2;
  static void decode(const uint8_t* block, float* out) {
    uint16_t bits;
    std::memcpy(&bits, block, sizeof(bits));
    *out = float_from_bf16(bits);
  }
};

// ---- blocks of 32: one scale d, for some a minimum m. Low nibbles are the first 16 values, high ones the last 16.

struct Q4_0 {  // d | nibbles[16]
  static constexpr int kValues = 32, kBytes = 18;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block);
    const uint8_t* nibbles = block + 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = d * to_float((nibbles[i] & 15) - 8);
      out[i + 16] = d * to_float((nibbles[i] >> 4) - 8);
    }
  }
};

struct Q4_1 {  // d | m | nibbles[16]
  static constexpr int kValues = 32, kBytes = 20;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    const uint8_t* nibbles = block + 4;
    for (int i = 0; i < 16; ++i) {
      out[i] = d * to_float(nibbles[i] & 15) + m;
      out[i + 16] = d * to_float(nibbles[i] >> 4) + m;
    }
  }
};

// Bit i of fifths is the fifth bit of value i.
inline uint32_t fifths_at(const uint8_t* bytes) {
  uint32_t fifths;
  std::memcpy(&fifths, bytes, sizeof(fifths));
  return fifths;
}

struct Q5_0 {  // d | fifths u32 | nibbles[16]
  static constexpr int kValues = 32, kBytes = 22;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block);
    const uint32_t fifths = fifths_at(block + 2);
    const uint8_t* nibbles = block + 6;
    for (int i = 0; i < 16; ++i) {
      const int low = (nibbles[i] & 15) | static_cast<int>((fifths >> i & 1) << 4);
      const int high = (nibbles[i] >> 4) | static_cast<int>((fifths >> (i + 16) & 1) << 4);
      out[i] = d * to_float(low - 16);
      out[i + 16] = d * to_float(high - 16);
    }
  }
};

struct Q5_1 {  // d | m | fifths u32 | nibbles[16]
  static constexpr int kValues = 32, kBytes = 24;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    const uint32_t fifths = fifths_at(block + 4);
    const uint8_t* nibbles = block + 8;
    for (int i = 0; i < 16; ++i) {
      const int low = (nibbles[i] & 15) | static_cast<int>((fifths >> i & 1) << 4);
      const int high = (nibbles[i] >> 4) | static_cast<int>((fifths >> (i + 16) & 1) << 4);
      out[i] = d * to_float(low) + m;
      out[i + 16] = d * to_float(high) + m;
    }
  }
};

struct Q8_0 {  // d | int8[32]
  static constexpr int kValues = 32, kBytes = 34;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block);
    for (int i = 0; i < 32; ++i) out[i] = to_float(static_cast<int8_t>(block[2 + i])) * d;
  }
};

// What the 16 codes of IQ4 stand for: closer together around zero, where weights are.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct IQ4_NL {  // d | nibbles[16]
  static constexpr int kValues = 32, kBytes = 18;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block);
    const uint8_t* nibbles = block + 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = d * to_float(kIq4Values[nibbles[i] & 15]);
      out[i + 16] = d * to_float(kIq4Values[nibbles[i] >> 4]);
    }
  }
};

// ---- blocks of 256: scales (and minima) of runs of 16 or 32 values, which d (and dmin) scale in turn

struct Q2_K {  // run scales and minima, 4 bits each [16] | pairs[64] | d | dmin. Runs of 16
  static constexpr int kValues = 256, kBytes = 84;
  static void decode(const uint8_t* block, float* out) {
    const uint8_t* pairs = block + 16;
    const float d = half_at(block + 80), dmin = half_at(block + 82);
    for (int run = 0; run < 16; ++run) {
      const float scale = d * to_float(block[run] & 15), minimum = dmin * to_float(block[run] >> 4);
      const uint8_t* bytes = pairs + run / 8 * 32 + run % 2 * 16;
      const int shift = run % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) out[run * 16 + i] = scale * to_float(bytes[i] >> shift & 3) - minimum;
    }
  }
};

struct Q3_K {  // third bits[32] | pairs[64] | run scales, 6 bits each [12] | d. Runs of 16
  static constexpr int kValues = 256, kBytes = 110;
  static void decode(const uint8_t* block, float* out) {
    const uint8_t *pairs = block + 32, *packed = block + 96;
    const float d = half_at(block + 108);
    for (int run = 0; run < 16; ++run) {
      // Four bits of a scale are a nibble of the first eight bytes, two more are in the last four.
      const int low = packed[run % 8] >> (run / 8 * 4) & 15;
      const int high = packed[8 + run % 4] >> (run / 4 * 2) & 3;
      const float scale = d * to_float((low | high << 4) - 32);
      const uint8_t* bytes = pairs + run / 8 * 32 + run % 2 * 16;
      const uint8_t* thirds = block + run % 2 * 16;
      const int shift = run % 8 / 2 * 2, third = run / 2;
      for (int i = 0; i < 16; ++i) {
        const int offset = (thirds[i] >> third & 1) != 0 ? 0 : 4;  // a bit that is set means no offset
        out[run * 16 + i] = scale * to_float((bytes[i] >> shift & 3) - offset);
      }
    }
  }
};

// Scale and minimum of run 0..7 in the 12 bytes of Q4_K and Q5_K, 6 bits each: those of the first four runs are the low
// bits of bytes 0..7, the others a nibble of bytes 8..11 under the top bits of bytes 0..7.
struct RunScale {
  int scale, minimum;
  RunScale(const uint8_t* packed, int run) {
    if (run < 4) {
      scale = packed[run] & 63;
      minimum = packed[run + 4] & 63;
    } else {
      scale = (packed[run + 4] & 15) | packed[run - 4] >> 6 << 4;
      minimum = packed[run + 4] >> 4 | packed[run] >> 6 << 4;
    }
  }
};

struct Q4_K {  // d | dmin | run scales and minima[12] | nibbles[128]. Runs of 32
  static constexpr int kValues = 256, kBytes = 144;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block), dmin = half_at(block + 2);
    for (int run = 0; run < 8; ++run) {
      const RunScale packed(block + 4, run);
      const float scale = d * to_float(packed.scale), minimum = dmin * to_float(packed.minimum);
      const uint8_t* nibbles = block + 16 + run / 2 * 32;
      const int shift = run % 2 * 4;
      for (int i = 0; i < 32; ++i) out[run * 32 + i] = scale * to_float(nibbles[i] >> shift & 15) - minimum;
    }
  }
};

struct Q5_K {  // d | dmin | run scales and minima[12] | fifth bits[32] | nibbles[128]. Runs of 32
  static constexpr int kValues = 256, kBytes = 176;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block), dmin = half_at(block + 2);
    const uint8_t* fifths = block + 16;
    for (int run = 0; run < 8; ++run) {
      const RunScale packed(block + 4, run);
      const float scale = d * to_float(packed.scale), minimum = dmin * to_float(packed.minimum);
      const uint8_t* nibbles = block + 48 + run / 2 * 32;
      const int shift = run % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        const int value = (nibbles[i] >> shift & 15) | (fifths[i] >> run & 1) << 4;
        out[run * 32 + i] = scale * to_float(value) - minimum;
      }
    }
  }
};

struct Q6_K {  // nibbles[128] | top pairs[64] | run scales int8[16] | d. Runs of 16
  static constexpr int kValues = 256, kBytes = 210;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block + 208);
    for (int run = 0; run < 16; ++run) {
      const float scale = d * to_float(static_cast<int8_t>(block[192 + run]));
      const uint8_t* nibbles = block + run / 8 * 64 + run % 4 * 16;
      const uint8_t* pairs = block + 128 + run / 8 * 32 + run % 2 * 16;
      const int nibble_shift = run % 8 / 4 * 4, pair_shift = run % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) {
        const int value = (nibbles[i] >> nibble_shift & 15) | (pairs[i] >> pair_shift & 3) << 4;
        out[run * 16 + i] = scale * to_float(value - 32);
      }
    }
  }
};

struct IQ4_XS {  // d | top pairs of run scales u16 | their nibbles[4] | nibbles[128]. Runs of 32
  static constexpr int kValues = 256, kBytes = 136;
  static void decode(const uint8_t* block, float* out) {
    const float d = half_at(block);
    uint16_t pairs;
    std::memcpy(&pairs, block + 2, sizeof(pairs));
    for (int run = 0; run < 8; ++run) {
      const int low = block[4 + run / 2] >> (run % 2 * 4) & 15;
      const float scale = d * to_float((low | (pairs >> run * 2 & 3) << 4) - 32);
      const uint8_t* nibbles = block + 8 + run * 16;
      for (int i = 0; i < 16; ++i) {
        out[run * 32 + i] = scale * to_float(kIq4Values[nibbles[i] & 15]);
        out[run * 32 + i + 16] = scale * to_float(kIq4Values[nibbles[i] >> 4]);
      }
    }
  }
};

}  // namespace astrai
