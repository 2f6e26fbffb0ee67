// Vectors of kLanes floats in the compiler's own vector types (GCC, Clang), included once per instruction set inside
// that set's namespace. The includer defines kLanes, ASTRAI_TARGET (the target attribute, or nothing) and
// fused_multiply_add(); all else here is the same for every set. No include guard, no includes: see kernels_avx2.cpp.

#define ASTRAI_INLINE ASTRAI_TARGET __attribute__((always_inline)) inline

// A vector type that may lie at any address and alias anything, for loads and stores.
typedef float UnalignedVec __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
typedef uint32_t UnalignedBits __attribute__((vector_size(4 * kLanes), aligned(1), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint16_t HalfBits __attribute__((vector_size(2 * kLanes)));
typedef uint16_t UnalignedHalfBits __attribute__((vector_size(2 * kLanes), aligned(1), may_alias));

ASTRAI_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
ASTRAI_INLINE void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
ASTRAI_INLINE Vec broadcast(float value) { return value - Vec{}; }

// kLanes consecutive bfloat16 values.
ASTRAI_INLINE Vec load(const uint16_t* p) {
  const HalfBits half = *reinterpret_cast<const UnalignedHalfBits*>(p);
  return (Vec)(__builtin_convertvector(half, Bits) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN (see bf16_from_float).
ASTRAI_INLINE void store(uint16_t* p, Vec v) {
  const Bits bits = (Bits)v;
  const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Bits quiet_nan = (bits >> 16) | 0x40u;
  const Bits narrow = v == v ? rounded : quiet_nan;
  *reinterpret_cast<UnalignedHalfBits*>(p) = __builtin_convertvector(narrow, HalfBits);
}

// The first n lanes alone, for the ends of rows; the other lanes are 0.
template <typename T>
ASTRAI_TARGET inline Vec load_part(const T* p, int64_t n) {
  T padded[kLanes] = {};
  std::memcpy(padded, p, sizeof(T) * static_cast<size_t>(n));
  return load(padded);
}
template <typename T>
ASTRAI_TARGET inline void store_part(T* p, Vec v, int64_t n) {
  T padded[kLanes];
  store(padded, v);
  std::memcpy(p, padded, sizeof(T) * static_cast<size_t>(n));
}

// 2 * kLanes consecutive bfloat16 values: those at even places and those at odd places. Half the work of two load()s:
// a 32-bit word holds a pair, and each half of it becomes a float by one shift or one mask. (Little endian.)
struct VecPair {
  Vec even, odd;
};
ASTRAI_INLINE VecPair load_pair(const uint16_t* p) {
  const Bits words = *reinterpret_cast<const UnalignedBits*>(p);
  return {(Vec)(words << 16), (Vec)(words & 0xffff0000u)};
}

// Sum of the lanes: upper half onto lower half until one is left.
ASTRAI_INLINE float sum_of_lanes(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

ASTRAI_INLINE float max_of_lanes(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  float largest = lanes[0];
  for (int i = 1; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

// exp to 2 units in the last place where the result is a normal number; below that about 1e-38 instead of 0, above that
// about 2e38 instead of infinity. NaN stays NaN. Range reduction and polynomial of Cephes' expf (S. Moshier, 1989).
ASTRAI_INLINE Vec exp(Vec v) {
  v = v > 88.0f ? broadcast(88.0f) : v;
  v = v < -87.0f ? broadcast(-87.0f) : v;
  // Adding 1.5 * 2^23 leaves no bits for a fraction: rounds to the nearest integer.
  const Vec shift = broadcast(12582912.0f);
  const Vec n = fused_multiply_add(v, broadcast(1.44269504088896341f), shift) - shift;
  Vec r = fused_multiply_add(n, broadcast(-0.693359375f), v);
  r = fused_multiply_add(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fused_multiply_add(p, r, broadcast(1.3981999507e-3f));
  p = fused_multiply_add(p, r, broadcast(8.3334519073e-3f));
  p = fused_multiply_add(p, r, broadcast(4.1665795894e-2f));
  p = fused_multiply_add(p, r, broadcast(1.6666665459e-1f));
  p = fused_multiply_add(p, r, broadcast(5.0000001201e-1f));
  p = fused_multiply_add(p, r * r, r) + 1.0f;
  const Ints exponent = __builtin_convertvector(n, Ints) + 127;
  return p * (Vec)((Bits)exponent << 23);
}
