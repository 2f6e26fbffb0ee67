// attn_paged_decode, the work list: which request, split, KV head and query rows a unit is, found on the device by a whole
// warp from the step's index arrays.
#pragma once

#include "astrai/attn_paged_decode.h"
#include "astrai/decode_runs.h"
#include "attention/attn_paged_decode_merge.cuh"

namespace astrai::paged_decode {

// One (split, KV head, tile of query rows) of the work. Query row r is head first_head + r % n_heads of member
// r / n_heads, a request; all members have the same slots there.
struct Unit {
  int req;        // row of the batch, the first member
  int table_row;  // of req_to_token
  int kv_len;
  int kv_head;
  int first_head, n_heads;
  int split;                    // of the request
  int first_split;              // the request's first place in the workspace
  int first_member, n_members;  // places in the plan's members; without a plan just the request
  bool is_only, is_last;        // of the request's splits

  __device__ int n_rows() const { return n_members * n_heads; }
};

// The range that owns a place: the last i < n with indptr[i] <= place. 32 probes at a time.
__device__ inline int find_owner(const int32_t* indptr, int n, int place, int lane) {
  int low = 0, n_left = n;
  while (true) {
    const int step = (n_left + 31) / 32;
    const bool is_below = lane * step < n_left && indptr[low + lane * step] <= place;
    low += (__popc(__ballot_sync(kAllLanes, is_below)) - 1) * step;
    if (step == 1) return low;
    n_left = min(step, n - low);
  }
}

// The unit's request and split where there is no plan: a request's splits follow each other. A batch of less than 32 is one
// round of loads.
__device__ inline void find_in_requests(const PagedDecodeArgs& args, int place, int lane, Unit& unit) {
  int end_split;
  if (args.batch < 32) {
    const int at = min(lane, args.batch);
    const int splits = args.split_indptr[at], kv = args.kv_indptr[at];
    const int rows = args.req_pool_indices[min(lane, args.batch - 1)];
    unit.req = __popc(__ballot_sync(kAllLanes, lane < args.batch && splits <= place)) - 1;
    unit.first_split = __shfl_sync(kAllLanes, splits, unit.req);
    end_split = __shfl_sync(kAllLanes, splits, unit.req + 1);
    unit.kv_len = __shfl_sync(kAllLanes, kv, unit.req + 1) - __shfl_sync(kAllLanes, kv, unit.req);
    unit.table_row = __shfl_sync(kAllLanes, rows, unit.req);
  } else {
    unit.req = find_owner(args.split_indptr, args.batch, place, lane);
    unit.first_split = args.split_indptr[unit.req];
    end_split = args.split_indptr[unit.req + 1];
    unit.kv_len = args.kv_indptr[unit.req + 1] - args.kv_indptr[unit.req];
    unit.table_row = args.req_pool_indices[unit.req];
  }
  unit.split = place - unit.first_split;
  unit.first_member = unit.req;
  unit.n_members = 1;
  unit.is_only = end_split - unit.first_split == 1;
  unit.is_last = unit.split == end_split - unit.first_split - 1;
}

// Finds units, with a plan in two loads that the caller can have long before it wants the unit.
struct WorkList {
  const PagedDecodeArgs& args;
  int n_head_tiles;  // of all KV heads

  __device__ bool is_planned() const { return args.units != nullptr; }

  // How many units there are.
  __device__ int size() const {
    return (is_planned() ? *args.n_units : args.split_indptr[args.batch]) * n_head_tiles;
  }

  // A DecodeUnit and its first DecodeMember; anything without a plan.
  __device__ int2 record(int index) const {
    if (!is_planned()) return make_int2(0, 0);
    return reinterpret_cast<const int2*>(args.units)[min(index / n_head_tiles, args.max_units - 1)];
  }
  __device__ int4 member(int place) const {
    return is_planned() ? reinterpret_cast<const int4*>(args.members)[place] : make_int4(0, 0, 0, 0);
  }

  template <int kRows>
  __device__ Unit unit(int index, const int2& record, const int4& member, int lane) const {
    Unit unit;
    const int n_row_tiles = n_head_tiles / args.n_kv_heads, head_tile = index % n_head_tiles;
    unit.kv_head = head_tile / n_row_tiles;
    const int row = head_tile % n_row_tiles * kRows;
    unit.first_head = unit.kv_head * args.group + row;
    unit.n_heads = min(kRows, args.group - row);
    if (!is_planned()) {
      find_in_requests(args, index / n_head_tiles, lane, unit);
      return unit;
    }
    static_assert(sizeof(DecodeUnit) == sizeof(int2) && sizeof(DecodeMember) == sizeof(int4), "each is one load");
    unit.first_member = record.x;
    unit.split = record.y / kUnitMembers;
    unit.n_members = record.y % kUnitMembers;
    unit.req = member.x;
    unit.table_row = member.y;
    unit.kv_len = member.z;
    unit.first_split = member.w;
    unit.is_only = unit.kv_len <= args.split_len;
    unit.is_last = (unit.split + 1) * args.split_len >= unit.kv_len;
    return unit;
  }
};

// Where the part of query row `lane` of the unit goes; any place for a row that it does not have.
template <bool kStacked>
__device__ RowTarget row_target(const PagedDecodeArgs& args, const Unit& unit, int lane) {
  RowTarget to{unit.req, unit.first_head + lane, unit.is_only ? -1 : unit.first_split + unit.split};
  if constexpr (kStacked) {
    to.head = unit.first_head + lane % unit.n_heads;
    if (unit.n_members > 1) {  // splits of requests that go on behind them
      const int place = unit.first_member + min(lane / unit.n_heads, unit.n_members - 1);
      const int4 member = reinterpret_cast<const int4*>(args.members)[place];
      to.req = member.x;
      to.place = member.w + unit.split;
    }
  }
  return to;
}

constexpr int kMaxSpreadSplits = 32;  // of the batch: a lane of the merge kernel for each

// Measured: at head_dim 128 a warp alone on its multiprocessor loses more than the shorter wait for memory gives.
template <int kHeadDim>
constexpr bool kCanSpread = kHeadDim <= 64;

// Thread blocks that each unit is spread over, its warps shared among them: 1, 2 or 4. Small batches leave multiprocessors
// idle otherwise. n_blocks: of the main kernel's grid; 0 where it never spreads.
__device__ inline int spread_of(const PagedDecodeArgs& args, int n_splits, int n_head_tiles, int n_blocks) {
  constexpr int kParts = 4;
  if (n_splits > kMaxSpreadSplits || n_splits * kParts > args.max_splits) return 1;  // no room for the parts
  const int n_units = n_splits * n_head_tiles;
  return n_units * 4 <= n_blocks ? 4 : n_units * 2 <= n_blocks ? 2 : 1;
}

}  // namespace astrai::paged_decode
