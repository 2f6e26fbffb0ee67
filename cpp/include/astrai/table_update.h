// The entries of req_to_token that were written since a device got its copy, as two arrays that one scatter applies:
//
//   out   positions [n]   index of each entry in the flat table: req_idx * max_seq_len + column
//         slots     [n]   what the entry is
//
// The arrays travel with a step's plan (batch_plan.h); device_table[positions[i]] = slots[i] is all that is left to do there.
// Reads the pool, changes nothing: thread safe as long as nobody changes the pool meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "astrai/batch_plan.h"
#include "astrai/page_pool.h"

namespace astrai {

// n above: the entries of these spans. O(spans).
int64_t n_dirty_entries(const std::vector<DirtySpan>& spans);

// Writes the update of `spans`, which the same pool's take_dirty() or Layout::dirty_spans gave, in their order. Of an entry
// that was written again since then, the newest value. O(entries).
// Throws std::invalid_argument, and writes nothing, when out.size is not 2 * n_dirty_entries(spans), when a span lies outside
// the table, and when the table has more entries than int32 can count.
void write_table_update(const PagePool& pool, const std::vector<DirtySpan>& spans, PlanStaging out);

}  // namespace astrai
