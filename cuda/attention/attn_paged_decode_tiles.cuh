// attn_paged_decode, the part of one warp: its ring of KV tiles in shared memory, filled by cp.async through the token
// table, and the running softmax over them. Warps share nothing here and never wait for each other.
//
// Products are taken with the tokens as rows (S^T = K Q^T, O^T = V^T P^T), so that up to 8 query heads fill the 8 columns
// of an mma and no work is padded to 16 heads.
#pragma once

#include "astrai/attn_paged_decode.h"
#include "common/warp_mma.cuh"

namespace astrai::paged_decode {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// How long the L2 cache keeps what is copied: what is read once leaves before what else is there. The numbers are those of
// createpolicy.fractional for evict_first and evict_normal, always: as constants they take no vector registers.
__device__ __forceinline__ uint64_t cache_policy(bool is_read_once) {
  return is_read_once ? 0x12f0000000000000ull : 0x16f0000000000000ull;
}

// cp_async_16() by a cache_policy().
__device__ __forceinline__ void cp_async_16_by(uint64_t policy, uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
}

// Warp w of a thread block takes tokens w * kWarpTokens and on of every kBlockTokens.
template <int kHeadDim>
struct Shape {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpTokens = kHeadDim <= 64 ? 32 : 16;  // tokens of a tile: 8 KB of keys and values, or more
  static constexpr int kBlockTokens = kWarps * kWarpTokens;
  static constexpr int kMaxSlots = kMaxDecodeSplitLen / kWarps;  // tokens of a split that one warp takes
};

// The positions of one split, as one warp sees them.
struct Span {
  int begin, end;  // visible
  int first;       // position of the warp's first tile; later ones follow every kBlockTokens
};

// The tokens of one (split, KV head), as one warp sees them.
template <typename T>
struct KvRange : Span {
  const int32_t* table;          // token slot of each position of the request
  const T *k, *v;                // slot 0 of this KV head in the caches
  const T *new_k, *new_v;        // this step's row, for position new_pos
  int k_stride, v_stride;
  int new_pos;                   // -1 without new rows
};

template <typename T, int kHeadDim>
struct Ring {
  static constexpr int kWarpTokens = Shape<kHeadDim>::kWarpTokens;
  static constexpr int kBlockTokens = Shape<kHeadDim>::kBlockTokens;
  static constexpr int kRowChunks = kHeadDim * static_cast<int>(sizeof(T)) / 16;  // 16-byte chunks of a row
  static constexpr int kRowBytes = kRowChunks * 16;
  static constexpr int kMatrixBytes = kWarpTokens * kRowBytes;
  static constexpr int kStageBytes = 2 * kMatrixBytes;  // K, then V

  // Chunks are permuted within a row so that the 8 rows of an 8x8 matrix lie in different banks.
  static constexpr int kSwizzleMask = kHeadDim % 64 == 0 ? 7 : 3;
  __device__ static constexpr int swizzle(int row) { return (kHeadDim % 64 == 0 ? row : row >> 1) & kSwizzleMask; }
  __device__ static int offset(int row, int chunk) { return row * kRowBytes + (chunk ^ swizzle(row)) * 16; }

  // The place of chunk 2 * d + c of a row, from that of its chunk c < 2: one operation, or an offset in the instruction.
  __device__ static uint32_t pair_place(uint32_t place, int d) {
    return (place ^ static_cast<uint32_t>((2 * d & kSwizzleMask) * 16)) + (2 * d & ~kSwizzleMask) * 16;
  }

  // The slots of all the warp's tokens, tile by tile, 32 in a register; 0 for a token that is not seen.
  struct Slots {
    int slots[Shape<kHeadDim>::kMaxSlots / 32];

    __device__ void load(const KvRange<T>& range, int lane) {
      constexpr int kTiles = 32 / kWarpTokens;  // of a register
#pragma unroll
      for (int i = 0; i < Shape<kHeadDim>::kMaxSlots / 32; ++i) {
        const int pos = range.first + (i * kTiles + lane / kWarpTokens) * kBlockTokens + lane % kWarpTokens;
        slots[i] = pos >= range.begin && pos < range.end ? range.table[pos] : 0;
      }
    }

    // Brings the rows of the first n tokens towards the L2 cache; new rows come from elsewhere.
    __device__ void prefetch(const KvRange<T>& range, int n, int lane) const {
      constexpr int kTiles = 32 / kWarpTokens;
#pragma unroll
      for (int i = 0; i < Shape<kHeadDim>::kMaxSlots / 32; ++i) {
        if (i * 32 >= n) break;
        const int pos = range.first + (i * kTiles + lane / kWarpTokens) * kBlockTokens + lane % kWarpTokens;
        if (pos < range.begin || pos >= range.end || pos == range.new_pos) continue;
#pragma unroll
        for (int byte = 0; byte < kRowBytes; byte += 128) {
          prefetch_l2(range.k + static_cast<int64_t>(slots[i]) * range.k_stride + byte / sizeof(T));
          prefetch_l2(range.v + static_cast<int64_t>(slots[i]) * range.v_stride + byte / sizeof(T));
        }
      }
    }

    // To shared memory, from which fill() reads them.
    __device__ void store(int* to, int lane) const {
      __syncwarp();  // nobody reads what was there
#pragma unroll
      for (int i = 0; i < Shape<kHeadDim>::kMaxSlots / 32; ++i) to[i * 32 + lane] = slots[i];
      __syncwarp();
    }
  };

  __device__ static int n_tiles(const Span& span) {
    return max(span.end - span.first + kBlockTokens - 1, 0) / kBlockTokens;
  }

  // Starts the copy of the tile at pos, given its tokens' slots, into a stage. policy: cache_policy().
  __device__ static void fill(const KvRange<T>& range, uint64_t policy, uint32_t stage, const int* slots, int pos, int lane) {
    const int plain_end = range.new_pos >= 0 ? min(range.new_pos, range.end) : range.end;
    if (pos >= range.begin && pos + kWarpTokens <= plain_end) {
      fill_plain(range, policy, stage, slots, lane);
    } else {
      fill_edge(range, stage, slots, pos, lane);
    }
  }

 private:
  static constexpr int kChunkLen = 16 / static_cast<int>(sizeof(T));
  static constexpr int kCopies = kWarpTokens * kRowChunks / 32;  // of K, by each lane

  // All tokens are seen and in their slots. The slots are read before the first copy is issued: a copy orders memory.
  __device__ static void fill_plain(const KvRange<T>& range, uint64_t policy, uint32_t stage, const int* slots, int lane) {
    uint32_t rows[kCopies];
    if constexpr (32 % kRowChunks == 0) {
      // A lane keeps its chunk; its rows are `step` apart, which moves its place by whole rows and flips bits of the chunk.
      constexpr int step = 32 / kRowChunks;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) rows[i] = slots[lane / kRowChunks + i * step];
      const uint32_t place = stage + offset(lane / kRowChunks, lane % kRowChunks);
      // In bytes and without signs, a row's address is one multiplication and addition.
      const char* k = reinterpret_cast<const char*>(range.k + lane % kRowChunks * kChunkLen);
      const char* v = reinterpret_cast<const char*>(range.v + lane % kRowChunks * kChunkLen);
      const uint32_t k_bytes = range.k_stride * sizeof(T), v_bytes = range.v_stride * sizeof(T);
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const uint32_t to = (place ^ static_cast<uint32_t>(swizzle(i * step) * 16)) + i * step * kRowBytes;
        cp_async_16_by(policy, to, k + static_cast<uint64_t>(rows[i]) * k_bytes);
        cp_async_16_by(policy, to + kMatrixBytes, v + static_cast<uint64_t>(rows[i]) * v_bytes);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) rows[i] = slots[(i * 32 + lane) / kRowChunks];
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = (i * 32 + lane) / kRowChunks, chunk = (i * 32 + lane) % kRowChunks;
        const uint32_t to = stage + offset(row, chunk);
        cp_async_16_by(policy, to, range.k + static_cast<int64_t>(rows[i]) * range.k_stride + chunk * kChunkLen);
        cp_async_16_by(policy, to + kMatrixBytes, range.v + static_cast<int64_t>(rows[i]) * range.v_stride + chunk * kChunkLen);
      }
    }
  }

  // Some tokens are not seen, which gives zeros, or are this step's, which come from the new rows.
  __device__ static void fill_edge(const KvRange<T>& range, uint32_t stage, const int* slots, int pos, int lane) {
#pragma unroll 1
    for (int item = lane; item < kWarpTokens * kRowChunks; item += 32) {
      const int row = item / kRowChunks, chunk = item % kRowChunks;
      const int64_t slot = slots[row];
      const int n_bytes = pos + row >= range.begin && pos + row < range.end ? 16 : 0;
      const bool is_new = pos + row == range.new_pos;
      const T* k = is_new ? range.new_k : range.k + slot * range.k_stride;
      const T* v = is_new ? range.new_v : range.v + slot * range.v_stride;
      const uint32_t to = stage + offset(row, chunk);
      cp_async_16(to, k + chunk * kChunkLen, n_bytes);
      cp_async_16(to + kMatrixBytes, v + chunk * kChunkLen, n_bytes);
    }
  }
};

// 2^x; what is below the smallest normal number is 0. -inf gives 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Exact at both ends, where exp is 0 or inf.
__device__ __forceinline__ float tanh_by_exp(float x) {
  constexpr float kTwiceLog2E = 2.8853900817779268f;
  return 1.0f - __fdividef(2.0f, exp2_fast(x * kTwiceLog2E) + 1.0f);
}

// The softmax of one warp over the tiles it has seen, for kHeadTiles * 8 query heads. A lane holds columns (query heads)
// 2 * (lane % 4) and the next of each head tile.
template <typename T, int kHeadDim, int kHeadTiles>
struct WarpSoftmax {
  using Tile = Ring<T, kHeadDim>;
  static constexpr int kSubTiles = Tile::kWarpTokens / 16;

  uint32_t q[kHeadDim / 16][kHeadTiles][2];  // Q^T, [dim, head] fragments
  float o[kHeadDim / 16][kHeadTiles][4];     // O^T, [dim, head] sums of weighted values, relative to max
  float max[kHeadTiles][2];                  // largest logit so far in log2 units; -inf before the first visible token
  float sum[kHeadTiles][2];                  // this lane's part of the sum of weights

  __device__ void reset() {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[d][h][i] = 0.0f;
      }
      max[h][0] = max[h][1] = -INFINITY;
      sum[h][0] = sum[h][1] = 0.0f;
    }
  }

  // row: the query row of column lane / 4 of head tile h, null for one that counts as zeros.
  __device__ void load_q(int h, const T* row, int lane) {
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        q[d][h][half] =
            row == nullptr ? 0u : *reinterpret_cast<const uint32_t*>(row + lane % 4 * 2 + d * 16 + half * 8);
      }
    }
  }

  // Logits in log2 units of the tile in a stage: s[i] are tokens 16 i and on, [token, head] fragments. Only the first
  // kUsed head tiles take part, here and in attend(): a column's bits do not depend on the others.
  template <int kUsed>
  __device__ void logits(float (&s)[kSubTiles][kUsed][4], uint32_t stage, float scale_log2, float cap_log2) const {
    const int lane = threadIdx.x % 32;
    float odd[kSubTiles][kUsed][4] = {};  // a second chain of products, for latency
    const uint32_t first = stage + Tile::offset(lane & 15, lane >> 4);
#pragma unroll
    for (int t = 0; t < kSubTiles; ++t) {
#pragma unroll
      for (int h = 0; h < kUsed; ++h) s[t][h][0] = s[t][h][1] = s[t][h][2] = s[t][h][3] = 0.0f;
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t k[4];
        ldmatrix_x4(k, Tile::pair_place(first, d) + t * 16 * Tile::kRowBytes);
#pragma unroll
        for (int h = 0; h < kUsed; ++h) mma_16x8x16<T>(d % 2 == 0 ? s[t][h] : odd[t][h], k, q[d][h]);
      }
#pragma unroll
      for (int h = 0; h < kUsed; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[t][h][i] = (s[t][h][i] + odd[t][h][i]) * scale_log2;
      }
    }
    if (cap_log2 > 0.0f) {
#pragma unroll
      for (int i = 0; i < kSubTiles * kUsed * 4; ++i) {
        float& x = s[i / (kUsed * 4)][i / 4 % kUsed][i % 4];
        x = cap_log2 * tanh_by_exp(x);
      }
    }
  }

  // kTiles tiles, at positions pos, pos + kBlockTokens, ..., of which begin .. end - 1 are seen; the first begins before end.
  // The bits are those of a call for each, and what the tiles do not need of each other overlaps.
  template <int kUsed, int kTiles>
  __device__ void attend(const uint32_t (&stages)[kTiles], int pos, int begin, int end, float scale_log2, float cap_log2) {
    const int lane = threadIdx.x % 32;
    float s[kTiles][kSubTiles][kUsed][4];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      logits<kUsed>(s[j], stages[j], scale_log2, cap_log2);
      hide<kUsed>(s[j], pos + j * Tile::kBlockTokens, begin, end, lane);
    }
    float largest[kTiles][kUsed][2];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int h = 0; h < kUsed; ++h) {
#pragma unroll
        for (int c = 0; c < 2; ++c) largest[j][h][c] = column_max<kUsed>(s[j], h, c);
      }
    }
    float rescale[kTiles][kUsed][2];
    bool has_grown[kTiles] = {};
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int h = 0; h < kUsed; ++h) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float so_far = fmaxf(largest[j][h][c], max[h][c]);
          const float base = so_far == -INFINITY ? 0.0f : so_far;  // -inf - -inf would be NaN
          rescale[j][h][c] = exp2_fast(max[h][c] - base);
          has_grown[j] = has_grown[j] || so_far > max[h][c];
          max[h][c] = so_far;
          float tile_sum = 0.0f;
#pragma unroll
          for (int t = 0; t < kSubTiles; ++t) {
            s[j][t][h][c] = exp2_fast(s[j][t][h][c] - base);
            s[j][t][h][c + 2] = exp2_fast(s[j][t][h][c + 2] - base);
            tile_sum += s[j][t][h][c] + s[j][t][h][c + 2];
          }
          sum[h][c] = fmaf(sum[h][c], rescale[j][h][c], tile_sum);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (j > 0 && pos + j * Tile::kBlockTokens >= end) break;  // nothing was copied to its stage
      // Where no maximum grew every factor is exactly 1, so that skipping changes no bit. A first tile finds sums of 0,
      // and a factor of 0 from a maximum of -inf.
      if (__any_sync(kAllLanes, has_grown[j])) {
#pragma unroll
        for (int d = 0; d < kHeadDim / 16; ++d) {
#pragma unroll
          for (int h = 0; h < kUsed; ++h) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[d][h][i] *= rescale[j][h][i % 2];
          }
        }
      }
      add_values<kUsed>(s[j], stages[j], lane);
    }
  }

 private:
  // -inf for the logits of tokens that are not seen.
  template <int kUsed>
  __device__ static void hide(float (&s)[kSubTiles][kUsed][4], int pos, int begin, int end, int lane) {
    if (pos >= begin && pos + Tile::kWarpTokens <= end) return;
#pragma unroll
    for (int row = 0; row < 2 * kSubTiles; ++row) {
      const int token = pos + row * 8 + lane / 4;
      if (token >= begin && token < end) continue;
#pragma unroll
      for (int h = 0; h < kUsed; ++h) s[row / 2][h][row % 2 * 2] = s[row / 2][h][row % 2 * 2 + 1] = -INFINITY;
    }
  }

  // The largest logit of a tile in column c of this lane's pair.
  template <int kUsed>
  __device__ static float column_max(const float (&s)[kSubTiles][kUsed][4], int h, int c) {
    float largest = fmaxf(s[0][h][c], s[0][h][c + 2]);
#pragma unroll
    for (int t = 1; t < kSubTiles; ++t) largest = fmaxf(largest, fmaxf(s[t][h][c], s[t][h][c + 2]));
#pragma unroll
    for (int step = 4; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    return largest;
  }

  // Adds a tile's values to the sums, by its weights.
  template <int kUsed>
  __device__ void add_values(const float (&weights)[kSubTiles][kUsed][4], uint32_t stage, int lane) {
    const uint32_t first = stage + Tile::kMatrixBytes + Tile::offset((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
    for (int t = 0; t < kSubTiles; ++t) {
      uint32_t p[kUsed][2];  // P^T, [token, head] fragments
#pragma unroll
      for (int h = 0; h < kUsed; ++h) {
        p[h][0] = transpose_8x8(pack_2<T>(weights[t][h][0], weights[t][h][1]));
        p[h][1] = transpose_8x8(pack_2<T>(weights[t][h][2], weights[t][h][3]));
      }
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, Tile::pair_place(first, d) + t * 16 * Tile::kRowBytes);
#pragma unroll
        for (int h = 0; h < kUsed; ++h) mma_16x8x16<T>(o[d][h], v, p[h]);
      }
    }
  }
};

}  // namespace astrai::paged_decode
