// What the sm_90a kernels of attn_paged_prefill share: FlashAttention-3 (Shah et al., 2024) over a paged pool. One
// warpgroup copies keys and values by cp.async through the page table; the others own 64 rows each. A consumer issues
// Q K(i+1)^T before P(i) V(i), so that its softmax runs beside its own product, and the consumers take turns at
// issuing, so that it also runs beside the others'. Tiles are panels of common/wgmma.cuh; copies are issued in the order
// of their use: Q K0, K1, V0, K2, V1, ...
#pragma once

#include "attention/prefill_work.cuh"
#include "common/warp_mma.cuh"
#include "common/wgmma.cuh"

namespace astrai {

constexpr int kWarpgroup = 128;  // threads
constexpr int kPanelRowBytes = 128;

template <int kHeadDim>
struct PrefillSm90Tile {
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;  // warpgroups
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kKeys = 128;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kQPanelBytes = kRows * kPanelRowBytes, kQBytes = kPanels * kQPanelBytes;
  static constexpr int kPanelBytes = kKeys * kPanelRowBytes, kTileBytes = kPanels * kPanelBytes;  // of K or V
};

// A position in the ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;  // of the phase that is filled or read
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// The producer's view of 128 rows: eight threads copy one row's 128-byte segment, and lane l of warp w holds the place of
// row 4 w + l % 4 + l / 4 * 16, which the copies shuffle from it.
struct RowCopier {
  int lane = threadIdx.x % 32;
  int own_row = threadIdx.x / 32 * 4 + lane % 4 + lane / 4 * 16;
  int chunk = threadIdx.x % 8;
  uint32_t place;  // of the thread's first chunk in a panel

  __device__ __forceinline__ RowCopier() {
    const int row = threadIdx.x / 8;
    place = row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4);
  }

  // offset: elements from base to own_row's first, negative for a row of zeros.
  template <typename T, int kRows, int kPanels>
  __device__ __forceinline__ void copy_offsets(uint32_t to, int panel_bytes, const T* base, int64_t offset) const {
    const T* source = base + chunk * 8;
#pragma unroll
    for (int pass = 0; pass < kRows / 16; ++pass) {
      const int64_t own = __shfl_sync(0xffffffffu, offset, pass * 4 + lane / 8);
      const T* from = source + (own < 0 ? 0 : own);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        cp_async_16(to + place + panel * panel_bytes + pass * 16 * kPanelRowBytes, from + panel * 64, own < 0 ? 0 : 16);
      }
    }
  }

  // base: of the thread's chunk. index: of own_row's row, counted in strides; negative for a row of zeros.
  template <typename T, int kRows, int kPanels>
  __device__ __forceinline__ void copy_rows(uint32_t to, int panel_bytes, const T* base, int index, int64_t stride) const {
#pragma unroll 4  // more would not fit in the producer's registers at head_dim 64
    for (int pass = 0; pass < kRows / 16; ++pass) {
      const int row = __shfl_sync(0xffffffffu, index, pass * 4 + lane / 8);
      const T* from = base + max(row, 0) * stride;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        cp_async_16(to + place + panel * panel_bytes + pass * 16 * kPanelRowBytes, from + panel * 64, row < 0 ? 0 : 16);
      }
    }
  }
};

// Starts s = Q K^T of one tile.
template <typename T, int kHeadDim>
__device__ __forceinline__ void issue_scores(float (&s)[64], uint64_t q, uint64_t k) {
  using Shape = PrefillSm90Tile<kHeadDim>;
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const int panel = step / 4, within = step % 4 * 2;  // 16 elements are 32 bytes of a panel's row
    wgmma_ss<T>(s, q + panel * (Shape::kQPanelBytes >> 4) + within, k + panel * (Shape::kPanelBytes >> 4) + within,
                step > 0);
  }
  wgmma_commit();
}

// Starts o += P V of one tile.
template <typename T, int kKeys, int kOut>
__device__ __forceinline__ void issue_output(float (&o)[kOut], const uint32_t (&p)[kKeys / 4], uint64_t v) {
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) wgmma_rs<T>(o, p + step * 4, v + step * (16 * kPanelRowBytes >> 4));
  wgmma_commit();
}

// Turns the scores of one tile into weights; factors[half]: for what was summed before.
__device__ __forceinline__ void softmax_tile(float (&s)[64], RowSoftmax (&softmax)[2], float (&factors)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float tile_max = -INFINITY;
#pragma unroll
    for (int i = 0; i < 32; ++i) tile_max = fmaxf(tile_max, s[i / 2 * 4 + half * 2 + i % 2]);
    factors[half] = softmax[half].raise(quad_max(tile_max), scale);
    const float offset = softmax[half].offset(scale);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float& weight = s[i / 2 * 4 + half * 2 + i % 2];
      weight = exp2_approx(__fmaf_rn(weight, scale, offset));
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) sum = __fadd_rn(sum, s[i / 2 * 4 + half * 2 + i % 2]);
    softmax[half].sum = __fadd_rn(softmax[half].sum, sum);
  }
}

template <typename T>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) p[i] = pack_2<T>(s[2 * i], s[2 * i + 1]);
}

}  // namespace astrai
