// attn_paged_decode kernel. The work is cut into units, (split, KV head, tile of query heads), KV heads fastest so that
// the heads of a token are read together; thread blocks take units in turn until there are none. Lengths are read on the
// device, the grid is a constant: a captured launch replays with other lengths.
//
// Each warp takes its share of a unit's tiles and keeps its own softmax; the warps merge at the end. A warp's ring of
// tiles runs on across units: while it attends the last tiles of one, the first of the next are on their way, found
// through slots that were loaded when the unit began. Position kv_len - 1 is read from new_k and new_v, never from its
// slot, which one unit of each KV head writes: no thread block reads what another one writes.
#pragma once

#include "attention/attn_paged_decode_merge.cuh"

namespace astrai::paged_decode {

constexpr int kMaxStages = 6;

// One (split, KV head, tile of its query heads) of the work.
struct Unit {
  int req;          // row of the batch
  int table_row;    // of req_to_token
  int kv_len;
  int kv_head;
  int first_head;   // query heads first_head .. first_head + n_rows - 1
  int n_rows;
  int split;        // of the request's n_splits
  int n_splits;
};

// The request that owns a place of the workspace: the last i with split_indptr[i] <= place. 32 probes at a time.
__device__ inline int find_request(const int32_t* split_indptr, int batch, int place, int lane) {
  int low = 0, n = batch;
  while (true) {
    const int step = (n + 31) / 32;
    const bool is_below = lane * step < n && split_indptr[low + lane * step] <= place;
    low += (__popc(__ballot_sync(kAllLanes, is_below)) - 1) * step;
    if (step == 1) return low;
    n = min(step, batch - low);
  }
}

template <int kRows>
__device__ Unit find_unit(const PagedDecodeArgs& args, int index, int n_head_tiles, int lane) {
  Unit unit;
  const int n_row_tiles = n_head_tiles / args.n_kv_heads;
  const int place = index / n_head_tiles, head_tile = index % n_head_tiles;
  unit.kv_head = head_tile / n_row_tiles;
  const int row = head_tile % n_row_tiles * kRows;
  unit.first_head = unit.kv_head * args.group + row;
  unit.n_rows = min(kRows, args.group - row);
  int first_split, end_split;
  if (args.batch < 32) {  // one round of loads holds the whole plan
    const int at = min(lane, args.batch);
    const int splits = args.split_indptr[at], kv = args.kv_indptr[at];
    const int rows = args.req_pool_indices[min(lane, args.batch - 1)];
    unit.req = __popc(__ballot_sync(kAllLanes, lane < args.batch && splits <= place)) - 1;
    first_split = __shfl_sync(kAllLanes, splits, unit.req);
    end_split = __shfl_sync(kAllLanes, splits, unit.req + 1);
    unit.kv_len = __shfl_sync(kAllLanes, kv, unit.req + 1) - __shfl_sync(kAllLanes, kv, unit.req);
    unit.table_row = __shfl_sync(kAllLanes, rows, unit.req);
  } else {
    unit.req = find_request(args.split_indptr, args.batch, place, lane);
    first_split = args.split_indptr[unit.req];
    end_split = args.split_indptr[unit.req + 1];
    unit.kv_len = args.kv_indptr[unit.req + 1] - args.kv_indptr[unit.req];
    unit.table_row = args.req_pool_indices[unit.req];
  }
  unit.n_splits = end_split - first_split;
  unit.split = place - first_split;
  return unit;
}

template <typename T, int kHeadDim>
__device__ KvRange<T> kv_range(const PagedDecodeArgs& args, const Unit& unit, int warp) {
  constexpr int kBlockTokens = Shape<kHeadDim>::kBlockTokens, kWarpTokens = Shape<kHeadDim>::kWarpTokens;
  static_assert(kDecodeTileTokens % kBlockTokens == 0, "splits begin where tiles begin");
  KvRange<T> range;
  range.table = args.req_to_token + unit.table_row * args.table_stride;
  range.k_stride = args.k_stride;
  range.v_stride = args.v_stride;
  range.k = static_cast<const T*>(args.k_cache) + static_cast<int64_t>(unit.kv_head) * args.k_head_stride;
  range.v = static_cast<const T*>(args.v_cache) + static_cast<int64_t>(unit.kv_head) * args.v_head_stride;
  range.new_pos = -1;
  range.new_k = range.new_v = nullptr;
  if (args.new_k != nullptr) {
    range.new_pos = unit.kv_len - 1;
    range.new_k = static_cast<const T*>(args.new_k) + unit.req * args.new_k_stride +
                  static_cast<int64_t>(unit.kv_head) * args.new_k_head_stride;
    range.new_v = static_cast<const T*>(args.new_v) + unit.req * args.new_v_stride +
                  static_cast<int64_t>(unit.kv_head) * args.new_v_head_stride;
  }
  const int split_begin = unit.split * args.split_len;
  range.begin = max(split_begin, unit.kv_len - args.window);
  range.end = min(split_begin + args.split_len, unit.kv_len);
  // Tiles begin at absolute multiples, wherever the window does.
  range.first = split_begin + max(range.begin - split_begin, 0) / kBlockTokens * kBlockTokens + warp * kWarpTokens;
  return range;
}

// Writes this step's key and value of the unit's KV head to the slot of the request's last position.
template <typename T, int kHeadDim>
__device__ void store_new_row(const PagedDecodeArgs& args, const Unit& unit, const KvRange<T>& range, int lane) {
  const int64_t slot = range.table[range.new_pos];
  if (slot < 0) return;
  // A write past the pool would change another request's cache; stopping the device is the lesser harm.
  if (slot >= args.n_slots) __trap();
  T* k = const_cast<T*>(range.k) + slot * range.k_stride;
  T* v = const_cast<T*>(range.v) + slot * range.v_stride;
  for (int chunk = lane; chunk < Ring<T, kHeadDim>::kRowChunks; chunk += 32) {
    reinterpret_cast<uint4*>(k)[chunk] = reinterpret_cast<const uint4*>(range.new_k)[chunk];
    reinterpret_cast<uint4*>(v)[chunk] = reinterpret_cast<const uint4*>(range.new_v)[chunk];
  }
}

// Waits until at most n_pending of this thread's groups are unfinished; n_pending < kMaxStages.
__device__ inline void wait_pending(int n_pending) {
  switch (n_pending) {
    case 0:
      return cp_async_wait<0>();
    case 1:
      return cp_async_wait<1>();
    case 2:
      return cp_async_wait<2>();
    case 3:
      return cp_async_wait<3>();
    case 4:
      return cp_async_wait<4>();
    default:
      return cp_async_wait<5>();
  }
}

// Fills a warp's ring, tile after tile of one range after another; one group of copies for each tile.
template <typename T, int kHeadDim>
struct RingFiller {
  using Tiles = Ring<T, kHeadDim>;

  uint32_t ring;
  int* range_slots;  // in shared memory, of the range
  int n_stages;
  int stage = 0;    // the next to fill
  int n_ahead = 0;  // tiles that are filled, or being filled, and not attended
  KvRange<T> range;
  const int* slots;  // of the next tile
  int pos, n_left;   // of the next tile, and tiles of the range from there on

  __device__ void begin(const KvRange<T>& next, const typename Tiles::Slots& next_slots, int lane) {
    next_slots.store(range_slots, lane);
    range = next;
    slots = range_slots;
    pos = next.first;
    n_left = Tiles::n_tiles(next);
  }

  __device__ bool has_room() const { return n_ahead < n_stages; }

  __device__ void fill_next(int lane) {
    Tiles::fill(range, ring + stage * Tiles::kStageBytes, slots, pos, lane);
    cp_async_commit();
    slots += Tiles::kWarpTokens;
    pos += Tiles::kBlockTokens;
    --n_left;
    ++n_ahead;
    stage = stage + 1 == n_stages ? 0 : stage + 1;
  }
};

// Thread blocks on a multiprocessor, as registers allow it: one attends while another merges.
template <int kHeadDim, int kHeadTiles>
constexpr int kMinBlocks = kHeadDim > 128 ? 1 : kHeadTiles > 1 ? 2 : 3;

template <typename T, int kHeadDim, int kHeadTiles>
__global__ void __launch_bounds__(Shape<kHeadDim>::kThreads, kMinBlocks<kHeadDim, kHeadTiles>)
    kernel(const PagedDecodeArgs args, const int n_head_tiles, const int n_stages) {
  using Merge = WarpMerge<T, kHeadDim, kHeadTiles>;
  using Tiles = Ring<T, kHeadDim>;
  extern __shared__ __align__(128) unsigned char rings[];  // [kWarps, n_stages, kStageBytes]
  __shared__ typename Merge::Shared merge_shared;
  __shared__ int shared_slots[Shape<kHeadDim>::kWarps][Shape<kHeadDim>::kMaxSlots];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  wait_for_previous_kernel();
  let_next_kernel_start();
  const int n_splits = args.split_indptr[args.batch];
  int index = blockIdx.x;
  Unit unit = find_unit<Merge::kRows>(args, index, n_head_tiles, lane);  // some unit when there is none for this block
  if (n_splits > args.max_splits) __trap();                             // the workspace has no room for them
  const int n_units = n_splits * n_head_tiles;
  if (index >= n_units) return;
  KvRange<T> range = kv_range<T, kHeadDim>(args, unit, warp);
  typename Tiles::Slots slots;
  slots.load(range, lane);
  RingFiller<T, kHeadDim> filler{shared_address(rings) + warp * n_stages * Tiles::kStageBytes, shared_slots[warp],
                                 n_stages};
  filler.begin(range, slots, lane);
  while (filler.has_room() && filler.n_left > 0) filler.fill_next(lane);
  const auto load_q = [&](WarpSoftmax<T, kHeadDim, kHeadTiles>& softmax, const Unit& from) {
    const T* rows = static_cast<const T*>(args.q) + from.req * args.q_stride;
    softmax.load_q(rows + static_cast<int64_t>(from.first_head) * args.q_head_stride, args.q_head_stride, from.n_rows,
                   lane);
  };
  WarpSoftmax<T, kHeadDim, kHeadTiles> softmax;
  load_q(softmax, unit);

  int stage = 0;
  while (true) {
    const int next_index = index + gridDim.x;
    bool is_next_pending = next_index < n_units;  // there is a next unit that the filler has not begun
    Unit next = unit;
    KvRange<T> next_range = range;
    if (is_next_pending) {
      next = find_unit<Merge::kRows>(args, next_index, n_head_tiles, lane);
      next_range = kv_range<T, kHeadDim>(args, next, warp);
      slots.load(next_range, lane);
    }

    softmax.reset();
    const int n_tiles = Tiles::n_tiles(range);
    for (int tile = 0;; ++tile) {
      while (filler.has_room()) {
        if (filler.n_left == 0) {
          if (!is_next_pending) break;
          is_next_pending = false;
          filler.begin(next_range, slots, lane);
          if (filler.n_left == 0) break;
        }
        filler.fill_next(lane);
      }
      if (tile == n_tiles) break;
      wait_pending(filler.n_ahead - 1);
      __syncwarp();
      softmax.attend(filler.ring + stage * Tiles::kStageBytes, range.first + tile * Tiles::kBlockTokens, range.begin,
                     range.end, args.scale_log2, args.cap_log2);
      __syncwarp();
      --filler.n_ahead;
      stage = stage + 1 == n_stages ? 0 : stage + 1;
    }

    const bool is_last = unit.split == unit.n_splits - 1;
    if (warp == 0 && is_last && range.new_pos >= 0 && unit.first_head == unit.kv_head * args.group) {
      store_new_row<T, kHeadDim>(args, unit, range, lane);
    }
    if (next_index < n_units) load_q(softmax, next);
    const int place = unit.n_splits == 1 ? -1 : index / n_head_tiles;
    Merge::run(merge_shared, softmax, unit.n_rows, {args, unit.req, unit.first_head, place});
    if (next_index >= n_units) return;
    index = next_index;
    unit = next;
    range = next_range;
  }
}

}  // namespace astrai::paged_decode

namespace astrai {

// Launches on stream for a device that is current; defined once for each instance.
template <typename T, int kHeadDim>
void launch_attn_paged_decode(const PagedDecodeArgs& args, int device_idx, cudaStream_t stream);

}  // namespace astrai
