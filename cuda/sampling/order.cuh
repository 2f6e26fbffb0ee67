// The order of a row's tokens as integers: a larger logit first, of equal logits the lower id.
#pragma once

#include <cstdint>

namespace astrai {

using Place = unsigned long long;  // key << 32 | ~id: no two tokens of a row share one, and the first has the largest

constexpr uint32_t kKeyOfNegInf = 0x007fffffu;
constexpr uint32_t kKeyOfPosInf = 0xff800000u;
constexpr uint32_t kKeyOfNan = 0xffffffffu;  // above everything, so that a maximum shows it

// Rises with the value; -0 and 0 have one key, as they are equal.
__device__ __forceinline__ uint32_t key_of(float value) {
  if (value != value) return kKeyOfNan;
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

__device__ __forceinline__ Place place_of(uint32_t key, int id) {
  return static_cast<Place>(key) << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ uint32_t key_of_place(Place place) { return static_cast<uint32_t>(place >> 32); }
__device__ __forceinline__ int id_of(Place place) { return static_cast<int>(~static_cast<uint32_t>(place)); }

}  // namespace astrai
