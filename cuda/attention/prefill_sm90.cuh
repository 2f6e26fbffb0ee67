// Tiles, copies and products of attn_paged_prefill for sm_90a: FlashAttention-3 (Shah et al., 2024) over a paged pool. One
// warpgroup copies keys and values by cp.async through the page table; the others own 64 rows each. Tiles are panels of
// common/wgmma.cuh.
#pragma once

#include "attention/prefill_work.cuh"
#include "common/warp_mma.cuh"
#include "common/wgmma.cuh"

namespace astrai {

constexpr int kWarpgroup = 128;  // threads
constexpr int kPanelRowBytes = 128;

template <int kHeadDim>
struct PrefillSm90Shape {
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;  // warpgroups
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kKeys = kHeadDim == 256 ? 80 : 128;  // as many as fit
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;    // of K and of V
  static constexpr int kQBuffers = kHeadDim == 256 ? 1 : 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kQPanelBytes = kRows * kPanelRowBytes, kQBytes = kPanels * kQPanelBytes;
  static constexpr int kPanelBytes = kKeys * kPanelRowBytes, kTileBytes = kPanels * kPanelBytes;  // of K or V
};

// The buffer that number n of a row of tiles lies in, and the parity of its phase there.
template <int kSize>
struct Ring {
  static_assert((kSize & (kSize - 1)) == 0, "place and parity are bits of the number");
  static __device__ __forceinline__ int place(int n) { return n % kSize; }
  static __device__ __forceinline__ uint32_t parity(int n) { return static_cast<uint32_t>(n / kSize) & 1; }
};

// The producer's view of a tile of kRows rows: a warp copies kRows / 4 successive ones, whose places in the source its
// lanes hold, four at a time, eight lanes on the 128-byte segment of a row. The producer shares its schedulers with the
// consumers, so every instruction of its loop counts.
template <int kRows>
struct RowCopier {
  static constexpr int kWarpRows = kRows / 4, kPasses = kWarpRows / 4;
  static constexpr uint32_t kNoRow = 0xffffffff;
  static_assert(kRows % 16 == 0 && kWarpRows <= 32);
  int lane = threadIdx.x % 32;
  int own_row = threadIdx.x / 32 * kWarpRows + lane;  // of lanes below kWarpRows
  uint32_t place;                                     // in a panel of the lane's chunk of the first four rows

  __device__ __forceinline__ RowCopier() {
    const int row = threadIdx.x / 32 * kWarpRows + lane / 8;
    place = row * kPanelRowBytes + ((lane % 8 ^ (row & 7)) << 4);
  }

  // base: the lane's chunk of row 0 of the source. own: chunks of 16 bytes from there to own_row's, kNoRow for zeros.
  template <int kPanels>
  __device__ __forceinline__ void copy(uint32_t to, const uint4* base, uint32_t own) const {
    if (__all_sync(0xffffffffu, own != kNoRow || lane >= kWarpRows)) {
      copy_rows<kPanels, false>(to + place, base, own);
    } else {
      copy_rows<kPanels, true>(to + place, base, own);
    }
  }

 private:
  template <int kPanels, bool kHasZeros>
  __device__ __forceinline__ void copy_rows(uint32_t to, const uint4* base, uint32_t own) const {
    constexpr int kAtOnce = kPanels == 1 ? 2 : kPasses;  // more would not fit in the registers
#pragma unroll kAtOnce
    for (int pass = 0; pass < kPasses; ++pass) {
      const uint32_t source = __shfl_sync(0xffffffffu, own, pass * 4 + lane / 8);
      const bool is_row = !kHasZeros || source != kNoRow;
      const uint4* from = base + (is_row ? source : 0);
      // Four rows further on, bit 2 of the row turns, and with it bit 6 of the place.
      const uint32_t row = (pass % 2 == 0 ? to : to ^ 64) + pass * 4 * kPanelRowBytes;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const uint32_t chunk = row + panel * kRows * kPanelRowBytes;
        if (kHasZeros) {
          cp_async_16(chunk, from + panel * 8, is_row ? 16 : 0);
        } else {
          cp_async_16(chunk, from + panel * 8);
        }
      }
    }
  }
};

// Starts s = Q K^T of one tile.
template <typename T, int kHeadDim, int kScores>
__device__ __forceinline__ void issue_scores(float (&s)[kScores], uint64_t q, uint64_t k) {
  using Shape = PrefillSm90Shape<kHeadDim>;
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const int panel = step / 4, within = step % 4 * 2;  // 16 elements are 32 bytes of a panel's row
    Wgmma<T, kScores>::ss(s, q + panel * (Shape::kQPanelBytes >> 4) + within,
                          k + panel * (Shape::kPanelBytes >> 4) + within, step > 0);
  }
  wgmma_commit();
}

// Starts o += P V of one tile.
template <typename T, int kWeights, int kOut>
__device__ __forceinline__ void issue_output(float (&o)[kOut], const uint32_t (&p)[kWeights], uint64_t v) {
#pragma unroll
  for (int step = 0; step < kWeights / 4; ++step) {
    Wgmma<T, kOut>::template rs<true>(o, p + step * 4, v + step * (16 * kPanelRowBytes >> 4), 1);
  }
  wgmma_commit();
}

// Sets the scores of keys that a row does not see to -inf. limits: those of the lane's two rows.
template <int kScores>
__device__ __forceinline__ void mask_scores(float (&s)[kScores], const KeyRange (&limits)[2], int first_key) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = first_key + threadIdx.x % 4 * 2, begin = limits[half].begin - first, end = limits[half].end - first;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int key = i / 2 * 8 + i % 2;
      if (key < begin || key >= end) s[i / 2 * 4 + half * 2 + i % 2] = -INFINITY;
    }
  }
}

// Turns the scores of one tile into weights; factors[half]: for what was summed before. Maxima and sums go by way of four
// registers each, so that one does not wait for the one before.
template <int kScores>
__device__ __forceinline__ void softmax_tile(float (&s)[kScores], RowSoftmax (&softmax)[2], float (&factors)[2],
                                             float scale) {
  float maxima[2][4], sums[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float score = s[i / 2 * 4 + half * 2 + i % 2];
      maxima[half][i % 4] = i < 4 ? score : fmaxf(maxima[half][i % 4], score);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&m)[4] = maxima[half];
    factors[half] = softmax[half].raise(quad_max(fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3]))), scale);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float offset = softmax[half].offset(scale);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      float& weight = s[i / 2 * 4 + half * 2 + i % 2];
      weight = exp2_approx(__fmaf_rn(weight, scale, offset));
      sums[half][i % 4] = i < 4 ? weight : __fadd_rn(sums[half][i % 4], weight);
    }
    const float(&t)[4] = sums[half];
    softmax[half].sum = __fadd_rn(softmax[half].sum, __fadd_rn(__fadd_rn(t[0], t[1]), __fadd_rn(t[2], t[3])));
  }
}

template <typename T, int kScores>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[kScores / 2], const float (&s)[kScores]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) p[i] = pack_2<T>(s[2 * i], s[2 * i + 1]);
}

// Lane i of four gets word i of each of them, in their order.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool is_upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      uint32_t& low = words[i];
      uint32_t& high = words[i + bit];
      const uint32_t other = __shfl_xor_sync(0xffffffffu, is_upper ? low : high, bit);
      if (is_upper) {
        low = other;
      } else {
        high = other;
      }
    }
  }
}

}  // namespace astrai
