// narrow_linear kernel for sm_90a: y^T = W x^T, so that rows of the weight are the 64 of wgmma and rows of x its N. A thread
// block takes a tile of tile_rows rows of the weight, up to kTokens rows of x and one part of the inner dimension: one thread
// asks the copy engine for panels of both, a ring of stages ahead, and kGroups warpgroups multiply 64 rows each. What they
// read behind the tile's last row becomes sums that nobody uses.
//
// A cluster is the parts of one tile. Each adds up a share of the rows of x: the others send it their sums, and it adds part
// after part, so that the order of a sum depends on the number of parts alone.
//
// The first weights are asked for before the kernel waits for the one that makes x.
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
constexpr int kNarrowVec = 4;                                         // columns that a thread writes at once

constexpr int kNarrowMaxTileRows = 128;

struct NarrowMaps {
  CUtensorMap weight;  // panels of tile_rows, with silu_mul of half of them
  CUtensorMap x;       // panels of kTokens
};

// What a launch decides beside the arguments.
struct NarrowTiling {
  int tile_rows;  // of the weight: a multiple of 8, of 16 with silu_mul
  int n_parts;    // of the inner dimension
  int n_stages;
};

// Dynamic shared memory, on 1024 bytes: the stages, each [tile_rows] rows of the weight and [tokens] of x; later in their place
// the sums, float [tokens][tile_rows + 4] and [n_parts - 1][tokens / n_parts][tile_rows + 4] of the other parts. Then barriers.
struct NarrowMemory {
  uint32_t base, stage_bytes, weight_bytes, barriers;

  __host__ __device__ static int stage_size(const NarrowTiling& tiling, int tokens) {
    return (tiling.tile_rows + tokens) * kNarrowRowBytes;
  }
  // Floats from row to row: lanes of a warp then write to 32 banks.
  __host__ __device__ static int sum_stride(const NarrowTiling& tiling) { return tiling.tile_rows + 4; }
  __host__ __device__ static int sums_size(const NarrowTiling& tiling, int tokens) {
    return (2 * tokens - tokens / tiling.n_parts) * sum_stride(tiling) * 4;
  }
  __host__ __device__ static int barriers_offset(const NarrowTiling& tiling, int tokens) {
    const int ring = tiling.n_stages * stage_size(tiling, tokens), sums = sums_size(tiling, tokens);
    return ring > sums ? ring : sums;
  }
  // With what wgmma may read behind the last stage: a warpgroup has 8 rows of the tile at least, and reads 64.
  __host__ __device__ static int size(const NarrowTiling& tiling, int tokens) {
    return barriers_offset(tiling, tokens) + (2 * tiling.n_stages + 1) * 8 + (tokens < 56 ? (56 - tokens) * kNarrowRowBytes : 0);
  }

  __device__ NarrowMemory(const void* shared, const NarrowTiling& tiling, int tokens)
      : base(shared_address(shared)),
        stage_bytes(stage_size(tiling, tokens)),
        weight_bytes(tiling.tile_rows * kNarrowRowBytes),
        barriers(base + barriers_offset(tiling, tokens)) {}
  __device__ __forceinline__ uint32_t weight(int stage) const { return base + stage * stage_bytes; }
  __device__ __forceinline__ uint32_t x(int stage) const { return weight(stage) + weight_bytes; }
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
struct NarrowPlace {
  int part;
  int first_column, first_row;  // of out
  int begin, n_steps;           // panels of the inner dimension

  __device__ __forceinline__ NarrowPlace(const NarrowLinearArgs& args, const NarrowTiling& tiling, int tokens) {
    part = cluster_rank<true>();
    const int tile = static_cast<int>(blockIdx.x) / tiling.n_parts;
    first_column = tile * (args.is_gated ? tiling.tile_rows / 2 : tiling.tile_rows);
    first_row = static_cast<int>(blockIdx.y) * tokens;
    const int n_panels = (args.row_len + kNarrowInner - 1) / kNarrowInner;
    begin = n_panels * part / tiling.n_parts;
    n_steps = n_panels * (part + 1) / tiling.n_parts - begin;
  }
};

// The producer, one thread.
struct NarrowProducer {
  const NarrowLinearArgs& args;
  const NarrowMaps& maps;
  const NarrowTiling& tiling;
  const NarrowMemory& memory;
  const NarrowPlace& place;

  __device__ __forceinline__ void copy_weights(int step, int stage) const {
    const int element = (place.begin + step) * kNarrowInner;
    const uint32_t full = memory.full(stage), to = memory.weight(stage);
    barrier_arrive_expecting(full, memory.stage_bytes);
    copy_panel(to, maps.weight, element, place.first_column, full);
    if (args.is_gated) copy_panel(to + memory.weight_bytes / 2, maps.weight, element, args.n_out + place.first_column, full);
  }

  __device__ __forceinline__ void begin() const {
    const int n_first = min(tiling.n_stages, place.n_steps);
    for (int step = 0; step < n_first; ++step) copy_weights(step, step);
  }

  __device__ __forceinline__ void go_on() const {
    NarrowStage at;
    for (int step = 0; step < place.n_steps; ++step) {
      if (step >= tiling.n_stages) {
        barrier_wait(memory.empty(at.stage), at.parity ^ 1);
        copy_weights(step, at.stage);
      }
      copy_panel(memory.x(at.stage), maps.x, (place.begin + step) * kNarrowInner, place.first_row, memory.full(at.stage));
      at.advance(tiling.n_stages);
    }
  }
};

template <typename T, int kTokens>
__device__ __forceinline__ void multiply_narrow(const NarrowTiling& tiling, const NarrowMemory& memory,
                                                const NarrowPlace& place, float (&sums)[kTokens / 2]) {
  const int group = threadIdx.x / 128;
  NarrowStage at;
  for (int step = 0; step < place.n_steps; ++step) {
    barrier_wait(memory.full(at.stage), at.parity);
    const uint64_t a = tile_descriptor(memory.weight(at.stage) + group * 64 * kNarrowRowBytes);
    const uint64_t b = tile_descriptor(memory.x(at.stage));
    wgmma_fence();
#pragma unroll
    for (int inner = 0; inner < kNarrowInner / 16; ++inner) {
      Wgmma<T, kTokens / 2>::ss(sums, a + inner * 2, b + inner * 2, step > 0 || inner > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();  // the memory is what takes long: the stage goes back at once
    if (threadIdx.x % kWarpSize == 0) barrier_arrive(memory.empty(at.stage));
    at.advance(tiling.n_stages);
  }
}

// Lays a warpgroup's sums out as [tokens][tile_rows + 4].
template <int kTokens>
__device__ __forceinline__ void store_narrow_sums(const NarrowTiling& tiling, const float (&sums)[kTokens / 2], float* to) {
  const int stride = NarrowMemory::sum_stride(tiling);
  const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16 + threadIdx.x % kWarpSize / 4, token = threadIdx.x % 4 * 2;
  // tile_rows is a multiple of 8: so all lanes of a warp have a row or none has.
  if (row < tiling.tile_rows) {
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) to[(i / 2 * 8 + token + i % 2) * stride + row] = sums[i / 2 * 4 + i % 2];
  }
  if (row + 8 < tiling.tile_rows) {
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) to[(i / 2 * 8 + token + i % 2) * stride + row + 8] = sums[i / 2 * 4 + 2 + i % 2];
  }
}

// Adds up what the parts have for columns of a row, and the bias, and rounds. own: of this part; received: of the first other.
template <typename T>
__device__ __forceinline__ void add_narrow_parts(const NarrowTiling& tiling, const NarrowPlace& place, const float* own,
                                                 const float* received, int slot_len, const T* bias,
                                                 float (&values)[kNarrowVec]) {
#pragma unroll
  for (int e = 0; e < kNarrowVec; ++e) values[e] = 0.0f;
  for (int part = 0; part < tiling.n_parts; ++part) {
    const float4 added = *reinterpret_cast<const float4*>(part == place.part ? own : received);
    if (part != place.part) received += slot_len;
    values[0] += added.x, values[1] += added.y, values[2] += added.z, values[3] += added.w;
  }
#pragma unroll
  for (int e = 0; e < kNarrowVec; ++e) {
    if (bias != nullptr) values[e] += to_float(bias[e]);
    values[e] = to_float(from_float<T>(values[e]));
  }
}

// Writes what becomes of this part's share of the rows. sums: see NarrowMemory.
template <typename T, int kTokens, int kThreads>
__device__ __forceinline__ void write_narrow_rows(const NarrowLinearArgs& args, const NarrowTiling& tiling,
                                                  const NarrowPlace& place, const float* sums) {
  using Group = Vec<T, kNarrowVec>;
  const int n_columns = args.is_gated ? tiling.tile_rows / 2 : tiling.tile_rows, n_vecs = n_columns / kNarrowVec;
  const int stride = NarrowMemory::sum_stride(tiling), n_own = kTokens / tiling.n_parts, first_token = n_own * place.part;
  const int n_items = min(n_own, args.n_rows - place.first_row - first_token) * n_vecs;
  const T* const bias = static_cast<const T*>(args.bias);
  for (int item = threadIdx.x; item < n_items; item += kThreads) {
    const int token = item / n_vecs, at = (item - token * n_vecs) * kNarrowVec, column = place.first_column + at;
    if (column >= args.n_out) continue;
    T* const out = static_cast<T*>(args.out) + (place.first_row + first_token + token) * args.out_stride + column;
    Group result{};
    if (args.adds) result = *reinterpret_cast<const Group*>(out);
    const float* const own = sums + (first_token + token) * stride + at;
    const float* const received = sums + (kTokens + token) * stride + at;
    float values[kNarrowVec];
    add_narrow_parts(tiling, place, own, received, n_own * stride, bias == nullptr ? bias : bias + column, values);
    if (args.is_gated) {
      float ups[kNarrowVec];
      add_narrow_parts(tiling, place, own + n_columns, received + n_columns, n_own * stride,
                       bias == nullptr ? bias : bias + args.n_out + column, ups);
#pragma unroll
      for (int e = 0; e < kNarrowVec; ++e) values[e] = activate<GatedAct::kSilu>(values[e]) * ups[e];
    }
#pragma unroll
    for (int e = 0; e < kNarrowVec; ++e) {
      result.elements[e] = from_float<T>(args.adds ? to_float(result.elements[e]) + values[e] : values[e]);
    }
    *reinterpret_cast<Group*>(out) = result;
  }
}

// Sends this part's sums of the other parts' shares to them: one copy a thread.
template <int kTokens>
__device__ __forceinline__ void send_narrow_sums(const NarrowTiling& tiling, const NarrowMemory& memory,
                                                 const NarrowPlace& place) {
  const int to_part = threadIdx.x;
  if (to_part >= tiling.n_parts || to_part == place.part) return;
  const uint32_t share_bytes = kTokens / tiling.n_parts * NarrowMemory::sum_stride(tiling) * 4;
  const int slot = place.part < to_part ? place.part : place.part - 1;
  const uint32_t to = memory.base + (tiling.n_parts + slot) * share_bytes;
  copy_to_block(address_in_block(to, to_part), memory.base + to_part * share_bytes, share_bytes,
                address_in_block(memory.received(), to_part));
}

template <int kGroups>
constexpr int kNarrowThreads = 128 * kGroups + kWarpSize;

// The body is empty where wgmma does not exist: the launcher refuses to run there.
template <typename T, int kTokens, int kGroups>
__global__ void __launch_bounds__(kNarrowThreads<kGroups>, kGroups > 2 ? 1 : 2)
    narrow_linear_kernel(const NarrowLinearArgs args, const NarrowTiling tiling, const __grid_constant__ NarrowMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  let_next_kernel_start();
  const NarrowMemory memory(shared, tiling, kTokens);
  const NarrowPlace place(args, tiling, kTokens);
  const NarrowProducer producer{args, maps, tiling, memory, place};
  const bool is_consumer = threadIdx.x < 128 * kGroups, is_producer = threadIdx.x == 128 * kGroups;
  if (is_producer) {
    for (int stage = 0; stage < tiling.n_stages; ++stage) {
      barrier_init(memory.full(stage), 1);
      barrier_init(memory.empty(stage), kGroups * 4);  // one arrival a warp
    }
    barrier_init(memory.received(), 1);
    barrier_init_fence();
    producer.begin();
    prefetch_map(maps.x);
    const int n_received = kTokens - kTokens / tiling.n_parts;
    barrier_arrive_expecting(memory.received(), n_received * NarrowMemory::sum_stride(tiling) * 4);
  }
  __syncthreads();
  wait_for_previous_kernel();

  float sums[kTokens / 2];
  if (is_consumer) multiply_narrow<T, kTokens>(tiling, memory, place, sums);
  if (is_producer) producer.go_on();
  __syncwarp();
  const bool is_cluster = tiling.n_parts > 1;
  if (is_cluster) {  // no block reads its ring any more: sums may be sent there
    arrive_in_cluster();
    wait_for_cluster();
  } else {
    __syncthreads();
  }
  float* const staging = reinterpret_cast<float*>(shared);
  if (is_consumer) store_narrow_sums<kTokens>(tiling, sums, staging);
  if (is_cluster) fence_async_proxy();
  __syncthreads();
  if (is_cluster) {
    send_narrow_sums<kTokens>(tiling, memory, place);
    __syncwarp();
    barrier_wait(memory.received(), 0);
    arrive_in_cluster();
  }
  write_narrow_rows<T, kTokens, kNarrowThreads<kGroups>>(args, tiling, place, staging);
  if (is_cluster) wait_for_cluster();  // the others have what this block sent
#endif
}

}  // namespace astrai
