// attn_paged_prefill for sm_80 and newer: FlashAttention-2 (Dao, 2023) over a paged pool. A warp owns 16 rows of the
// block's tile and walks the key tiles; keys and values come by cp.async through the page table, the next tile while this
// one is used. S's accumulators are the A operand of P V as they lie, so the weights never leave the registers.
//
//   shared memory: Q [kRows], then K [2][kKeys], V [2][kKeys], rows of head_dim elements, chunks swizzled
#pragma once

#include "attention/prefill_splits.cuh"
#include "common/pdl.cuh"
#include "common/warp_mma.cuh"

namespace astrai {

template <int kHeadDim>
struct PrefillShape {
  static constexpr int kRows = kHeadDim <= 128 ? 128 : 64;  // of one block; its tokens are kRows / heads_per_tile
  static constexpr int kKeys = kHeadDim <= 128 ? 64 : 32;   // of one key tile
  static constexpr int kThreads = kRows * 2;                // 16 rows a warp
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kSharedBytes = (kRows + 4 * kKeys) * kRowBytes;
  static constexpr bool kKeepsQ = kHeadDim <= 128;  // Q's fragments stay in registers; else they are read each time
};

// Byte offset of 16-byte chunk `chunk` of row `row` in a tile. The exclusive or spreads a chunk index of eight successive
// rows over all banks, also where rows are an odd multiple of 64 bytes.
template <int kRowBytes>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  const int turn = kRowBytes % 128 == 0 ? row & 7 : (row >> 1) & 3;
  return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ turn) << 4));
}

// The slots of the rows of a key tile that one thread copies, read ahead of the copies.
template <int kHeadDim>
struct KeyTileSlots {
  using Shape = PrefillShape<kHeadDim>;
  static constexpr int kChunks = kHeadDim / 8, kCopies = Shape::kKeys * kChunks / Shape::kThreads;
  static constexpr bool kWarpHasRow = kChunks == 32;  // a copy of a warp is one row: lane i holds the slot of copy i
  int slots[kWarpHasRow ? 1 : kCopies];               // negative past the end

  // Of the tile that starts at first_key; nothing at or past end is read.
  __device__ __forceinline__ void read(const int32_t* table, int first_key, int end) {
#pragma unroll
    for (int i = 0; i < (kWarpHasRow ? 1 : kCopies); ++i) {
      const int copy = kWarpHasRow ? threadIdx.x % 32 % kCopies : i;
      const int key = first_key + (threadIdx.x + copy * Shape::kThreads) / kChunks;
      slots[i] = key < end ? table[key] : -1;
    }
  }

  // Starts the copy of the tile's rows of K or V, zeros past the end.
  __device__ __forceinline__ void copy(uint32_t to, const void* cache, int64_t slot_stride) const {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int item = threadIdx.x + i * Shape::kThreads, row = item / kChunks, chunk = item % kChunks;
      const int slot = kWarpHasRow ? __shfl_sync(0xffffffffu, slots[0], i) : slots[kWarpHasRow ? 0 : i];
      const auto* from = static_cast<const uint16_t*>(cache) + max(slot, 0) * slot_stride + chunk * 8;
      cp_async_16(to + swizzled<Shape::kRowBytes>(row, chunk), from, slot < 0 ? 0 : 16);
    }
  }
};

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(PrefillShape<kHeadDim>::kThreads)
    attn_paged_prefill_kernel(const __grid_constant__ PagedPrefillArgs args, const PrefillSplits splits) {
  using Shape = PrefillShape<kHeadDim>;
  constexpr int kKeys = Shape::kKeys, kRowBytes = Shape::kRowBytes, kChunks = kHeadDim / 8;
  constexpr int kQCopies = Shape::kRows * kChunks / Shape::kThreads;
  constexpr int kSteps = kHeadDim / 16;  // of Q K^T's inner dimension
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int part_row;  // of PrefillPart; the loop has no register for it

  const int heads = args.heads_per_tile;
  PrefillPart part = find_prefill_part(splits, blockIdx.x, blockIdx.y);
  PrefillWork work = find_prefill_work(args, part.block, Shape::kRows / heads);
  take_split(splits, part, work);
  if (threadIdx.x == 0) part_row = part.row;
  if (splits.n_blocks > 0) let_next_kernel_start();  // the merge
  if (work.n_tokens == 0) return;
  const int first_head = blockIdx.y * heads, kv_head = first_head / (args.n_heads / args.n_kv_heads);
  const T* k_cache = static_cast<const T*>(args.k_cache) + kv_head * args.k_strides[1];
  const T* v_cache = static_cast<const T*>(args.v_cache) + kv_head * args.v_strides[1];
  const uint32_t q_tile = shared_address(shared);
  const uint32_t k_tiles = q_tile + Shape::kRows * kRowBytes, v_tiles = k_tiles + 2 * kKeys * kRowBytes;

#pragma unroll
  for (int i = 0; i < kQCopies; ++i) {
    const int item = threadIdx.x + i * Shape::kThreads, row = item / kChunks, chunk = item % kChunks;
    const int token = min(row / heads, work.n_tokens - 1);  // rows past the end repeat the last token, unstored
    const T* from = static_cast<const T*>(args.q) + (work.first_row + token) * args.q_strides[0] +
                    (first_head + row % heads) * args.q_strides[1] + chunk * 8;
    cp_async_16(q_tile + swizzled<kRowBytes>(row, chunk), from, 16);
  }

  const int first_tile = work.key_begin / kKeys, end_tile = (work.key_end + kKeys - 1) / kKeys;
  KeyTileSlots<kHeadDim> slots;
  slots.read(work.slots, first_tile * kKeys, work.key_end);
  slots.copy(k_tiles, k_cache, args.k_strides[0]);
  cp_async_commit();  // Q and the first K
  slots.copy(v_tiles, v_cache, args.v_strides[0]);
  cp_async_commit();
  slots.read(work.slots, (first_tile + 1) * kKeys, work.key_end);

  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
  const int tokens[2] = {(warp_row + lane / 4) / heads, (warp_row + lane / 4 + 8) / heads};  // of the accumulators
  // Scores are soft_cap * tanh(q k sm_scale / soft_cap): inner is the factor within tanh, scale the one outside, log2(e)
  // included, so that weights are powers of 2.
  const float inner = args.soft_cap > 0 ? args.sm_scale / args.soft_cap : 0.f;
  const float scale = (args.soft_cap > 0 ? args.soft_cap : args.sm_scale) * kLog2E;
  RowSoftmax softmax[2];
  float o[kHeadDim / 8][4] = {};
  uint32_t q[Shape::kKeepsQ ? kSteps : 1][4];
  const int a_row = warp_row + lane % 16, a_chunk = lane / 16;            // of ldmatrix for Q, and for V
  const int b_row = lane / 16 * 8 + lane % 8, b_chunk = lane / 8 % 2;     // and for K

  for (int tile = first_tile; tile < end_tile; ++tile) {
    const int stage = (tile - first_tile) & 1, first_key = tile * kKeys;
    const uint32_t k_tile = k_tiles + stage * kKeys * kRowBytes, v_tile = v_tiles + stage * kKeys * kRowBytes;
    const uint32_t next = (stage ^ 1) * kKeys * kRowBytes;
    __syncthreads();  // nobody reads the stage that is filled now
    slots.copy(k_tiles + next, k_cache, args.k_strides[0]);  // zeros past the last tile
    cp_async_commit();
    slots.copy(v_tiles + next, v_cache, args.v_strides[0]);
    cp_async_commit();
    slots.read(work.slots, first_key + 2 * kKeys, work.key_end);
    cp_async_wait<3>();
    __syncthreads();

    if (Shape::kKeepsQ && tile == first_tile) {
#pragma unroll
      for (int step = 0; step < (Shape::kKeepsQ ? kSteps : 1); ++step) {
        ldmatrix_x4(q[step], q_tile + swizzled<kRowBytes>(a_row, step * 2 + a_chunk));
      }
    }
    float s[kKeys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t(&a)[4] = q[Shape::kKeepsQ ? step : 0];
      if (!Shape::kKeepsQ) ldmatrix_x4(a, q_tile + swizzled<kRowBytes>(a_row, step * 2 + a_chunk));
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        ldmatrix_x4(b, k_tile + swizzled<kRowBytes>(n * 16 + b_row, step * 2 + b_chunk));
        mma_16x8x16<T>(s[2 * n], a, {b[0], b[1]});
        mma_16x8x16<T>(s[2 * n + 1], a, {b[2], b[3]});
      }
    }

    if (inner > 0) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = tanhf(s[n][i] * inner);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange range = visible_keys(args, work, tokens[half]);
      if (first_key < range.begin || first_key + kKeys > range.end) {
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
          const int key = first_key + i / 2 * 8 + lane % 4 * 2 + i % 2;
          if (key < range.begin || key >= range.end) s[i / 2][half * 2 + i % 2] = -INFINITY;
        }
      }
      float tile_max = -INFINITY;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) tile_max = fmaxf(tile_max, s[i / 2][half * 2 + i % 2]);
      const float factor = softmax[half].raise(quad_max(tile_max), scale);
      const float offset = softmax[half].offset(scale);
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        float& weight = s[i / 2][half * 2 + i % 2];
        weight = exp2_approx(__fmaf_rn(weight, scale, offset));
        softmax[half].sum = __fadd_rn(softmax[half].sum, weight);
      }
#pragma unroll
      for (int i = 0; i < kHeadDim / 4; ++i) {
        float& value = o[i / 2][half * 2 + i % 2];
        value = __fmul_rn(value, factor);
      }
    }

    cp_async_wait<2>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const uint32_t p[4] = {pack_2<T>(s[2 * step][0], s[2 * step][1]), pack_2<T>(s[2 * step][2], s[2 * step][3]),
                             pack_2<T>(s[2 * step + 1][0], s[2 * step + 1][1]),
                             pack_2<T>(s[2 * step + 1][2], s[2 * step + 1][3])};
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, v_tile + swizzled<kRowBytes>(step * 16 + lane % 16, n * 2 + a_chunk));
        mma_16x8x16<T>(o[2 * n], p, {b[0], b[1]});
        mma_16x8x16<T>(o[2 * n + 1], p, {b[2], b[3]});
      }
    }
  }

  __syncthreads();  // part_row, where there was no tile of keys
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = tokens[half], head = first_head + (warp_row + lane / 4 + half * 8) % heads;
    const float sum = quad_sum(softmax[half].sum);
    if (token >= work.n_tokens) continue;
    if (part_row >= 0) {
      const auto pair = [&](int n) { return make_float2(o[n][half * 2], o[n][half * 2 + 1]); };
      store_part<kHeadDim>(splits, part_row + warp_row + lane / 4 + half * 8, pair, softmax[half], sum, scale);
      continue;
    }
    const float factor = sum == 0.f ? 0.f : 1.f / sum;  // a row that saw no key gives 0
    const int64_t row = work.first_row + token;
    T* out = static_cast<T*>(args.out) + row * args.out_strides[0] + head * args.out_strides[1] + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      *reinterpret_cast<uint32_t*>(out + n * 8) = pack_2<T>(o[n][half * 2] * factor, o[n][half * 2 + 1] * factor);
    }
    if (args.lse != nullptr && lane % 4 == 0) {
      args.lse[row * args.n_heads + head] = sum == 0.f ? -INFINITY : softmax[half].max * scale * kLn2 + logf(sum);
    }
  }
}

// Launches on stream for a device that is current; defined once for each instance.
template <typename T, int kHeadDim>
void launch_attn_paged_prefill(const PagedPrefillArgs& args, cudaStream_t stream);

}  // namespace astrai
