// attn_paged_prefill for sm_90a, a list of tiles of rows a thread block: the kernel of head_dim 64. The copies of the next
// tile start while the last products and the result of this one are under way.
//
//   shared memory: Q [2][kRows], K [kStages][kKeys], V [kStages][kKeys], barriers, the list
#pragma once

#include "attention/prefill_sm90.cuh"

namespace astrai {

// How a launch's work is cut into items: one for each tile of a thread block's rows and each head of the tile's.
struct PrefillSchedule {
  int n_tiles;          // of kRows rows
  int heads_per_group;  // items of one head group come before those of the next; divides the tiles' heads
  int n_items;
  int n_rounds;  // items of the longest list
};

// A tile of rows and the key tiles that it sees.
struct PrefillItem {
  PrefillWork work;
  int first_head, first_tile, end_tile;
};

template <int kHeadDim>
struct PrefillListShape : PrefillSm90Tile<kHeadDim> {
  using Tile = PrefillSm90Tile<kHeadDim>;
  static constexpr int kBarriers = 4 + 4 * Tile::kStages;
  static constexpr int kMaxItems = 128;  // of one thread block's list
  static constexpr int kSharedBytes = 1024 + 2 * Tile::kQBytes + 2 * Tile::kStages * Tile::kTileBytes +
                                      kBarriers * 8 + kMaxItems * static_cast<int>(sizeof(PrefillItem));
};

// Addresses in shared memory. full: the copies have landed; empty: every consumer is done with it.
template <int kHeadDim>
struct PrefillListMemory {
  using Shape = PrefillListShape<kHeadDim>;
  uint32_t base;

  __device__ __forceinline__ explicit PrefillListMemory(const void* shared)
      : base((shared_address(shared) + 1023) & ~1023u) {}
  __device__ __forceinline__ uint32_t q(int buffer) const { return base + buffer * Shape::kQBytes; }
  __device__ __forceinline__ uint32_t k(int stage) const { return q(2) + stage * Shape::kTileBytes; }
  __device__ __forceinline__ uint32_t v(int stage) const { return k(Shape::kStages + stage); }
  __device__ __forceinline__ uint32_t q_full(int buffer) const { return k(2 * Shape::kStages) + buffer * 8; }
  __device__ __forceinline__ uint32_t q_empty(int buffer) const { return q_full(2 + buffer); }
  __device__ __forceinline__ uint32_t k_full(int stage) const { return q_full(4 + stage); }
  __device__ __forceinline__ uint32_t v_full(int stage) const { return k_full(Shape::kStages + stage); }
  __device__ __forceinline__ uint32_t k_empty(int stage) const { return k_full(2 * Shape::kStages + stage); }
  __device__ __forceinline__ uint32_t v_empty(int stage) const { return k_full(3 * Shape::kStages + stage); }
  __device__ __forceinline__ PrefillItem* items() const {
    return static_cast<PrefillItem*>(__cvta_shared_to_generic(q_full(Shape::kBarriers)));
  }
};

// Item `round` of this thread block. Items are ordered by head group, then by tile as find_prefill_work does, then by head;
// every other round deals them in reverse, so that lists of items of falling cost come out even. Heads that run together
// are kept few, for their keys stay in the L2 cache.
template <int kHeadDim>
__device__ __forceinline__ PrefillItem find_prefill_item(const PagedPrefillArgs& args, const PrefillSchedule& schedule,
                                                         int round) {
  const int n_blocks = gridDim.x;
  const int place = round % 2 == 0 ? blockIdx.x : n_blocks - 1 - blockIdx.x;
  const int index = round * n_blocks + place;
  PrefillItem item{};
  if (index >= schedule.n_items) return item;
  const int per_group = schedule.n_tiles * schedule.heads_per_group, within = index % per_group;
  constexpr int kKeys = PrefillListShape<kHeadDim>::kKeys;
  item.work = find_prefill_work(args, within / schedule.heads_per_group,
                                PrefillListShape<kHeadDim>::kRows / args.heads_per_tile);
  item.first_head = (index / per_group * schedule.heads_per_group + within % schedule.heads_per_group) *
                    args.heads_per_tile;
  item.first_tile = item.work.key_begin / kKeys;
  item.end_tile = (item.work.key_end + kKeys - 1) / kKeys;
  return item;
}

// Starts the copy of an item's rows of Q.
template <typename T, int kHeadDim>
__device__ __forceinline__ void copy_queries(const PagedPrefillArgs& args, const PrefillItem& item,
                                             const RowCopier& copier, uint32_t to) {
  using Shape = PrefillListShape<kHeadDim>;
#pragma unroll 1
  for (int pass = 0; pass < Shape::kRows / 16; ++pass) {
    const int row = pass * 16 + threadIdx.x / 8;
    // Rows past the end repeat the last token and are not stored.
    const int token = item.work.first_row + min(row / args.heads_per_tile, item.work.n_tokens - 1);
    const T* from = static_cast<const T*>(args.q) + token * args.q_strides[0] +
                    (item.first_head + row % args.heads_per_tile) * args.q_strides[1] + copier.chunk * 8;
#pragma unroll
    for (int panel = 0; panel < Shape::kPanels; ++panel) {
      cp_async_16(to + copier.place + panel * Shape::kQPanelBytes + pass * 16 * kPanelRowBytes, from + panel * 64, 16);
    }
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void produce_list(const PagedPrefillArgs& args, const PrefillListMemory<kHeadDim>& memory,
                                        int n_rounds) {
  using Shape = PrefillListShape<kHeadDim>;
  const RowCopier copier;
  const int group = args.n_heads / args.n_kv_heads;
  static_assert((Shape::kStages & (Shape::kStages - 1)) == 0, "stages and parities are bits of the counters");
  const auto stage_of = [](int n) { return n % Shape::kStages; };
  const auto parity_of_empty = [](int n) { return static_cast<uint32_t>(n / Shape::kStages + 1) & 1; };
  int n_q = 0, n_k = 0;  // tiles of Q and K that were copied; V is one behind
  for (int round = 0; round < n_rounds; ++round) {
    const PrefillItem& item = memory.items()[round];
    if (item.work.n_tokens == 0) continue;
    const int n_tiles = item.end_tile - item.first_tile, first_key = item.first_tile * Shape::kKeys + copier.own_row;
    int n_left = item.work.key_end - first_key;  // keys from own_row's on
    const int32_t* next = item.work.slots + first_key;
    int slot = n_left > 0 ? *next : -1, v_slot = slot;
    barrier_wait(memory.q_empty(n_q % 2), (n_q / 2 + 1) & 1);
    copy_queries<T, kHeadDim>(args, item, copier, memory.q(n_q % 2));
    barrier_arrive_after_copies(memory.q_full(n_q % 2));
    ++n_q;

    const int kv_head = item.first_head / group;
    const T* k = static_cast<const T*>(args.k_cache) + kv_head * args.k_strides[1] + copier.chunk * 8;
    const T* v = static_cast<const T*>(args.v_cache) + kv_head * args.v_strides[1] + copier.chunk * 8;
    for (int i = 0; i <= n_tiles; ++i) {  // K of tile i, V of the one before
      next += Shape::kKeys;
      n_left -= Shape::kKeys;
      const int next_slot = n_left > 0 ? *next : -1;
      if (i < n_tiles) {
        barrier_wait(memory.k_empty(stage_of(n_k)), parity_of_empty(n_k));
        copier.copy_rows<T, Shape::kKeys, Shape::kPanels>(memory.k(stage_of(n_k)), Shape::kPanelBytes, k, slot,
                                                     args.k_strides[0]);
        barrier_arrive_after_copies(memory.k_full(stage_of(n_k)));
      }
      if (i > 0) {
        const int n_v = n_k - 1;
        barrier_wait(memory.v_empty(stage_of(n_v)), parity_of_empty(n_v));
        copier.copy_rows<T, Shape::kKeys, Shape::kPanels>(memory.v(stage_of(n_v)), Shape::kPanelBytes, v, v_slot,
                                                     args.v_strides[0]);
        barrier_arrive_after_copies(memory.v_full(stage_of(n_v)));
      }
      n_k += i < n_tiles;
      v_slot = slot;
      slot = next_slot;
    }
  }
  cp_async_wait<0>();
}

// Writes 64 rows of a consumer by way of its part of Q's memory, so that a row goes out 16 bytes a lane.
template <typename T, int kHeadDim>
__device__ __forceinline__ void store_rows(const PagedPrefillArgs& args, const PrefillItem& item, uint32_t q,
                                           const float (&o)[kHeadDim / 2], const RowSoftmax (&softmax)[2], float scale) {
  using Shape = PrefillListShape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
  const int lane = threadIdx.x % 32, warp_row = (threadIdx.x / 32 - 4) * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + half * 8, token = row / args.heads_per_tile;
    const float sum = quad_sum(softmax[half].sum);
    const float factor = sum == 0.f ? 0.f : 1.f / sum;  // a row that saw no key gives 0
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const uint32_t to = q + n / 8 * Shape::kQPanelBytes + row * kPanelRowBytes + ((n % 8 ^ (row & 7)) << 4) + lane % 4 * 4;
      store_shared(to, pack_2<T>(o[n * 4 + half * 2] * factor, o[n * 4 + half * 2 + 1] * factor));
    }
    if (args.lse != nullptr && lane % 4 == 0 && token < item.work.n_tokens) {
      args.lse[static_cast<int64_t>(item.work.first_row + token) * args.n_heads + item.first_head +
               row % args.heads_per_tile] = sum == 0.f ? -INFINITY : softmax[half].max * scale * kLn2 + logf(sum);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kChunks / 2; ++i) {
    const int row = warp_row + (i * 32 + lane) / kChunks, chunk = lane % kChunks, token = row / args.heads_per_tile;
    if (token >= item.work.n_tokens) continue;
    T* out = static_cast<T*>(args.out) + (item.work.first_row + token) * args.out_strides[0] +
             (item.first_head + row % args.heads_per_tile) * args.out_strides[1] + chunk * 8;
    *reinterpret_cast<uint4*>(out) =
        load_shared_16(q + chunk / 8 * Shape::kQPanelBytes + row * kPanelRowBytes + ((chunk % 8 ^ (row & 7)) << 4));
  }
}

// Sets the scores of keys that a row does not see to -inf. limits: those of the lane's two rows.
__device__ __forceinline__ void mask_scores(float (&s)[64], const KeyRange (&limits)[2], int first_key) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = first_key + threadIdx.x % 4 * 2, begin = limits[half].begin - first, end = limits[half].end - first;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = i / 2 * 8 + i % 2;
      if (key < begin || key >= end) s[i / 2 * 4 + half * 2 + i % 2] = -INFINITY;
    }
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void consume_list(const PagedPrefillArgs& args, const PrefillListMemory<kHeadDim>& memory,
                                        int n_rounds) {
  using Shape = PrefillListShape<kHeadDim>;
  constexpr int kKeys = Shape::kKeys, kOut = kHeadDim / 2;
  const int consumer = threadIdx.x / kWarpgroup - 1, first_row = consumer * 64;
  const int row = first_row + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;  // and row + 8
  const float scale = args.sm_scale * kLog2E;
  const int my_turn = 1 + consumer, next_turn = 1 + (consumer + 1) % Shape::kConsumers;
  if (consumer == Shape::kConsumers - 1) named_arrive(1, 2 * kWarpgroup);  // the first turn is consumer 0's
  Ring<2> q_ring;
  Ring<Shape::kStages> k_ring, v_ring;

  for (int round = 0; round < n_rounds; ++round) {
    const PrefillItem& item = memory.items()[round];
    if (item.work.n_tokens == 0) continue;
    const int end_tile = item.end_tile;
    int tile = item.first_tile;
    const KeyRange limits[2] = {visible_keys(args, item.work, row / args.heads_per_tile),
                                visible_keys(args, item.work, (row + 8) / args.heads_per_tile)};
    // Key tiles that every row of the warpgroup sees: [all_begin, all_end).
    const int all_begin = (visible_keys(args, item.work, (first_row + 63) / args.heads_per_tile).begin + kKeys - 1) / kKeys;
    const int all_end = visible_keys(args, item.work, first_row / args.heads_per_tile).end / kKeys;
    const uint32_t q = memory.q(q_ring.stage);
    const uint64_t q_desc = tile_descriptor(q + first_row * kPanelRowBytes);
    RowSoftmax softmax[2];
    float o[kOut] = {}, s[64], factors[2];
    uint32_t p[32];

    barrier_wait(memory.q_full(q_ring.stage), q_ring.parity);
    if (tile < end_tile) {
      barrier_wait(memory.k_full(k_ring.stage), k_ring.parity);
      fence_async_proxy();
      named_sync(my_turn, 2 * kWarpgroup);
      wgmma_fence();
      issue_scores<T, kHeadDim>(s, q_desc, tile_descriptor(memory.k(k_ring.stage)));
      named_arrive(next_turn, 2 * kWarpgroup);
      wgmma_wait<0>();
      barrier_arrive(memory.k_empty(k_ring.stage));
      k_ring.advance();
      if (tile < all_begin || tile >= all_end) mask_scores(s, limits, tile * kKeys);
      softmax_tile(s, softmax, factors, scale);
      pack_weights<T>(p, s);

      for (++tile; tile < end_tile; ++tile) {
        barrier_wait(memory.k_full(k_ring.stage), k_ring.parity);
        barrier_wait(memory.v_full(v_ring.stage), v_ring.parity);
        fence_async_proxy();
        named_sync(my_turn, 2 * kWarpgroup);
        wgmma_fence();
        issue_scores<T, kHeadDim>(s, q_desc, tile_descriptor(memory.k(k_ring.stage)));
        issue_output<T, kKeys>(o, p, tile_descriptor(memory.v(v_ring.stage), Shape::kPanelBytes));
        named_arrive(next_turn, 2 * kWarpgroup);
        wgmma_wait<1>();
        barrier_arrive(memory.k_empty(k_ring.stage));
        k_ring.advance();
        if (tile < all_begin || tile >= all_end) mask_scores(s, limits, tile * kKeys);
        softmax_tile(s, softmax, factors, scale);
        wgmma_wait<0>();
        barrier_arrive(memory.v_empty(v_ring.stage));
        v_ring.advance();
        // Where no maximum of the warp's rows grew, the factors are exactly 1.
        if (__any_sync(0xffffffffu, factors[0] != 1.f || factors[1] != 1.f)) {
#pragma unroll
          for (int i = 0; i < kOut; ++i) o[i] = __fmul_rn(o[i], factors[i % 4 / 2]);
        }
        pack_weights<T>(p, s);
      }

      barrier_wait(memory.v_full(v_ring.stage), v_ring.parity);
      fence_async_proxy();
      wgmma_fence();
      issue_output<T, kKeys>(o, p, tile_descriptor(memory.v(v_ring.stage), Shape::kPanelBytes));
      wgmma_wait<0>();
      barrier_arrive(memory.v_empty(v_ring.stage));
      v_ring.advance();
    }
    named_sync(my_turn + Shape::kConsumers, kWarpgroup);  // all of it have read their rows of Q
    store_rows<T, kHeadDim>(args, item, q, o, softmax, scale);
    barrier_arrive(memory.q_empty(q_ring.stage));
    q_ring.advance();
  }
}

// soft_cap must be 0. The body is empty where wgmma does not exist: the launcher picks it on compute capability 9.0 alone.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(PrefillListShape<kHeadDim>::kThreads, 1)
    attn_paged_prefill_list_kernel(const __grid_constant__ PagedPrefillArgs args, const PrefillSchedule schedule) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = PrefillListShape<kHeadDim>;
  extern __shared__ unsigned char shared[];
  const PrefillListMemory<kHeadDim> memory(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
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
    memory.items()[round] = find_prefill_item<kHeadDim>(args, schedule, round);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<Shape::kProducerRegisters>();
    produce_list<T, kHeadDim>(args, memory, schedule.n_rounds);
  } else {
    take_registers<Shape::kConsumerRegisters>();
    consume_list<T, kHeadDim>(args, memory, schedule.n_rounds);
  }
#endif
}

}  // namespace astrai
