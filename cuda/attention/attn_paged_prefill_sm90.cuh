// attn_paged_prefill for sm_90a, one tile of rows a thread block: the kernel of head_dim 128.
//
//   shared memory: Q [kRows], K [kStages][kKeys], V [kStages][kKeys], barriers
#pragma once

#include "attention/prefill_sm90.cuh"

namespace astrai {

template <int kHeadDim>
struct PrefillSm90Shape : PrefillSm90Tile<kHeadDim> {
  using Tile = PrefillSm90Tile<kHeadDim>;
  static constexpr int kBarriers = 1 + 4 * Tile::kStages;
  static constexpr int kSharedBytes = 1024 + Tile::kQBytes + 2 * Tile::kStages * Tile::kTileBytes + kBarriers * 8;
};

// Addresses in shared memory. full: the copies of a stage have landed; empty: every consumer has read it.
template <int kHeadDim>
struct PrefillSm90Memory {
  using Shape = PrefillSm90Shape<kHeadDim>;
  uint32_t q;

  __device__ __forceinline__ explicit PrefillSm90Memory(const void* shared) : q((shared_address(shared) + 1023) & ~1023u) {}
  __device__ __forceinline__ uint32_t k(int stage) const { return q + Shape::kQBytes + stage * Shape::kTileBytes; }
  __device__ __forceinline__ uint32_t v(int stage) const { return k(Shape::kStages + stage); }
  __device__ __forceinline__ uint32_t q_full() const { return k(2 * Shape::kStages); }
  __device__ __forceinline__ uint32_t k_full(int stage) const { return q_full() + 8 + stage * 8; }
  __device__ __forceinline__ uint32_t v_full(int stage) const { return k_full(Shape::kStages + stage); }
  __device__ __forceinline__ uint32_t k_empty(int stage) const { return k_full(2 * Shape::kStages + stage); }
  __device__ __forceinline__ uint32_t v_empty(int stage) const { return k_full(3 * Shape::kStages + stage); }
};

template <typename T, int kHeadDim>
__device__ __forceinline__ void produce(const PagedPrefillArgs& args, const PrefillWork& work,
                                        const PrefillSm90Memory<kHeadDim>& memory, int first_head, int kv_head,
                                        int first_tile, int end_tile) {
  using Shape = PrefillSm90Shape<kHeadDim>;
  const RowCopier copier;
#pragma unroll
  for (int first = 0; first < Shape::kRows; first += 128) {
    constexpr int kLast = Shape::kRows % 128 == 0 ? 128 : Shape::kRows % 128;
    const int row = first + copier.own_row;
    const int token = min(row / args.heads_per_tile, work.n_tokens - 1);  // rows past the end repeat the last, unstored
    const int64_t offset = (work.first_row + token) * args.q_strides[0] +
                           (first_head + row % args.heads_per_tile) * args.q_strides[1];
    const T* q = static_cast<const T*>(args.q);
    const uint32_t to = memory.q + first * kPanelRowBytes;
    if (first + 128 <= Shape::kRows) {
      copier.copy_offsets<T, 128, Shape::kPanels>(to, Shape::kQPanelBytes, q, offset);
    } else {
      copier.copy_offsets<T, kLast, Shape::kPanels>(to, Shape::kQPanelBytes, q, offset);
    }
  }
  barrier_arrive_after_copies(memory.q_full());

  const T* k = static_cast<const T*>(args.k_cache) + kv_head * args.k_strides[1];
  const T* v = static_cast<const T*>(args.v_cache) + kv_head * args.v_strides[1];
  const auto read_slot = [&](int tile) {
    const int key = tile * Shape::kKeys + copier.own_row;
    return key < work.key_end ? work.slots[key] : -1;
  };
  Ring<Shape::kStages> k_ring, v_ring;
  int slot = read_slot(first_tile), v_slot = slot;
  for (int tile = first_tile; tile <= end_tile; ++tile) {  // K of tile, V of the one before
    const int next_slot = tile + 1 < end_tile ? read_slot(tile + 1) : -1;
    if (tile < end_tile) {
      barrier_wait(memory.k_empty(k_ring.stage), k_ring.parity ^ 1);
      copier.copy_offsets<T, Shape::kKeys, Shape::kPanels>(memory.k(k_ring.stage), Shape::kPanelBytes, k,
                                                   slot * args.k_strides[0]);
      barrier_arrive_after_copies(memory.k_full(k_ring.stage));
      k_ring.advance();
    }
    if (tile > first_tile) {
      barrier_wait(memory.v_empty(v_ring.stage), v_ring.parity ^ 1);
      copier.copy_offsets<T, Shape::kKeys, Shape::kPanels>(memory.v(v_ring.stage), Shape::kPanelBytes, v,
                                                   v_slot * args.v_strides[0]);
      barrier_arrive_after_copies(memory.v_full(v_ring.stage));
      v_ring.advance();
    }
    v_slot = slot;
    slot = next_slot;
  }
  cp_async_wait<0>();
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void consume(const PagedPrefillArgs& args, const PrefillWork& work,
                                        const PrefillSm90Memory<kHeadDim>& memory, int first_head, int first_tile,
                                        int end_tile) {
  using Shape = PrefillSm90Shape<kHeadDim>;
  constexpr int kKeys = Shape::kKeys, kOut = kHeadDim / 2;
  const int consumer = threadIdx.x / kWarpgroup - 1, lane = threadIdx.x % 32;
  const int warp_row = consumer * 64 + threadIdx.x % kWarpgroup / 32 * 16, row = warp_row + lane / 4;
  const int tokens[2] = {row / args.heads_per_tile, (row + 8) / args.heads_per_tile};  // of the accumulators
  // Keys that every row of the warpgroup sees.
  const int all_begin = visible_keys(args, work, (consumer * 64 + 63) / args.heads_per_tile).begin;
  const int all_end = visible_keys(args, work, consumer * 64 / args.heads_per_tile).end;
  const float scale = args.sm_scale * kLog2E;
  const int my_turn = 1 + consumer, next_turn = 1 + (consumer + 1) % Shape::kConsumers;

  RowSoftmax softmax[2];
  float o[kOut] = {}, s[64], factors[2];
  uint32_t p[32];
  Ring<Shape::kStages> k_ring, v_ring;
  const uint64_t q_desc = tile_descriptor(memory.q + consumer * 64 * kPanelRowBytes);

  const auto mask = [&](int tile) {
    const int first_key = tile * kKeys;
    if (first_key >= all_begin && first_key + kKeys <= all_end) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange range = visible_keys(args, work, tokens[half]);
      const int begin = range.begin - first_key - lane % 4 * 2, end = range.end - first_key - lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = i / 2 * 8 + i % 2;
        if (key < begin || key >= end) s[i / 2 * 4 + half * 2 + i % 2] = -INFINITY;
      }
    }
  };

  if (first_tile < end_tile) {
    if (consumer == Shape::kConsumers - 1) named_arrive(1, 2 * kWarpgroup);  // the first turn is consumer 0's
    barrier_wait(memory.q_full(), 0);
    barrier_wait(memory.k_full(k_ring.stage), k_ring.parity);
    fence_async_proxy();
    named_sync(my_turn, 2 * kWarpgroup);
    wgmma_fence();
    issue_scores<T, kHeadDim>(s, q_desc, tile_descriptor(memory.k(k_ring.stage)));
    named_arrive(next_turn, 2 * kWarpgroup);
    wgmma_wait<0>();
    barrier_arrive(memory.k_empty(k_ring.stage));
    k_ring.advance();
    mask(first_tile);
    softmax_tile(s, softmax, factors, scale);
    pack_weights<T>(p, s);

    for (int tile = first_tile + 1; tile < end_tile; ++tile) {
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
      mask(tile);
      softmax_tile(s, softmax, factors, scale);
      wgmma_wait<0>();
      barrier_arrive(memory.v_empty(v_ring.stage));
      v_ring.advance();
#pragma unroll
      for (int i = 0; i < kOut; ++i) o[i] = __fmul_rn(o[i], factors[i % 4 / 2]);
      pack_weights<T>(p, s);
    }

    barrier_wait(memory.v_full(v_ring.stage), v_ring.parity);
    fence_async_proxy();
    wgmma_fence();
    issue_output<T, kKeys>(o, p, tile_descriptor(memory.v(v_ring.stage), Shape::kPanelBytes));
    wgmma_wait<0>();
  } else {
    barrier_wait(memory.q_full(), 0);  // its memory takes the result
  }

  // Rows go out by way of Q's memory, so that a row is written 16 bytes a lane.
  named_sync(my_turn + Shape::kConsumers, kWarpgroup);
  float sums[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums[half] = quad_sum(softmax[half].sum);
    const float factor = sums[half] == 0.f ? 0.f : 1.f / sums[half];  // a row that saw no key gives 0
    const int own_row = row + half * 8;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const uint32_t value = pack_2<T>(o[n * 4 + half * 2] * factor, o[n * 4 + half * 2 + 1] * factor);
      const uint32_t to = memory.q + n / 8 * Shape::kQPanelBytes + own_row * kPanelRowBytes +
                          ((n % 8 ^ (own_row & 7)) << 4) + lane % 4 * 4;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
    }
    const int head = first_head + own_row % args.heads_per_tile;
    if (args.lse != nullptr && lane % 4 == 0 && tokens[half] < work.n_tokens) {
      args.lse[static_cast<int64_t>(work.first_row + tokens[half]) * args.n_heads + head] =
          sums[half] == 0.f ? -INFINITY : softmax[half].max * scale * kLn2 + logf(sums[half]);
    }
  }
  __syncwarp();
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int item = i * 32 + lane, own_row = warp_row + item / kChunks, chunk = item % kChunks;
    const int token = own_row / args.heads_per_tile;
    if (token >= work.n_tokens) continue;
    const uint32_t from = memory.q + chunk / 8 * Shape::kQPanelBytes + own_row * kPanelRowBytes +
                          ((chunk % 8 ^ (own_row & 7)) << 4);
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
    T* out = static_cast<T*>(args.out) + (work.first_row + token) * args.out_strides[0] +
             (first_head + own_row % args.heads_per_tile) * args.out_strides[1] + chunk * 8;
    *reinterpret_cast<uint4*>(out) = value;
  }
}

// soft_cap must be 0. The body is empty where wgmma does not exist: the launcher picks it on compute capability 9.0 alone.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(PrefillSm90Shape<kHeadDim>::kThreads, 1)
    attn_paged_prefill_sm90_kernel(const __grid_constant__ PagedPrefillArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = PrefillSm90Shape<kHeadDim>;
  extern __shared__ unsigned char shared[];
  const PrefillWork work = find_prefill_work(args, blockIdx.x, Shape::kRows / args.heads_per_tile);
  if (work.n_tokens == 0) return;
  const int first_head = blockIdx.y * args.heads_per_tile;
  const int first_tile = work.key_begin / Shape::kKeys, end_tile = (work.key_end + Shape::kKeys - 1) / Shape::kKeys;
  const PrefillSm90Memory<kHeadDim> memory(shared);
  if (threadIdx.x == 0) {
    barrier_init(memory.q_full(), kWarpgroup);
    for (int i = 0; i < 2 * Shape::kStages; ++i) {
      barrier_init(memory.k_full(i), kWarpgroup);
      barrier_init(memory.k_empty(i), Shape::kConsumers * kWarpgroup);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<Shape::kProducerRegisters>();
    const int kv_head = first_head / (args.n_heads / args.n_kv_heads);
    produce<T, kHeadDim>(args, work, memory, first_head, kv_head, first_tile, end_tile);
  } else {
    take_registers<Shape::kConsumerRegisters>();
    consume<T, kHeadDim>(args, work, memory, first_head, first_tile, end_tile);
  }
#endif
}

// Launches on stream for a device that is current; defined once for each instance.
template <typename T, int kHeadDim>
void launch_attn_paged_prefill_sm90(const PagedPrefillArgs& args, cudaStream_t stream);

}  // namespace astrai
