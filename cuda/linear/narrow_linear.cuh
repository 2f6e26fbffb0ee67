// narrow_linear kernel for sm_90a: y^T = W x^T, so that rows of the weight are the 64 of wgmma and rows of x its N. A thread
// block takes a tile of tile_rows rows of the weight, up to kTokens rows of x and one of kParts parts of the inner dimension:
// one thread asks the copy engine for panels of both, a ring of stages ahead, and warpgroups multiply 64 rows each. What they
// read behind the tile's last row becomes sums that nobody uses.
//
// A cluster is the parts of one tile. Each adds up a share of the rows of x, its own rows: the others send it their sums out
// of their registers, and it adds part after part, so that the order of a sum depends on the number of parts alone.
//
// The first weights are asked for before the kernel waits for the one that makes x. What each thread block runs through once
// is kept short: a multiprocessor waits for code that it has not run yet, here for longer than it computes.
#pragma once

#include "astrai/narrow_linear.h"
#include "common/cluster.cuh"
#include "common/reduce.cuh"
#include "common/tensor_map.cuh"
#include "common/vec.cuh"
#include "common/warp_mma.cuh"
#include "common/wgmma.cuh"
#include "fused/gated_act.cuh"

namespace astrai {

constexpr int kNarrowInner = 64, kNarrowRowBytes = kNarrowInner * 2;  // of a panel

struct NarrowMaps {
  CUtensorMap weight;  // panels of tile_rows, with silu_mul of half of them
  CUtensorMap x;       // panels of kTokens / kParts
};

// What a launch decides beside the arguments.
struct NarrowTiling {
  int tile_rows;  // of the weight: a multiple of 8, of 16 with silu_mul
  int n_stages;   // two at least: one is multiplied while the next is asked for

  __host__ __device__ int n_groups() const { return (tile_rows + 63) / 64; }  // warpgroups
};

// Dynamic shared memory, on 1024 bytes: the stages, each [tile_rows] rows of the weight and [kTokens] of x; in their place
// later what is to be written, T [own rows][64 * n_groups + 8]. Then the other parts' sums of the own rows, float4
// [kParts - 1][own rows / 8][128 * n_groups], each where its thread wants it. Then barriers.
template <int kTokens, int kParts>
struct NarrowMemory {
  static constexpr int kOwn = kTokens / kParts;  // rows of x whose sums a part adds up

  uint32_t base, stage_bytes, weight_bytes, sums, barriers;
  int n_threads;

  __host__ __device__ static int stage_size(const NarrowTiling& tiling) {
    return (tiling.tile_rows + kTokens) * kNarrowRowBytes;
  }
  // Elements from row to row of what is to be written: an odd number of 16 bytes, so that eight rows start on other banks.
  __host__ __device__ static int out_stride(const NarrowTiling& tiling) { return tiling.n_groups() * 64 + 8; }
  __host__ __device__ static int sums_offset(const NarrowTiling& tiling) {
    const int ring = tiling.n_stages * stage_size(tiling), out = kOwn * out_stride(tiling) * 2;
    return ring > out ? ring : out;
  }
  // Of one other part. What comes of it: warps behind the tile's last row send nothing.
  __host__ __device__ static int slot_size(const NarrowTiling& tiling) { return kOwn * tiling.n_groups() * 64 * 4; }
  __host__ __device__ static int sent_size(const NarrowTiling& tiling) {
    return kOwn * ((tiling.tile_rows + 15) / 16 * 16) * 4;
  }
  __host__ __device__ static int barriers_offset(const NarrowTiling& tiling) {
    return sums_offset(tiling) + (kParts - 1) * slot_size(tiling);
  }
  // With what wgmma may read behind the last stage: a warpgroup has 8 rows of the tile at least, and reads 64.
  __host__ __device__ static int size(const NarrowTiling& tiling) {
    return barriers_offset(tiling) + (2 * tiling.n_stages + 1) * 8 + (kTokens < 56 ? (56 - kTokens) * kNarrowRowBytes : 0);
  }

  __device__ NarrowMemory(const void* shared, const NarrowTiling& tiling)
      : base(shared_address(shared)),
        stage_bytes(stage_size(tiling)),
        weight_bytes(tiling.tile_rows * kNarrowRowBytes),
        sums(base + sums_offset(tiling)),
        barriers(base + barriers_offset(tiling)),
        n_threads(tiling.n_groups() * 128) {}
  __device__ __forceinline__ uint32_t weight(int stage) const { return base + stage * stage_bytes; }
  __device__ __forceinline__ uint32_t x(int stage) const { return weight(stage) + weight_bytes; }
  // This thread's sums of 8 own rows that came from the part `ahead` places further, 1 to kParts - 1.
  __device__ __forceinline__ uint32_t sums_from(int ahead) const {
    return sums + ((ahead - 1) * (kOwn / 8) * n_threads + threadIdx.x) * 16;
  }
  __device__ __forceinline__ uint32_t received() const { return barriers; }  // the other parts' sums
  __device__ __forceinline__ uint32_t full(int stage) const { return barriers + 8 + stage * 16; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return full(stage) + 8; }
};

// Where in the ring the producer or a consumer is.
struct NarrowStage {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance(int n_stages) {
    if (++stage == n_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// What a thread block does.
template <int kTokens, int kParts>
struct NarrowPlace {
  int part;
  int first_column, first_row;  // of out
  int begin, n_steps;           // panels of the inner dimension

  __device__ __forceinline__ NarrowPlace(const NarrowLinearArgs& args, const NarrowTiling& tiling) {
    part = cluster_rank<(kParts > 1)>();
    first_column = static_cast<int>(blockIdx.x) / kParts * (args.is_gated ? tiling.tile_rows / 2 : tiling.tile_rows);
    first_row = static_cast<int>(blockIdx.y) * kTokens;
    const int n_panels = (args.row_len + kNarrowInner - 1) / kNarrowInner;
    begin = n_panels * part / kParts;
    n_steps = n_panels * (part + 1) / kParts - begin;
  }

  // The part so many places further, and the first of the rows of x that it adds up.
  __device__ __forceinline__ int part_ahead(int n) const { return (part + n) % kParts; }
  __device__ __forceinline__ int first_row_of(int of_part) const { return first_row + of_part * (kTokens / kParts); }

  // The row of the weight that is the tile's row, -1 behind the last.
  __device__ __forceinline__ int product(const NarrowLinearArgs& args, const NarrowTiling& tiling, int row) const {
    const int n_columns = args.is_gated ? tiling.tile_rows / 2 : tiling.tile_rows;
    const bool is_up = args.is_gated && row >= n_columns;
    const int column = is_up ? row - n_columns : row;
    if (column >= n_columns || first_column + column >= args.n_out) return -1;
    return first_column + column + (is_up ? args.n_out : 0);
  }
};

// The producer, one thread.
template <int kTokens, int kParts>
struct NarrowProducer {
  using Memory = NarrowMemory<kTokens, kParts>;

  const NarrowLinearArgs& args;
  const NarrowMaps& maps;
  const NarrowTiling& tiling;
  const Memory& memory;
  const NarrowPlace<kTokens, kParts>& place;

  __device__ __forceinline__ void copy_weights(int step, int stage) const {
    const int element = (place.begin + step) * kNarrowInner;
    const uint32_t full = memory.full(stage), to = memory.weight(stage);
    barrier_arrive_expecting(full, memory.stage_bytes);
    copy_panel(to, maps.weight, element, place.first_column, full);
    if (args.is_gated) copy_panel(to + memory.weight_bytes / 2, maps.weight, element, args.n_out + place.first_column, full);
  }

  // The own rows first, then those of the next parts: the same registers hold them in every block.
  __device__ __forceinline__ void copy_x(int step, int stage) const {
    const int element = (place.begin + step) * kNarrowInner;
#pragma unroll
    for (int ahead = 0; ahead < kParts; ++ahead) {
      copy_panel(memory.x(stage) + ahead * Memory::kOwn * kNarrowRowBytes, maps.x, element,
                 place.first_row_of(place.part_ahead(ahead)), memory.full(stage));
    }
  }

  __device__ __forceinline__ void begin() const {
    const int n_first = min(tiling.n_stages, place.n_steps);
#pragma unroll 1
    for (int step = 0; step < n_first; ++step) copy_weights(step, step);
  }

  __device__ __forceinline__ void go_on() const {
    NarrowStage at;
#pragma unroll 1
    for (int step = 0; step < place.n_steps; ++step) {
      if (step >= tiling.n_stages) {
        barrier_wait(memory.empty(at.stage), at.parity ^ 1);
        copy_weights(step, at.stage);
      }
      copy_x(step, at.stage);
      at.advance(tiling.n_stages);
    }
  }
};

template <typename T, int kTokens, typename Memory>
__device__ __forceinline__ void multiply_narrow(const NarrowTiling& tiling, const Memory& memory, int n_steps,
                                                float (&sums)[kTokens / 2]) {
  const int group = threadIdx.x / 128;
  NarrowStage at;
  int before = 0;  // the stage whose products run on while those of the next are asked for
#pragma unroll 1
  for (int step = 0; step < n_steps; ++step) {
    barrier_wait(memory.full(at.stage), at.parity);
    const uint64_t a = tile_descriptor(memory.weight(at.stage) + group * 64 * kNarrowRowBytes);
    const uint64_t b = tile_descriptor(memory.x(at.stage));
    wgmma_fence();
#pragma unroll
    for (int inner = 0; inner < kNarrowInner / 16; ++inner) {
      Wgmma<T, kTokens / 2>::ss(sums, a + inner * 2, b + inner * 2, step > 0 || inner > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0 && threadIdx.x % kWarpSize == 0) barrier_arrive(memory.empty(before));
    before = at.stage;
    at.advance(tiling.n_stages);
  }
  wgmma_wait_for(sums);
}

// Sends this thread's sums of the other parts' rows to the thread of their block that has the same ones of its own.
template <int kTokens, int kParts>
__device__ __forceinline__ void send_narrow_sums(const NarrowMemory<kTokens, kParts>& memory,
                                                 const NarrowPlace<kTokens, kParts>& place,
                                                 const float (&sums)[kTokens / 2]) {
  constexpr int kOwnGroups = kTokens / kParts / 8;  // of 8 rows
#pragma unroll
  for (int ahead = 1; ahead < kParts; ++ahead) {
    const int to_part = place.part_ahead(ahead);
    const uint32_t barrier = address_in_block(memory.received(), to_part);
    uint32_t to = address_in_block(memory.sums_from(kParts - ahead), to_part);
#pragma unroll
    for (int i = ahead * kOwnGroups; i < (ahead + 1) * kOwnGroups; ++i) {
      send_float4(to, sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3], barrier);
      to += memory.n_threads * 16;
    }
  }
}

// Adds up what the parts have for the own rows, and the bias, rounds and lays it out as [rows][out_stride].
template <typename T, int kTokens, int kParts>
__device__ __forceinline__ void add_narrow_parts(const NarrowLinearArgs& args, const NarrowTiling& tiling,
                                                 const NarrowMemory<kTokens, kParts>& memory,
                                                 const NarrowPlace<kTokens, kParts>& place,
                                                 const float (&sums)[kTokens / 2]) {
  const int lane = threadIdx.x % kWarpSize, first_row = static_cast<int>(threadIdx.x) / kWarpSize * 16;  // of the tile
  float bias[2] = {};
  if (args.bias != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int product = place.product(args, tiling, first_row + half * 8 + lane / 4);
      if (product >= 0) bias[half] = to_float(static_cast<const T*>(args.bias)[product]);
    }
  }
  uint32_t received[kParts];  // by part; none of this one
#pragma unroll
  for (int part = 0; part < kParts; ++part) received[part] = memory.sums_from((part - place.part + kParts) % kParts);
  float values[kTokens / kParts / 2];
#pragma unroll
  for (int i = 0; i < kTokens / kParts / 8; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) values[i * 4 + e] = 0.0f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float added[4] = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
      if (part != place.part) load_shared_float4(added, received[part] + i * memory.n_threads * 16);
#pragma unroll
      for (int e = 0; e < 4; ++e) values[i * 4 + e] += added[e];
    }
  }
  const int stride = memory.out_stride(tiling);
  // Lane l gives the address of row l % 8 of x and of weights' rows from l / 8 * 8 on.
  uint32_t out = memory.base + (lane % 8 * stride + first_row + lane / 8 % 2 * 8) * 2;
#pragma unroll
  for (int i = 0; i < kTokens / kParts / 2; i += 4) {
    if (args.bias != nullptr) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[i + e] += bias[e / 2];
    }
    store_transposed_8x8x2(out, pack_2<T>(values[i], values[i + 1]), pack_2<T>(values[i + 2], values[i + 3]));
    out += 8 * stride * 2;
  }
}

// Writes what becomes of the own rows. products: see add_narrow_parts.
template <typename T, int kTokens, int kParts>
__device__ __forceinline__ void write_narrow_rows(const NarrowLinearArgs& args, const NarrowTiling& tiling,
                                                  const NarrowMemory<kTokens, kParts>& memory,
                                                  const NarrowPlace<kTokens, kParts>& place, const T* products) {
  using Group = Vec<T, 8>;
  const int n_columns = min(args.is_gated ? tiling.tile_rows / 2 : tiling.tile_rows, args.n_out - place.first_column);
  const int n_vecs = n_columns / 8, first_row = place.first_row_of(place.part);
  const int n_rows = min(kTokens / kParts, args.n_rows - first_row), stride = memory.out_stride(tiling);
  const int row_step = memory.n_threads / n_vecs, vec_step = memory.n_threads - row_step * n_vecs;
  int row = static_cast<int>(threadIdx.x) / n_vecs, vec = static_cast<int>(threadIdx.x) - row * n_vecs;
#pragma unroll 1
  while (row < n_rows) {
    const T* const from = products + row * stride + vec * 8;
    Group* const out = reinterpret_cast<Group*>(static_cast<T*>(args.out) + (first_row + row) * args.out_stride +
                                                place.first_column + vec * 8);
    Group result = *reinterpret_cast<const Group*>(from);
    if (args.is_gated) {
      const Group ups = *reinterpret_cast<const Group*>(from + tiling.tile_rows / 2);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        result.elements[e] = from_float<T>(activate<GatedAct::kSilu>(to_float(result.elements[e])) * to_float(ups.elements[e]));
      }
    }
    if (args.adds) {
      const Group before = *out;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        result.elements[e] = from_float<T>(to_float(before.elements[e]) + to_float(result.elements[e]));
      }
    }
    *out = result;
    row += row_step, vec += vec_step;
    if (vec >= n_vecs) vec -= n_vecs, ++row;
  }
}

// Consumers and a warp for the producer. More than are ever launched, so that two blocks have registers.
constexpr int kNarrowMaxThreads = 576;

// The body is empty where wgmma does not exist: the launcher refuses to run there.
template <typename T, int kTokens, int kParts>
__global__ void __launch_bounds__(kNarrowMaxThreads, 1)
    narrow_linear_kernel(const NarrowLinearArgs args, const NarrowTiling tiling, const __grid_constant__ NarrowMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  let_next_kernel_start();
  const NarrowMemory<kTokens, kParts> memory(shared, tiling);
  const NarrowPlace<kTokens, kParts> place(args, tiling);
  const NarrowProducer<kTokens, kParts> producer{args, maps, tiling, memory, place};
  const int n_consumers = memory.n_threads;
  const bool is_consumer = threadIdx.x < n_consumers, is_producer = threadIdx.x == n_consumers;
  if (is_producer) {
    prefetch_map(maps.weight);
    prefetch_map(maps.x);
#pragma unroll 1
    for (int stage = 0; stage < tiling.n_stages; ++stage) {
      barrier_init(memory.full(stage), 1);
      barrier_init(memory.empty(stage), n_consumers / kWarpSize);
    }
    barrier_init(memory.received(), 1);
    barrier_init_fence();
    if constexpr (kParts > 1) barrier_arrive_expecting(memory.received(), (kParts - 1) * memory.sent_size(tiling));
  }
  __syncthreads();
  if constexpr (kParts > 1) arrive_in_cluster();  // the others may send their sums
  if (!is_consumer) {
    if (is_producer) producer.begin();
    wait_for_previous_kernel();
    if (is_producer) producer.go_on();
    return;
  }
  wait_for_previous_kernel();

  const bool has_rows = threadIdx.x / kWarpSize * 16 < tiling.tile_rows;  // of the weight, this warp
  float sums[kTokens / 2];
  multiply_narrow<T, kTokens>(tiling, memory, place.n_steps, sums);
  if constexpr (kParts > 1) {
    wait_for_cluster();
    if (has_rows) send_narrow_sums(memory, place, sums);
  }
  named_sync(1, n_consumers);  // nobody reads the ring any more
  if constexpr (kParts > 1) barrier_wait(memory.received(), 0);
  if (has_rows) add_narrow_parts<T>(args, tiling, memory, place, sums);
  named_sync(1, n_consumers);
  write_narrow_rows<T>(args, tiling, memory, place, reinterpret_cast<const T*>(shared));
#endif
}

}  // namespace astrai
