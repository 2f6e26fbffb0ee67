// attn_paged_prefill for sm_90a: a thread block works through a list of tiles of rows, and the copies of the next tile
// start while the last products and the result of this one are under way. A consumer issues Q K(i+1)^T before P(i) V(i), so
// that its softmax runs beside its own product, and the consumers take turns at issuing, so that it also runs beside the
// others'. Copies are issued in the order of their use: K0 Q, K1, V0, K2, V1, ...
//
//   shared memory: Q [kQBuffers][kRows], K [kStages][kKeys], V [kStages][kKeys], barriers, the list
#pragma once

#include "attention/prefill_sm90.cuh"
#include "attention/prefill_splits.cuh"
#include "common/pdl.cuh"

namespace astrai {

// How a launch's work is cut into items: one for each tile of a thread block's rows, or split of it, and each head group.
struct PrefillSchedule {
  int n_items;
  int n_rounds;  // items of the longest list
};

struct PrefillItem {
  PrefillWork work;
  uint16_t first_head, kv_head;
  int part_row;  // of the workspace, for the first row; -1: the rows are written to out
};

// Addresses in shared memory. full: the copies have landed; empty: every consumer is done with it.
template <int kHeadDim>
struct PrefillSm90Memory {
  using Shape = PrefillSm90Shape<kHeadDim>;
  static constexpr int kStages = Shape::kStages, kQBuffers = Shape::kQBuffers;
  static constexpr int kBarriers = 2 * kQBuffers + 4 * kStages;
  static constexpr int kMaxItems = 40;  // of one thread block's list
  static constexpr int kBytes = 1024 + kQBuffers * Shape::kQBytes + 2 * kStages * Shape::kTileBytes + kBarriers * 8 +
                                kMaxItems * static_cast<int>(sizeof(PrefillItem));
  static_assert(kBytes <= 227 * 1024);
  uint32_t base;

  __device__ __forceinline__ explicit PrefillSm90Memory(const void* shared)
      : base((shared_address(shared) + 1023) & ~1023u) {}
  __device__ __forceinline__ uint32_t q(int buffer) const { return base + buffer * Shape::kQBytes; }
  __device__ __forceinline__ uint32_t k(int stage) const { return q(kQBuffers) + stage * Shape::kTileBytes; }
  __device__ __forceinline__ uint32_t v(int stage) const { return k(kStages + stage); }
  __device__ __forceinline__ uint32_t q_full(int buffer) const { return k(2 * kStages) + buffer * 8; }
  __device__ __forceinline__ uint32_t q_empty(int buffer) const { return q_full(kQBuffers + buffer); }
  __device__ __forceinline__ uint32_t k_full(int stage) const { return q_full(2 * kQBuffers + stage); }
  __device__ __forceinline__ uint32_t v_full(int stage) const { return k_full(kStages + stage); }
  __device__ __forceinline__ uint32_t k_empty(int stage) const { return k_full(2 * kStages + stage); }
  __device__ __forceinline__ uint32_t v_empty(int stage) const { return k_full(3 * kStages + stage); }
  __device__ __forceinline__ PrefillItem* items() const {
    return static_cast<PrefillItem*>(__cvta_shared_to_generic(q_full(kBarriers)));
  }
};

// Item `round` of this thread block. Items are ordered by tile as find_prefill_work does, then by head group; every other
// round deals them in reverse, so that lists of items of falling cost come out even.
template <int kHeadDim>
__device__ __forceinline__ PrefillItem find_prefill_item(const PagedPrefillArgs& args, const PrefillSchedule& schedule,
                                                         const PrefillSplits& splits, int round) {
  const int n_blocks = gridDim.x;
  const int place = round % 2 == 0 ? blockIdx.x : n_blocks - 1 - blockIdx.x;
  const int index = round * n_blocks + place;
  PrefillItem item{};
  if (index >= schedule.n_items) return item;
  const int group = index % splits.n_head_groups, first_head = group * args.heads_per_tile;
  PrefillPart part = find_prefill_part(splits, index / splits.n_head_groups, group);
  item.work = find_prefill_work(args, part.block, PrefillSm90Shape<kHeadDim>::kRows / args.heads_per_tile);
  take_split(splits, part, item.work);
  item.first_head = static_cast<uint16_t>(first_head);
  item.kv_head = static_cast<uint16_t>(first_head / (args.n_heads / args.n_kv_heads));
  item.part_row = part.row;
  return item;
}

// Starts the copy of an item's rows of Q.
template <typename T, int kHeadDim>
__device__ __forceinline__ void copy_queries(const PagedPrefillArgs& args, const PrefillItem& item, uint32_t to) {
  using Shape = PrefillSm90Shape<kHeadDim>;
#pragma unroll 1
  for (int row = threadIdx.x / 8; row < Shape::kRows; row += kWarpgroup / 8) {
    // Rows past the end repeat the last token and are not stored.
    const int token = item.work.first_row + min(row / args.heads_per_tile, item.work.n_tokens - 1);
    const T* from = static_cast<const T*>(args.q) + token * args.q_strides[0] +
                    (item.first_head + row % args.heads_per_tile) * args.q_strides[1] + threadIdx.x % 8 * 8;
    const uint32_t place = row * kPanelRowBytes + ((threadIdx.x % 8 ^ (row & 7)) << 4);
#pragma unroll
    for (int panel = 0; panel < Shape::kPanels; ++panel) {
      cp_async_16(to + place + panel * Shape::kQPanelBytes, from + panel * 64, 16);
    }
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void produce(const PagedPrefillArgs& args, const PrefillSm90Memory<kHeadDim>& memory,
                                        int n_rounds) {
  using Shape = PrefillSm90Shape<kHeadDim>;
  using Copier = RowCopier<Shape::kKeys>;
  using Stages = Ring<Shape::kStages>;
  using Buffers = Ring<Shape::kQBuffers>;
  const Copier copier;
  // Starts the copy of the tile whose slots the lanes hold. What an item has in shared memory is read for each tile again:
  // the producer's registers are few.
  const auto copy_tile = [&](uint32_t to, const void* cache, const int64_t (&strides)[2], int kv_head, int slot) {
    const T* head = static_cast<const T*>(cache) + kv_head * strides[1];
    const uint32_t row_chunks = static_cast<uint32_t>(strides[0] >> 3);  // attn_paged_prefill() saw that 32 bits suffice
    copier.template copy<Shape::kPanels>(to, reinterpret_cast<const uint4*>(head) + threadIdx.x % 8,
                                         slot < 0 ? Copier::kNoRow : slot * row_chunks);
  };
  int n_q = 0, n_k = 0;  // tiles of Q and K that were copied; V is one behind
  for (int round = 0; round < n_rounds; ++round) {
    const PrefillItem& item = memory.items()[round];
    if (item.work.n_tokens == 0) continue;
    const auto read_slot = [&](int key) {  // lanes without a row of their own read none
      return copier.lane < Copier::kWarpRows && key < item.work.key_end ? item.work.slots[key] : -1;
    };
    int tile = item.work.key_begin / Shape::kKeys;
    bool is_first = true;
    const auto end_tile = [&] { return (item.work.key_end + Shape::kKeys - 1) / Shape::kKeys; };
    int slot = read_slot(tile * Shape::kKeys + copier.own_row), v_slot = -1;
    for (; tile <= end_tile(); ++tile) {  // K of tile, V of the one before
      const int next_slot = read_slot((tile + 1) * Shape::kKeys + copier.own_row);
      if (tile < end_tile()) {
        const int stage = Stages::place(n_k);
        barrier_wait(memory.k_empty(stage), Stages::parity(n_k) ^ 1);
        copy_tile(memory.k(stage), args.k_cache, args.k_strides, item.kv_head, slot);
        barrier_arrive_after_copies(memory.k_full(stage));
      }
      if (is_first) {
        is_first = false;
        const int buffer = Buffers::place(n_q);
        barrier_wait(memory.q_empty(buffer), Buffers::parity(n_q) ^ 1);
        copy_queries<T, kHeadDim>(args, item, memory.q(buffer));
        barrier_arrive_after_copies(memory.q_full(buffer));
        ++n_q;
      } else {
        const int stage = Stages::place(n_k - 1);
        barrier_wait(memory.v_empty(stage), Stages::parity(n_k - 1) ^ 1);
        copy_tile(memory.v(stage), args.v_cache, args.v_strides, item.kv_head, v_slot);
        barrier_arrive_after_copies(memory.v_full(stage));
      }
      n_k += tile < end_tile();
      v_slot = slot;
      slot = next_slot;
    }
  }
  cp_async_wait<0>();
}

// Writes the lane's two rows, 16 bytes at a time.
template <typename T, int kHeadDim>
__device__ __forceinline__ void store_rows(const PagedPrefillArgs& args, const PrefillItem& item, int first_row,
                                           const float (&o)[kHeadDim / 2], const RowSoftmax (&softmax)[2], float scale) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 8, token = row / args.heads_per_tile;
    const int head = item.first_head + row % args.heads_per_tile;
    const float sum = quad_sum(softmax[half].sum);
    const float factor = sum == 0.f ? 0.f : 1.f / sum;  // a row that saw no key gives 0
    const bool is_stored = token < item.work.n_tokens;
    T* out = static_cast<T*>(args.out) + (item.work.first_row + token) * args.out_strides[0] +
             head * args.out_strides[1] + lane % 4 * 8;
#pragma unroll
    for (int group = 0; group < kHeadDim / 32; ++group) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = o + (group * 4 + i) * 4 + half * 2;
        words[i] = pack_2<T>(pair[0] * factor, pair[1] * factor);
      }
      transpose_in_quad(words);
      if (is_stored) *reinterpret_cast<uint4*>(out + group * 32) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (args.lse != nullptr && lane % 4 == 0 && is_stored) {
      args.lse[static_cast<int64_t>(item.work.first_row + token) * args.n_heads + head] =
          sum == 0.f ? -INFINITY : softmax[half].max * scale * kLn2 + logf(sum);
    }
  }
}

// store_rows() where the item is a split.
template <int kHeadDim>
__device__ __forceinline__ void store_parts(const PagedPrefillArgs& args, const PrefillSplits& splits,
                                            const PrefillItem& item, int first_row, const float (&o)[kHeadDim / 2],
                                            const RowSoftmax (&softmax)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 8;
    const float sum = quad_sum(softmax[half].sum);
    const auto pair = [&](int n) { return make_float2(o[n * 4 + half * 2], o[n * 4 + half * 2 + 1]); };
    if (row / args.heads_per_tile >= item.work.n_tokens) continue;
    store_part<kHeadDim>(splits, item.part_row + row, pair, softmax[half], sum, scale);
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void consume(const PagedPrefillArgs& args, const PrefillSplits& splits,
                                        const PrefillSm90Memory<kHeadDim>& memory, int n_rounds) {
  using Shape = PrefillSm90Shape<kHeadDim>;
  using Stages = Ring<Shape::kStages>;
  using Buffers = Ring<Shape::kQBuffers>;
  constexpr int kKeys = Shape::kKeys, kOut = kHeadDim / 2;
  const int consumer = threadIdx.x / kWarpgroup - 1, first_row = consumer * 64;
  const int row = first_row + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;  // and row + 8
  const float scale = args.sm_scale * kLog2E;
  const int my_turn = 1 + consumer, next_turn = 1 + (consumer + 1) % Shape::kConsumers;
  if (consumer == Shape::kConsumers - 1) named_arrive(1, 2 * kWarpgroup);  // the first turn is consumer 0's
  int n_q = 0, n_k = 0;  // tiles of Q and K that were used; V is one behind within an item

  for (int round = 0; round < n_rounds; ++round) {
    const PrefillItem& item = memory.items()[round];
    if (item.work.n_tokens == 0) continue;
    const int end_tile = (item.work.key_end + kKeys - 1) / kKeys;
    int tile = item.work.key_begin / kKeys;
    const KeyRange limits[2] = {visible_keys(args, item.work, row / args.heads_per_tile),
                                visible_keys(args, item.work, (row + 8) / args.heads_per_tile)};
    // Key tiles that every row of the warpgroup sees: [all_begin, all_end).
    const int all_begin = (visible_keys(args, item.work, (first_row + 63) / args.heads_per_tile).begin + kKeys - 1) / kKeys;
    const int all_end = visible_keys(args, item.work, first_row / args.heads_per_tile).end / kKeys;
    const int buffer = Buffers::place(n_q);
    const uint64_t q_desc = tile_descriptor(memory.q(buffer) + first_row * kPanelRowBytes);
    RowSoftmax softmax[2];
    float o[kOut] = {}, s[kKeys / 2], factors[2];
    uint32_t p[kKeys / 4];
    const auto wait_for = [](uint32_t full, int n) { barrier_wait(full, Stages::parity(n)); };

    barrier_wait(memory.q_full(buffer), Buffers::parity(n_q));
    if (tile < end_tile) {
      wait_for(memory.k_full(Stages::place(n_k)), n_k);
      fence_async_proxy();
      named_sync(my_turn, 2 * kWarpgroup);
      wgmma_fence();
      issue_scores<T, kHeadDim>(s, q_desc, tile_descriptor(memory.k(Stages::place(n_k))));
      named_arrive(next_turn, 2 * kWarpgroup);
      wgmma_wait<0>();
      barrier_arrive(memory.k_empty(Stages::place(n_k)));
      if (tile < all_begin || tile >= all_end) mask_scores(s, limits, tile * kKeys);
      softmax_tile(s, softmax, factors, scale);
      pack_weights<T>(p, s);

      for (++tile; tile < end_tile; ++tile) {
        const int v_stage = Stages::place(n_k), k_stage = Stages::place(n_k + 1);
        wait_for(memory.k_full(k_stage), n_k + 1);
        wait_for(memory.v_full(v_stage), n_k);
        fence_async_proxy();
        named_sync(my_turn, 2 * kWarpgroup);
        wgmma_fence();
        issue_scores<T, kHeadDim>(s, q_desc, tile_descriptor(memory.k(k_stage)));
        issue_output<T>(o, p, tile_descriptor(memory.v(v_stage), Shape::kPanelBytes));
        named_arrive(next_turn, 2 * kWarpgroup);
        wgmma_wait<1>();
        barrier_arrive(memory.k_empty(k_stage));
        if (tile < all_begin || tile >= all_end) mask_scores(s, limits, tile * kKeys);
        softmax_tile(s, softmax, factors, scale);
        wgmma_wait<0>();
        barrier_arrive(memory.v_empty(v_stage));
        ++n_k;
        // Where no maximum of the warp's rows grew, the factors are exactly 1.
        if (__any_sync(0xffffffffu, factors[0] != 1.f || factors[1] != 1.f)) {
#pragma unroll
          for (int i = 0; i < kOut; ++i) o[i] = __fmul_rn(o[i], factors[i % 4 / 2]);
        }
        pack_weights<T>(p, s);
      }
      barrier_arrive(memory.q_empty(buffer));

      const int v_stage = Stages::place(n_k);
      wait_for(memory.v_full(v_stage), n_k);
      fence_async_proxy();
      wgmma_fence();
      issue_output<T>(o, p, tile_descriptor(memory.v(v_stage), Shape::kPanelBytes));
      wgmma_wait<0>();
      barrier_arrive(memory.v_empty(v_stage));
      ++n_k;
    } else {
      barrier_arrive(memory.q_empty(buffer));
    }
    ++n_q;
    if (item.part_row < 0) {
      store_rows<T, kHeadDim>(args, item, row, o, softmax, scale);
    } else {
      store_parts<kHeadDim>(args, splits, item, row, o, softmax, scale);
    }
  }
}

// soft_cap must be 0, and the places of all slots must be below 2^32 - 1 in chunks of 16 bytes. The body is empty where wgmma does not exist: the launcher picks it on compute capability 9.0 alone.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(PrefillSm90Shape<kHeadDim>::kThreads, 1)
    attn_paged_prefill_sm90_kernel(const __grid_constant__ PagedPrefillArgs args, const PrefillSchedule schedule,
                                   const __grid_constant__ PrefillSplits splits) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = PrefillSm90Shape<kHeadDim>;
  extern __shared__ unsigned char shared[];
  const PrefillSm90Memory<kHeadDim> memory(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kQBuffers; ++i) {
      barrier_init(memory.q_full(i), kWarpgroup);
      barrier_init(memory.q_empty(i), Shape::kConsumers * kWarpgroup);
    }
    for (int i = 0; i < 2 * Shape::kStages; ++i) {
      barrier_init(memory.k_full(i), kWarpgroup);
      barrier_init(memory.k_empty(i), Shape::kConsumers * kWarpgroup);
    }
    barrier_init_fence();
  }
  for (int round = threadIdx.x; round < schedule.n_rounds; round += Shape::kThreads) {
    memory.items()[round] = find_prefill_item<kHeadDim>(args, schedule, splits, round);
  }
  __syncthreads();
  if (splits.n_blocks > 0) let_next_kernel_start();  // the merge
  if (threadIdx.x < kWarpgroup) {
    give_registers<Shape::kProducerRegisters>();
    produce<T, kHeadDim>(args, memory, schedule.n_rounds);
  } else {
    take_registers<Shape::kConsumerRegisters>();
    consume<T, kHeadDim>(args, splits, memory, schedule.n_rounds);
  }
#endif
}

// Launches on stream for a device that is current; defined once for each instance.
template <typename T, int kHeadDim>
void launch_attn_paged_prefill_sm90(const PagedPrefillArgs& args, cudaStream_t stream);

}  // namespace astrai
