// One step's index arrays, written by one call into one int32 buffer, so that one host-to-device copy carries them all.
//
// A row is one request with the q_len tokens it computes in this step; seq_len = start + q_len. Rows of a decode and of a
// prefill mix freely. Sections of the buffer, each beginning at a multiple of 16 bytes:
//
//   token_ids           [total_q]      ids to compute, rows one after the other ("packed"); PagePool::kPendingId for a token
//                                      that the device is still drawing
//   position_ids        [total_q]      their positions in the sequence: start .. seq_len - 1
//   out_cache_loc       [total_q]      token slot that takes each one's K and V
//   seq_lens            [n_rows]       tokens of the sequence after this step
//   req_pool_indices    [n_rows]       row of req_to_token
//   kv_indptr           [n_rows + 1]   prefix sum of seq_lens
//   qo_indptr           [n_rows + 1]   prefix sum of q_lens
//   logits_indices      [n_rows]       packed index of each row's last token
//   q_tile_to_batch     [n_tiles]      the row of each tile of q_tile_rows query rows, of the rows that do not decode: by the
//                                      keys that they see, fewest first. The prefill kernel starts at the end, so that no
//                                      long tile is left over for the last moment
//   q_tile_to_index     [n_tiles]      and the tile's number within that row
//   decode_split_indptr [n_decode + 1] prefix sum of ceil(seq_len / split_len)
//   decode_members      [n_decode, 4]  DecodeMember (decode_runs.h): the rows that decode, those that share slots together
//   decode_n_units      [2]            entries of the next, and 0: a counter of the decode kernel's
//   decode_units        [n_units, 2]   DecodeUnit: what the decode kernel works through
//
// The first n_decode rows decode: their one token was generated, and the decode kernel attends it, whatever else is in the
// step. The others are chunks of prompts. Of a step in which all rows decode every section has a place, and all but the last
// a size, that depend on n_rows alone, as a captured graph needs them.
//
// Padding rows (pad_to) fill a batch up to the size of a captured graph. Each computes token 0 at position 0 of a sequence
// of length 1 in the pool's reserved slot, and names the table row max_batch_size: one past the pool's, a row that the
// device table must have, filled with reserved_slot, before it is used with padding. They decode when all other rows do.
//
// Single-threaded, like the pool that it reads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "astrai/decode_runs.h"
#include "astrai/int32_span.h"
#include "astrai/page_pool.h"

namespace astrai {

// Where one section lies, in int32 elements from the beginning of the buffer.
struct PlanSection {
  const char* name;
  int64_t offset;
  int64_t length;
};

struct Layout {
  std::array<PlanSection, 14> sections;  // in the order above
  int64_t n_rows;                        // padding rows included
  int64_t n_decode;                      // likewise
  int64_t total_q;
  int64_t max_len;    // largest seq_len
  int64_t max_q_len;  // 1: every row decodes
  int64_t n_tiles;
  int64_t n_splits;
  int64_t n_units;
  bool has_shared;                    // some run has two members or more: a stack_len above 1 saves reading
  int64_t n_int32;                    // elements of the buffer in use
  std::vector<DirtySpan> dirty_spans;  // table entries written since the last plan: PagePool::take_dirty()
};

// How a step is cut for the kernels that attend it.
struct PlanOptions {
  int64_t q_tile_rows = 64;         // query rows of one tile of the prefill kernel
  int64_t pad_to = 0;               // rows to fill up to, 0 for none
  std::optional<int64_t> n_decode;  // leading rows that decode; absent: all when each has one token, else none
  int64_t stack_len = 1;            // members of a run that the decode kernel attends together: below kUnitMembers
};

// The rows of one step; all three have one entry a row.
struct PlanRows {
  Int32Span req_indices;
  Int32Span starts;  // position of the first token to compute
  Int32Span q_lens;  // >= 1
};

// A buffer that the caller owns.
struct PlanStaging {
  int32_t* values;
  int64_t size;  // elements
};

class BatchPlan {
 public:
  // The pool must outlive the plan. max_total_q, max_batch_size: limits of one step, padding included. split_len: KV tokens
  // of one decode split. Throws std::invalid_argument on a size below 1.
  BatchPlan(PagePool& pool, int64_t max_total_q, int64_t max_batch_size, int64_t split_len = 512);

  // int32 elements that suffice for any plan within these sizes, whatever its tiles. max_splits: of the rows that decode,
  // together; the sum of ceil(seq_len / split_len).
  static int64_t staging_size(int64_t max_total_q, int64_t max_batch_size, int64_t max_splits);

  // Writes the plan. Modifies the staging buffer and takes the pool's dirty spans. Throws std::invalid_argument, with
  // neither touched, when a row is not in use or twice there, when it wants tokens it does not know or has no slots for,
  // when it decodes more than one, and when a size is out of its limit; the message names the row. O(total_q + rows +
  // n_tiles log n_tiles), and what DecodeRuns::find takes.
  Layout build(const PlanRows& rows, PlanStaging staging, const PlanOptions& options = {});

 private:
  Layout measure(const PlanRows& rows, const PlanOptions& options);
  void check_row(const PlanRows& rows, int64_t row);
  void write_packed(const PlanRows& rows, const Layout& layout, int32_t* staging) const;
  void write_rows(const PlanRows& rows, const Layout& layout, int32_t* staging) const;
  void write_tiles(const PlanRows& rows, const Layout& layout, int64_t q_tile_rows, int32_t* staging) const;
  void write_units(const Layout& layout, int64_t stack_len, int32_t* staging) const;

  PagePool* pool_;
  int64_t max_total_q_;
  int64_t max_batch_size_;
  int64_t split_len_;
  int64_t step_ = 0;
  DecodeRuns runs_;  // of the last plan
  std::vector<int64_t> last_step_;  // [pool.max_batch_size] the step that last used each request; finds duplicates
};

}  // namespace astrai
