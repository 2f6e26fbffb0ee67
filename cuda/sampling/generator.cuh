// Noise as a function of (seed, position, token id): astrai.sampling.generator bit for bit. mix64 is the finalizer of
// SplitMix64 (http://zimbry.blogspot.com/2011/09/better-bit-mixing-improving-on-murmur3s.html, variant 13).
#pragma once

#include <cstdint>

namespace astrai {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio

__device__ __forceinline__ uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ uint64_t row_key(int64_t seed, int64_t position) {
  const uint64_t key = mix64(static_cast<uint64_t>(seed) + kGolden);
  return mix64(key + (static_cast<uint64_t>(position) + 1) * kGolden);
}

__device__ __forceinline__ uint64_t noise_bits(uint64_t key, int id) { return mix64(key + static_cast<uint64_t>(id) * kGolden); }

// The larger half of noise_bits() but for its last bit, from key + id * kGolden.
__device__ __forceinline__ uint32_t noise_head(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  return static_cast<uint32_t>((x ^ (x >> 27)) * 0x94d049bb133111ebull >> 32);
}

// Standard Gumbel noise. 53 random bits, moved by half a step so that neither 0 nor 1 can appear; in float64, because the
// largest noise comes from the numbers nearest to 1. Not inlined: two logarithms are long, and few tokens need them.
inline __device__ __noinline__ float gumbel_noise(uint64_t bits) {
  const double uniform = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  return static_cast<float>(-log(-log(uniform)));
}

// A bound of its error for the function below, where that is finite.
constexpr float kQuickNoiseError = 1e-3f;

// The same noise from 32 of the bits in float32, infinite where they say too little: a first sieve.
__device__ __forceinline__ float quick_gumbel_noise(uint64_t bits) {
  const uint32_t below_one = ~static_cast<uint32_t>(bits >> 32);  // (1 - uniform) * 2^32
  if (below_one < 1u << 14) return __int_as_float(0x7f800000);
  const float rest = static_cast<float>(below_one) * 0x1p-32f;
  // -log(1 - rest): by its series where a logarithm of a number near 1 would lose digits.
  const float exponential = rest < 0.0625f
                                ? rest * (1.0f + rest * (0.5f + rest * (0.33333333f + rest * (0.25f + rest * 0.2f))))
                                : -__logf(static_cast<float>(static_cast<uint32_t>(bits >> 32)) * 0x1p-32f + 0x1p-33f);
  return -__logf(exponential);
}

}  // namespace astrai
