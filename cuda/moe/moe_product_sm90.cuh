// The grouped products over tiles of 64 or 128 pairs for sm_90a: a thread block keeps a multiprocessor for itself and goes through
// items, one tile of pairs by 256 rows of weights each. One warpgroup copies both by cp.async into a ring of stages, two
// multiply 64 pairs each by wgmma. Sums have the order of moe_product.cuh.
//
// A stage holds panels of common/wgmma.cuh: 128 rows of x, then 256 rows of weights, 64 elements each. For moe_gate_up the
// first half of the weights are gate rows and the second the up rows of the same columns, which a thread thus gets both.
#pragma once

#include "astrai/moe_ops.h"
#include "astrai/moe_tiles.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"
#include "common/warp_mma.cuh"
#include "common/wgmma.cuh"

namespace astrai {

struct MoeSm90Shape {
  static constexpr int kRows = 128, kColumns = 256, kInner = 64;  // of an item, and of the inner dimension in a stage
  static constexpr int kWarpgroup = 128, kConsumers = 2, kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr int kTileGroup = 16;  // tiles whose items follow one another
  static constexpr int kRowBytes = kInner * 2;
  static constexpr int kStages = 4, kXBytes = kRows * kRowBytes, kStageBytes = kXBytes + kColumns * kRowBytes;
  static constexpr int kWarpRows = 16, kStagingBytes = kWarpRows * kRowBytes;  // of a consumer warp's way out
  static constexpr int kBarrierBytes = 2 * kStages * 8;
  // The dynamic memory may start anywhere on 16 bytes; panels need 1024.
  static constexpr int kSharedBytes =
      1024 + kStages * kStageBytes + kConsumers * 4 * kStagingBytes + kBarrierBytes;
};

struct MoeSm90Memory {
  using Shape = MoeSm90Shape;
  uint32_t base;

  __device__ __forceinline__ explicit MoeSm90Memory(const void* shared) : base((shared_address(shared) + 1023) & ~1023u) {}
  __device__ __forceinline__ uint32_t x(int stage) const { return base + stage * Shape::kStageBytes; }
  __device__ __forceinline__ uint32_t weights(int stage) const { return x(stage) + Shape::kXBytes; }
  __device__ __forceinline__ uint32_t staging(int consumer_warp) const {
    return base + Shape::kStages * Shape::kStageBytes + consumer_warp * Shape::kStagingBytes;
  }
  __device__ __forceinline__ uint32_t full(int stage) const { return staging(Shape::kConsumers * 4) + stage * 8; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return full(Shape::kStages) + stage * 8; }
};

// Where in the ring the producer or a consumer is.
struct MoeSm90Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == MoeSm90Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Calls visit(tile, first_column) for the items of this thread block. first_column: of the output. All items of a group of
// tiles come before the next group, the tiles of one column first, so that blocks which run together find most of what they
// read in L2: an expert's weights leave memory once a group, and the pairs of a group stay.
template <bool kIsGated, typename Visit>
__device__ __forceinline__ void visit_moe_items(const MoeProductArgs& args, Visit visit) {
  using Shape = MoeSm90Shape;
  constexpr int kOutColumns = kIsGated ? Shape::kColumns / 2 : Shape::kColumns;
  const int4* const tiles = reinterpret_cast<const int4*>(args.tiles);
  const int n_blocks = (args.n_out + kOutColumns - 1) / kOutColumns, group_items = n_blocks * Shape::kTileGroup;
  const int n_items = (args.n_tiles + Shape::kTileGroup - 1) / Shape::kTileGroup * group_items;
  for (int item = static_cast<int>(blockIdx.x); item < n_items; item += static_cast<int>(gridDim.x)) {
    const int tile_idx = item / group_items * Shape::kTileGroup + item % Shape::kTileGroup;
    if (tile_idx >= args.n_tiles) continue;
    const int4 tile = tiles[tile_idx];
    if (tile.x >= 0) visit(tile, item % group_items / Shape::kTileGroup * kOutColumns);
  }
}

// The producer. Eight lanes copy the 128 bytes of a row; a warp has rows lane / 8 + 4 i of its quarter of the pairs and of
// its quarter of the weights.
template <typename T, bool kIsGated>
__device__ __forceinline__ void produce_moe_items(const MoeProductArgs& args, const MoeSm90Memory& memory) {
  using Shape = MoeSm90Shape;
  constexpr int kXCopies = Shape::kRows / 16, kWeightCopies = Shape::kColumns / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int x_row = warp * (Shape::kRows / 4) + lane / 8, weight_row = warp * (Shape::kColumns / 4) + lane / 8;
  const uint32_t x_place = x_row * Shape::kRowBytes + ((lane % 8 ^ (x_row & 7)) << 4);
  const uint32_t weight_place = weight_row * Shape::kRowBytes + ((lane % 8 ^ (weight_row & 7)) << 4);
  const int n_chunks = args.n_in / 8, n_steps = (args.n_in + Shape::kInner - 1) / Shape::kInner;
  const uint4* const x = static_cast<const uint4*>(args.x);
  MoeSm90Place place;

  visit_moe_items<kIsGated>(args, [&](int4 tile, int first_column) {
    uint32_t rows[kXCopies];  // of x
    uint32_t has_row = 0;     // bit i: copy i has a pair
#pragma unroll
    for (int i = 0; i < kXCopies; ++i) {
      const int position = tile.y + x_row + 4 * i;
      rows[i] = 0;
      if (position < tile.z) {
        rows[i] = static_cast<uint32_t>(kIsGated ? args.order[position] / args.n_active : position);
        has_row |= 1u << i;
      }
    }
    // The second consumer reads nothing where it has no pair.
    const bool has_pairs = tile.y + warp * (Shape::kRows / 4) / 64 * 64 < tile.z;
    // A warp's rows of weights succeed one another: a quarter is all gate or all up.
    const int column = first_column + (kIsGated ? weight_row % (Shape::kColumns / 2) : weight_row);
    const int first_row = kIsGated && weight_row >= Shape::kColumns / 2 ? args.n_out + column : column;
    const int n_columns_left = args.n_out - column;  // copy i has a row where 4 i is below
    const uint4* weights = static_cast<const uint4*>(args.weights) +
                           (static_cast<int64_t>(tile.x) * args.n_weight_rows + first_row) * n_chunks + lane % 8;
    for (int step = 0; step < n_steps; ++step) {
      const int chunk = step * 8 + lane % 8;
      const bool is_inside = chunk < n_chunks;
      barrier_wait(memory.empty(place.stage), place.parity ^ 1);
      const uint32_t x_to = memory.x(place.stage) + x_place;
#pragma unroll
      for (int i = 0; i < kXCopies; ++i) {
        if (!has_pairs) break;
        // Four rows further on, bit 2 of the row turns, and with it bit 6 of the place.
        const uint32_t to = (i % 2 == 0 ? x_to : x_to ^ 64) + i * 4 * Shape::kRowBytes;
        const bool is_there = is_inside && (has_row >> i & 1);
        cp_async_16(to, is_there ? x + static_cast<int64_t>(rows[i]) * n_chunks + chunk : x, is_there ? 16 : 0);
      }
      const uint32_t weights_to = memory.weights(place.stage) + weight_place;
      const uint4* from = weights + step * 8;
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i) {
        const uint32_t to = (i % 2 == 0 ? weights_to : weights_to ^ 64) + i * 4 * Shape::kRowBytes;
        const bool is_there = is_inside && 4 * i < n_columns_left;
        cp_async_16(to, is_there ? from : x, is_there ? 16 : 0);
        from += 4 * n_chunks;
      }
      barrier_arrive_after_copies(memory.full(place.stage));
      place.advance();
    }
  });
}

// Rounds a consumer warp's 16 pairs and writes them out, 64 columns at a time through its part of shared memory, so that
// eight lanes write 128 bytes of a row.
template <typename T, bool kIsGated>
__device__ __forceinline__ void store_moe_rows(const MoeProductArgs& args, const float (&sums)[128], uint32_t staging,
                                               int4 tile, int first_position, int first_column) {
  using Shape = MoeSm90Shape;
  constexpr int kOutColumns = kIsGated ? Shape::kColumns / 2 : Shape::kColumns;
  const int lane = threadIdx.x % 32;
  T* rows[4];  // of the output, where lane / 8 + 4 i writes; null beyond the last pair
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int position = first_position + lane / 8 + 4 * i;
    rows[i] = nullptr;
    if (position < tile.z) {
      const int64_t row = kIsGated ? position : args.order[position];
      rows[i] = static_cast<T*>(args.out) + row * args.n_out;
    }
  }
#pragma unroll
  for (int first = 0; first < kOutColumns; first += 64) {
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // rows lane / 4 and 8 below
        const int at = (first / 8 + block) * 4 + half * 2, row = lane / 4 + half * 8;
        uint32_t pair;
        if constexpr (kIsGated) {
          const float* const gate = sums + at;
          const float* const up = sums + 64 + at;
          pair = pack_2<T>(gate[0] / (1.0f + __expf(-gate[0])) * up[0], gate[1] / (1.0f + __expf(-gate[1])) * up[1]);
        } else {
          pair = pack_2<T>(sums[at], sums[at + 1]);
        }
        store_shared(staging + row * Shape::kRowBytes + ((block ^ (row & 7)) << 4) + lane % 4 * 4, pair);
      }
    }
    __syncwarp();
    const int column = first_column + first + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 8 + 4 * i;
      const uint4 values = load_shared_16(staging + row * Shape::kRowBytes + ((lane % 8 ^ (row & 7)) << 4));
      if (rows[i] != nullptr && column < args.n_out) *reinterpret_cast<uint4*>(rows[i] + column) = values;
    }
    __syncwarp();
  }
}

template <typename T, bool kIsGated>
__device__ __forceinline__ void consume_moe_items(const MoeProductArgs& args, const MoeSm90Memory& memory) {
  using Shape = MoeSm90Shape;
  const int consumer = threadIdx.x / Shape::kWarpgroup - 1, warp = threadIdx.x % Shape::kWarpgroup / 32;
  const int n_steps = (args.n_in + Shape::kInner - 1) / Shape::kInner;
  MoeSm90Place place;

  visit_moe_items<kIsGated>(args, [&](int4 tile, int first_column) {
    const int first_position = tile.y + consumer * 64;
    if (first_position >= tile.z) {  // the tile has pairs for the other consumer alone
      for (int step = 0; step < n_steps; ++step) {
        barrier_wait(memory.full(place.stage), place.parity);
        barrier_arrive(memory.empty(place.stage));
        place.advance();
      }
      return;
    }
    float sums[128];
    int last_stage = 0;
    for (int step = 0; step < n_steps; ++step) {
      barrier_wait(memory.full(place.stage), place.parity);
      fence_async_proxy();
      const uint64_t a = tile_descriptor(memory.x(place.stage) + consumer * 64 * Shape::kRowBytes);
      const uint64_t b = tile_descriptor(memory.weights(place.stage));
      wgmma_fence();
#pragma unroll
      for (int inner = 0; inner < Shape::kInner / 16; ++inner) {
        Wgmma<T, 128>::ss(sums, a + inner * 2, b + inner * 2, step > 0 || inner > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) barrier_arrive(memory.empty(last_stage));
      last_stage = place.stage;
      place.advance();
    }
    wgmma_wait<0>();
    barrier_arrive(memory.empty(last_stage));
    store_moe_rows<T, kIsGated>(args, sums, memory.staging(consumer * 4 + warp), tile, first_position + warp * 16,
                                first_column);
  });
}

// tile_rows: 64 or 128. The body is empty where wgmma does not exist: the launcher picks it on compute capability 9.0
// alone.
template <typename T, bool kIsGated>
__global__ void __launch_bounds__(MoeSm90Shape::kThreads, 1) moe_product_sm90_kernel(const MoeProductArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = MoeSm90Shape;
  extern __shared__ unsigned char shared[];
  const MoeSm90Memory memory(shared);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier_init(memory.full(stage), Shape::kWarpgroup);
      barrier_init(memory.empty(stage), Shape::kConsumers * Shape::kWarpgroup);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (threadIdx.x < Shape::kWarpgroup) {
    give_registers<Shape::kProducerRegisters>();
    produce_moe_items<T, kIsGated>(args, memory);
  } else {
    take_registers<Shape::kConsumerRegisters>();
    consume_moe_items<T, kIsGated>(args, memory);
  }
#endif
}

}  // namespace astrai
