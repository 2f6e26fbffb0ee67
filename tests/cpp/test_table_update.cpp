// write_table_update: the layout of an update and its refusals; tests/python/kvcache compares it with a naive model.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "astrai/table_update.h"

using namespace astrai;

namespace {

using Ints = std::vector<int32_t>;

Ints update_of(const PagePool& pool, const std::vector<DirtySpan>& spans) {
  Ints out(static_cast<size_t>(2 * n_dirty_entries(spans)), -7);
  write_table_update(pool, spans, {out.data(), static_cast<int64_t>(out.size())});
  return out;
}

}  // namespace

TEST_CASE("table update: all positions in the flat table come first, then the slots there") {
  PagePool pool(2, 8, 2, 32);
  const Ints first{1, 2, 3}, second{4, 5};
  REQUIRE(pool.admit({first.data(), 3})->req_idx == 0);   // pages 0 and 1
  REQUIRE(pool.admit({second.data(), 2})->req_idx == 1);  // page 2
  CHECK(update_of(pool, pool.take_dirty()) == Ints{0, 1, 2, 3, 8, 9, 0, 1, 2, 3, 4, 5});
  REQUIRE(pool.extend(1, 3));  // page 3
  CHECK(update_of(pool, pool.take_dirty()) == Ints{10, 11, 6, 7});
  CHECK(update_of(pool, pool.take_dirty()).empty());
}

TEST_CASE("table update: an entry written again has its newest slot") {
  PagePool pool(1, 8, 2, 32);
  const Ints ids{1, 2};
  const int32_t row = pool.admit({ids.data(), 2})->req_idx;
  const std::vector<DirtySpan> spans = pool.take_dirty();
  pool.table()[1] = 21;
  CHECK(update_of(pool, spans) == Ints{0, 1, 0, 21});
  pool.release(row);
}

TEST_CASE("table update: spans of another pool and a buffer of another size are refused before a word is written") {
  PagePool pool(2, 8, 2, 32);
  Ints out(4, -7);
  const PlanStaging staging{out.data(), 4};
  CHECK_THROWS_AS(write_table_update(pool, {{0, 0, 1}}, staging), std::invalid_argument);
  CHECK_THROWS_AS(write_table_update(pool, {{0, 0, 1}, {2, 0, 1}}, staging), std::invalid_argument);
  CHECK_THROWS_AS(write_table_update(pool, {{0, 7, 9}}, staging), std::invalid_argument);
  CHECK_THROWS_AS(write_table_update(pool, {{-1, 0, 2}}, staging), std::invalid_argument);
  CHECK(out == Ints(4, -7));
}
