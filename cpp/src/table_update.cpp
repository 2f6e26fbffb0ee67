#include "astrai/table_update.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace astrai {
namespace {

void check_update(const PagePool& pool, const std::vector<DirtySpan>& spans, int64_t out_size) {
  const int64_t n_table = static_cast<int64_t>(pool.max_batch_size()) * pool.max_seq_len();
  if (n_table > INT32_MAX) {
    throw std::invalid_argument("write_table_update: a table of " + std::to_string(n_table) +
                                " entries exceeds the int32 positions of an update; lower max_batch_size or max_seq_len");
  }
  for (const DirtySpan& span : spans) {
    if (span.req_idx < 0 || span.req_idx >= pool.max_batch_size() || span.begin < 0 || span.begin > span.end ||
        span.end > pool.max_seq_len()) {
      throw std::invalid_argument("write_table_update: span [" + std::to_string(span.begin) + ", " +
                                  std::to_string(span.end) + ") of row " + std::to_string(span.req_idx) +
                                  " lies outside the table [" + std::to_string(pool.max_batch_size()) + ", " +
                                  std::to_string(pool.max_seq_len()) + "]; spans come from this pool's take_dirty()");
    }
  }
  if (out_size != 2 * n_dirty_entries(spans)) {
    throw std::invalid_argument("write_table_update: out has " + std::to_string(out_size) + " elements; these spans need " +
                                std::to_string(2 * n_dirty_entries(spans)));
  }
}

}  // namespace

int64_t n_dirty_entries(const std::vector<DirtySpan>& spans) {
  int64_t n = 0;
  for (const DirtySpan& span : spans) n += span.end - span.begin;
  return n;
}

void write_table_update(const PagePool& pool, const std::vector<DirtySpan>& spans, PlanStaging out) {
  check_update(pool, spans, out.size);
  int32_t* positions = out.values;
  int32_t* slots = out.values + out.size / 2;
  for (const DirtySpan& span : spans) {
    const int32_t n = span.end - span.begin;
    const int32_t first = span.req_idx * pool.max_seq_len() + span.begin;
    std::iota(positions, positions + n, first);
    std::copy_n(pool.table() + first, n, slots);
    positions += n;
    slots += n;
  }
}

}  // namespace astrai
