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
