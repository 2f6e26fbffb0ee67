// Which decoding requests of a step hold the same token slots for whole KV splits, so that attn_paged_decode can read those
// once for all of them.
//
// Requests share slots through the pages of the prefix tree. Sharing is a tree too: its leaves are the requests, an inner
// node is a set of requests that agree on their first splits. Each node with splits of its own is a run:
//
//   request 0  [ run 0: splits 0 1 2 of 0, 1, 2 ][ run 1: 3 of 0, 2 ][ run 2: 4 5 of 0 ]
//   request 2  [                                ][                 ][ run 3: 4 of 2    ]      order: 0 2 1
//   request 1  [                                ][ run 4: 3 4 of 1 ]
//
// The splits of a run are the same slots in the same order for all its members, which are neighbours in `order`. Every split
// of every request is in exactly one run. Runs come with the most splits first: long requests start early.
//
// The decode kernel is given two arrays: the members in `order`, and units, each a split of a stack, which is up to stack_len
// members of a run. Single-threaded; scratch memory is kept from call to call.
// A part of <astrai/batch_plan.h>, not an interface: it may change with any version (docs/developer/abi.md).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "astrai/int32_span.h"
#include "astrai/page_pool.h"

namespace astrai {

struct DecodeRun {
  int32_t first_split;
  int32_t n_splits;
  int32_t first_member;  // index in `order`
  int32_t n_members;
};

// One entry of the members array.
struct DecodeMember {
  int32_t row;          // of the step
  int32_t table_row;    // of req_to_token
  int32_t kv_len;       // this step's token included
  int32_t first_split;  // its place in the workspace: the splits of the rows before
};

// One entry of the units array: members first_member .. first_member + n_members - 1 on one split.
struct DecodeUnit {
  int32_t first_member;
  int32_t split_and_members;  // split * kUnitMembers + n_members
};
constexpr int32_t kUnitMembers = 256;  // more than any stack has

class DecodeRuns {
 public:
  // req_indices: requests of the pool, in use; starts: position of the one token that each writes in this step, so that it
  // has starts + 1. A last split that is not whole counts. n_padding: as many requests of one token and no pages behind
  // them. Finds runs() and order(). O(n log n) for n requests, times the depth of the sharing.
  void find(const PagePool& pool, Int32Span req_indices, Int32Span starts, int64_t n_padding, int64_t split_len);

  const std::vector<DecodeRun>& runs() const { return runs_; }
  const std::vector<int32_t>& order() const { return order_; }  // indices into req_indices, then the padding's
  bool has_shared() const { return has_shared_; }               // some run has two members or more
  int64_t n_units(int64_t stack_len) const;
  // [n_units(stack_len)], run by run; the stacks of a split follow each other, so that its slots are read together.
  void write_units(int64_t stack_len, DecodeUnit* units) const;

 private:
  struct Request {
    const int32_t* pages;
    int32_t n_shareable;  // leading splits that lie in pages of the tree
    int32_t n_splits;
  };
  struct Part {  // members order_[begin, end) agree on the splits before `split`
    int32_t begin, end, split;
  };

  int32_t last_page(int32_t member, int32_t split) const;
  void add_run(int32_t split, int32_t end_split, int32_t begin, int32_t end);
  void divide(const Part& part);
  int32_t common_end(int32_t begin, int32_t end, int32_t split) const;

  int64_t split_len_ = 0;
  int64_t page_size_ = 0;
  bool has_shared_ = false;
  std::vector<Request> requests_;
  std::vector<int32_t> order_;
  std::vector<DecodeRun> runs_;
  std::vector<Part> parts_;
  std::vector<std::pair<int32_t, int32_t>> keys_;
};

}  // namespace astrai
