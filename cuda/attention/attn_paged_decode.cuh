// attn_paged_decode kernel. The work is cut into units, (split, KV head, tile of query rows), KV heads fastest so that
// the heads of a token are read together; thread blocks take units until there are none. Lengths are read on the device,
// the grid is a constant: a captured launch replays with other lengths.
//
// A block's first two units follow from its number. The others are taken by ticket where a plan has a counter for them,
// as multiprocessors differ in speed by a quarter when all read at once; else they are a grid apart.
//
// Each warp takes its share of a unit's tiles and keeps its own softmax; the warps merge at the end. A warp's ring of
// tiles runs on across units: while it attends the last tiles of one, the first of the next are on their way, found
// through slots that were loaded when the unit began. Position kv_len - 1 is read from new_k and new_v, never from its
// slot, which one unit of each KV head writes: no thread block reads what another one writes.
//
// With a plan (decode_runs.h) the query rows of a unit may come from several requests that hold the same slots
// there: they are stacked, and the slots read once. A row's sums are those it has alone, in the same order. What the plan
// says of the next unit is loaded between the tiles of the one before.
//
// Few units are spread: two or four thread blocks share the warps of each, with the whole block's ring for fewer warps,
// and leave the warps' parts to the merge kernel.
#pragma once

#include "attention/attn_paged_decode_merge.cuh"
#include "attention/attn_paged_decode_units.cuh"
#include "common/pdl.cuh"

namespace astrai::paged_decode {

constexpr int kMaxStages = 8;

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

// Writes this step's key and value of the unit's KV head to the slot of the request's last position: one warp of one unit
// has to.
template <typename T, int kHeadDim>
__device__ void store_new_row(const PagedDecodeArgs& args, const Unit& unit, const KvRange<T>& range, int warp, int lane) {
  if (warp > 0 || !unit.is_last || range.new_pos < 0 || unit.first_head != unit.kv_head * args.group) return;
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

// Waits until at most n_pending of this thread's groups are unfinished; n_pending < kMaxStages. The usual number first: a
// table of jumps takes longer.
__device__ inline void wait_pending(int n_pending) {
  if (n_pending == 1) return cp_async_wait<1>();
  if (n_pending == 0) return cp_async_wait<0>();
  if (n_pending == 2) return cp_async_wait<2>();
  if (n_pending == 3) return cp_async_wait<3>();
  if (n_pending == 4) return cp_async_wait<4>();
  if (n_pending == 5) return cp_async_wait<5>();
  if (n_pending == 6) return cp_async_wait<6>();
  cp_async_wait<7>();
}

// Fills a warp's ring, tile after tile of one range after another; one group of copies for each tile.
template <typename T, int kHeadDim>
struct RingFiller {
  using Tiles = Ring<T, kHeadDim>;

  const PagedDecodeArgs& args;
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
    Tiles::fill(range, cache_policy(args.is_read_once), ring + stage * Tiles::kStageBytes, slots, pos, lane);
    cp_async_commit();
    slots += Tiles::kWarpTokens;
    pos += Tiles::kBlockTokens;
    --n_left;
    ++n_ahead;
    stage = stage + 1 == n_stages ? 0 : stage + 1;
  }
};

// The unit after the next, any number past the last when there is none. A block asks once for each unit but its first, and
// has two before it asks: the last answer of all is the one that brings the counter back to 0, for the next launch.
__device__ inline int take_ticket(const PagedDecodeArgs& args, int n_units) {
  const int n_asked = n_units - gridDim.x;
  return 2 * gridDim.x + atomicInc(args.unit_counter, n_asked - 1);
}

// Attends the filler's range, two tiles at once: a warp that shares its multiprocessor with few others waits for its own
// chains of operations more than for memory. It has two stages or more.
template <typename T, int kHeadDim>
__device__ void attend_by_pairs(WarpSoftmax<T, kHeadDim, 1>& softmax, RingFiller<T, kHeadDim>& filler,
                                const PagedDecodeArgs& args, int lane) {
  using Tiles = Ring<T, kHeadDim>;
  const Span span = filler.range;
  const int n_tiles = Tiles::n_tiles(span);
  softmax.reset();
  int stage = 0;
  for (int tile = 0; tile < n_tiles; tile += 2) {
    while (filler.has_room() && filler.n_left > 0) filler.fill_next(lane);
    const int n_new = min(2, n_tiles - tile);
    wait_pending(filler.n_ahead - n_new);
    __syncwarp();
    const int second = stage + 1 == filler.n_stages ? 0 : stage + 1;
    softmax.template attend<1, 2>({filler.ring + stage * Tiles::kStageBytes, filler.ring + second * Tiles::kStageBytes},
                                  span.first + tile * Tiles::kBlockTokens, span.begin, span.end, args.scale_log2,
                                  args.cap_log2);
    __syncwarp();
    stage = second + 1 == filler.n_stages ? 0 : second + 1;
    filler.n_ahead -= n_new;
  }
}

// Thread blocks on a multiprocessor, as registers allow it: one attends while another merges.
template <int kHeadDim, int kHeadTiles>
constexpr int kMinBlocks = kHeadDim > 128 ? 1 : kHeadTiles > 1 ? 2 : 3;

template <typename T, int kHeadDim, int kHeadTiles, bool kStacked>
__global__ void __launch_bounds__(Shape<kHeadDim>::kThreads, kMinBlocks<kHeadDim, kHeadTiles>)
    kernel(const PagedDecodeArgs args, const int n_head_tiles, const int n_block_stages, const int n_spread_blocks) {
  using Merge = WarpMerge<T, kHeadDim, kHeadTiles>;
  using Tiles = Ring<T, kHeadDim>;
  using Softmax = WarpSoftmax<T, kHeadDim, kHeadTiles>;
  constexpr int kWarps = Shape<kHeadDim>::kWarps;
  extern __shared__ __align__(128) unsigned char rings[];  // [warps at work, n_stages, kStageBytes]
  __shared__ typename Merge::Shared merge_shared;
  __shared__ int shared_slots[kWarps][Shape<kHeadDim>::kMaxSlots];
  const int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32;

  if (!args.is_plan_settled) wait_for_previous_kernel();
  const WorkList work{args, n_head_tiles};
  const int n_splits = args.split_indptr[args.batch], n_units = work.size();
  constexpr bool kSpreads = !kStacked && kCanSpread<kHeadDim>;
  const int spread = kSpreads ? spread_of(args, n_splits, n_head_tiles, n_spread_blocks) : 1;
  const int n_stages = min(n_block_stages * spread, kMaxStages);
  const int index = blockIdx.x / spread;
  const bool has_unit = index < n_units;  // what is loaded does not wait for the answer
  const int2 first_record = work.record(index);
  const int4 first_member = work.member(has_unit ? first_record.x : 0);
  Unit unit = work.unit<Merge::kRows>(index, first_record, first_member, lane);
  // A workspace or a plan without room, and a plan for stacks that this kernel has no rows for.
  if (n_splits > args.max_splits || (work.is_planned() && n_units / n_head_tiles > args.max_units)) __trap();
  if (has_unit && unit.n_rows() > Merge::kRows) __trap();
  if (!has_unit || warp >= kWarps / spread) return;
  const uint32_t ring = shared_address(rings) + warp * n_stages * Tiles::kStageBytes;
  int* const own_slots = shared_slots[warp];
  warp += blockIdx.x % spread * (kWarps / spread);  // of the unit
  const KvRange<T> range = kv_range<T, kHeadDim>(args, unit, warp);
  typename Tiles::Slots slots;
  slots.load(range, lane);
  if (args.is_plan_settled) {
    slots.prefetch(range, n_stages * Tiles::kWarpTokens, lane);
    wait_for_previous_kernel();
  }
  let_next_kernel_start();
  RingFiller<T, kHeadDim> filler{args, ring, own_slots, n_stages};
  filler.begin(range, slots, lane);
  store_new_row<T, kHeadDim>(args, unit, range, warp, lane);
  while (filler.has_room() && filler.n_left > 0) filler.fill_next(lane);
  const auto load_q = [&](Softmax& softmax, const Unit& from, const RowTarget& target) {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const int row = h * 8 + lane / 4;
      const int req = kStacked ? __shfl_sync(kAllLanes, target.req, row) : from.req;
      const int head = kStacked ? __shfl_sync(kAllLanes, target.head, row) : from.first_head + row;
      const T* q = static_cast<const T*>(args.q) + req * args.q_stride + static_cast<int64_t>(head) * args.q_head_stride;
      softmax.load_q(h, row < from.n_rows() ? q : nullptr, lane);
    }
  };
  Softmax softmax;
  RowTarget target = row_target<kStacked>(args, unit, lane);
  load_q(softmax, unit, target);

  if constexpr (kSpreads) {
    if (spread > 1) {  // the unit is its blocks' only one
      attend_by_pairs(softmax, filler, args, lane);
      const int place = (unit.first_split + unit.split) * kWarps + warp;
      return Merge::write_alone(softmax, args, unit.n_heads, unit.first_head, place, lane);
    }
  }

  const int stride = gridDim.x;
  const bool has_tickets = args.unit_counter != nullptr && n_units > 2 * stride;
  int next_index = index + stride;
  Span span = range;
  int stage = 0;
  while (true) {
    const bool has_next = next_index < n_units;
    int ticket = 0;
    if (has_tickets && has_next && threadIdx.x == 0) ticket = take_ticket(args, n_units);
    // The next unit is found by loads that each need the one before; n_found of them are begun.
    constexpr int kFinds = 2;
    int n_found = has_next ? 0 : kFinds;
    const int2 record = has_next ? work.record(next_index) : make_int2(0, 0);
    int4 member{};
    Unit next = unit;
    const auto find_more = [&] {
      if (n_found == 0) {
        member = work.member(record.x);
      } else {
        next = work.unit<Merge::kRows>(next_index, record, member, lane);
        slots.load(kv_range<T, kHeadDim>(args, next, warp), lane);
      }
      ++n_found;
    };
    bool is_next_pending = has_next;  // the filler has not begun it
    Span next_span = span;

    softmax.reset();
    const int n_tiles = Tiles::n_tiles(span);
    for (int tile = 0;; ++tile) {
      while (filler.has_room()) {
        if (filler.n_left == 0) {
          if (!is_next_pending) break;
          is_next_pending = false;
          while (n_found < kFinds) find_more();
          const KvRange<T> next_range = kv_range<T, kHeadDim>(args, next, warp);
          filler.begin(next_range, slots, lane);
          store_new_row<T, kHeadDim>(args, next, next_range, warp, lane);
          next_span = next_range;
          if (filler.n_left == 0) break;
        }
        filler.fill_next(lane);
      }
      if (tile == n_tiles) break;
      if (n_found < kFinds) find_more();
      wait_pending(filler.n_ahead - 1);
      __syncwarp();
      const uint32_t from = filler.ring + stage * Tiles::kStageBytes;
      const int pos = span.first + tile * Tiles::kBlockTokens;
      if (kHeadTiles == 1 || unit.n_rows() <= 8) {
        softmax.template attend<1, 1>({from}, pos, span.begin, span.end, args.scale_log2, args.cap_log2);
      } else {
        softmax.template attend<kHeadTiles, 1>({from}, pos, span.begin, span.end, args.scale_log2, args.cap_log2);
      }
      __syncwarp();
      --filler.n_ahead;
      stage = stage + 1 == n_stages ? 0 : stage + 1;
    }

    const int n_rows = unit.n_rows();
    const RowTarget next_target = row_target<kStacked>(args, next, lane);
    if (has_next) load_q(softmax, next, next_target);
    Merge::run(merge_shared, softmax, args, n_rows, target, ticket);
    if (!has_next) return;
    next_index = has_tickets ? merge_shared.ticket : next_index + stride;
    unit = next;
    span = next_span;
    target = next_target;
  }
}

}  // namespace astrai::paged_decode

namespace astrai {

// Launches on stream for a device that is current; defined once for each instance.
template <typename T, int kHeadDim>
void launch_attn_paged_decode(const PagedDecodeArgs& args, int device_idx, cudaStream_t stream);

}  // namespace astrai
