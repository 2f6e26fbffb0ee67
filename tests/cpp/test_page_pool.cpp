// PagePool: ownership, duplicates, refusals and the table; random operations are in tests/python/kvcache.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "astrai/page_pool.h"

using namespace astrai;

namespace {

using Ints = std::vector<int32_t>;

Ints vector_of(Int32Span values) { return Ints(values.begin(), values.end()); }

}  // namespace

TEST_CASE("page pool: two rows that compute the same prompt keep their own pages and share one place in the tree") {
  PagePool pool(4, 32, 2, 32);
  const Ints prompt{1, 2, 3, 4, 5};
  const int32_t a = pool.admit(span_of(prompt))->req_idx;
  const int32_t b = pool.admit(span_of(prompt))->req_idx;
  CHECK(pool.commit(a, 5) == 2);
  const Ints own = vector_of(pool.row_pages(b));
  CHECK(pool.commit(b, 5) == 0);
  pool.check_integrity();
  CHECK(vector_of(pool.row_pages(b)) == own);
  CHECK(pool.ref_count(pool.row_pages(a)[0]) == 2);  // b holds the prefix of what it will record
  pool.release(a);
  pool.check_integrity();
  CHECK(pool.n_cached_pages() == 0);
  pool.release(b);
  pool.check_integrity();
  CHECK(pool.n_cached_pages() == 2);
  CHECK(pool.n_free_pages() == 14);
}

TEST_CASE("page pool: at least one prompt token is left to compute") {
  PagePool pool(2, 32, 2, 32);
  const Ints prompt{1, 2, 3, 4};
  const int32_t a = pool.admit(span_of(prompt))->req_idx;
  pool.commit(a, 4);
  const auto again = pool.admit(span_of(prompt));
  CHECK(again->n_cached == 2);
  CHECK(std::string(again->miss_reason) == "end_of_prompt");
  CHECK(pool.row_pages(again->req_idx)[1] != pool.row_pages(a)[1]);
  pool.check_integrity();
}

TEST_CASE("page pool: a prompt that cannot have room now changes nothing, one that never can is refused") {
  PagePool pool(3, 32, 4, 16);
  const Ints prompt(9, 1);
  const int32_t a = pool.admit(span_of(prompt))->req_idx;
  CHECK_FALSE(pool.can_admit(9));
  CHECK_FALSE(pool.admit(span_of(prompt)).has_value());
  CHECK(pool.n_free_pages() == 1);
  CHECK(pool.n_free_rows() == 2);
  CHECK_FALSE(pool.extend(a, 17));
  CHECK_FALSE(pool.extend(a, 33));
  CHECK(pool.n_slots(a) == 12);
  CHECK(pool.extend(a, 13));
  CHECK_THROWS_AS(pool.admit(span_of(Ints(17, 1))), std::invalid_argument);
  CHECK_THROWS_AS(pool.admit({}), std::invalid_argument);
  CHECK_THROWS_AS(pool.admit(span_of({1, -2})), std::invalid_argument);
  pool.check_integrity();
}

TEST_CASE("page pool: a hit's own cached pages do not count as room for the rest of the prompt") {
  PagePool pool(3, 32, 4, 20);
  const int32_t a = pool.admit(span_of(Ints(12, 1)))->req_idx;
  pool.commit(a, 12);
  pool.release(a);
  REQUIRE(pool.admit(span_of(Ints(8, 2))).has_value());
  Ints prompt(13, 3);  // four pages: two cached, two to allocate, and only one other page can be evicted
  std::fill_n(prompt.begin(), 8, 1);
  CHECK(pool.can_admit(12));
  CHECK_FALSE(pool.admit(span_of(prompt)).has_value());
  CHECK(pool.n_cached_pages() == 3);
  pool.check_integrity();
  prompt.pop_back();
  const auto admission = pool.admit(span_of(prompt));
  REQUIRE(admission.has_value());
  CHECK(admission->n_cached == 8);
  CHECK(pool.n_free_pages() + pool.n_cached_pages() == 0);
  pool.check_integrity();
}

TEST_CASE("page pool: extend_batch stops at the first row without room") {
  PagePool pool(3, 32, 4, 16);
  Ints rows;
  for (int i = 0; i < 3; ++i) rows.push_back(pool.admit(span_of({i, 1, 2, 3}))->req_idx);
  CHECK(pool.extend_batch(span_of(rows), span_of({5, 5, 4})) == 1);
  CHECK(pool.n_slots(rows[0]) == 8);
  CHECK(pool.n_slots(rows[1]) == 4);
  CHECK_THROWS_AS(pool.extend_batch(span_of({rows[2], 9}), span_of({5, 5})), std::invalid_argument);
  CHECK_THROWS_AS(pool.append_batch(span_of({rows[0], 9}), span_of({5, 5})), std::invalid_argument);
  CHECK(pool.row_tokens(rows[0]).size == 4);
}

TEST_CASE("page pool: a pending token is settled in order and not committed before") {
  PagePool pool(2, 16, 2, 16);
  const int32_t row = pool.admit(span_of({1, 2, 3}))->req_idx;
  pool.append_pending(span_of({row}));
  REQUIRE(pool.extend(row, 5));
  pool.append_pending(span_of({row}));
  CHECK(vector_of(pool.row_tokens(row)) == Ints{1, 2, 3, PagePool::kPendingId, PagePool::kPendingId});
  CHECK_THROWS_AS(pool.append(row, 9), std::invalid_argument);
  CHECK_THROWS_AS(pool.commit(row, 4), std::invalid_argument);
  pool.settle(span_of({row}), span_of({7}));
  CHECK(vector_of(pool.row_tokens(row)) == Ints{1, 2, 3, 7, PagePool::kPendingId});
  CHECK(pool.commit(row, 4) == 2);
  pool.settle(span_of({row}), span_of({8}));
  CHECK_THROWS_AS(pool.settle(span_of({row}), span_of({8})), std::invalid_argument);
  pool.append(row, 9);
  CHECK(vector_of(pool.row_tokens(row)) == Ints{1, 2, 3, 7, 8, 9});
}

TEST_CASE("page pool: an id that is none is neither appended nor settled") {
  PagePool pool(1, 16, 2, 16);
  const int32_t row = pool.admit(span_of({1, 2, 3}))->req_idx;
  CHECK_THROWS_AS(pool.append(row, PagePool::kPendingId), std::invalid_argument);
  pool.append_pending(span_of({row}));
  CHECK_THROWS_AS(pool.settle(span_of({row}), span_of({-2})), std::invalid_argument);
  pool.settle(span_of({row}), span_of({7}));
  CHECK(vector_of(pool.row_tokens(row)) == Ints{1, 2, 3, 7});
}

TEST_CASE("page pool: a row that is named more often than it has pending tokens settles none") {
  PagePool pool(2, 16, 1, 16);
  const int32_t row = pool.admit(span_of({1, 2, 3}))->req_idx;
  const int32_t other = pool.admit(span_of({4}))->req_idx;
  pool.append_pending(span_of({row, other, row}));
  CHECK_THROWS_AS(pool.settle(span_of({row, other, row, row}), span_of({5, 6, 7, 8})), std::invalid_argument);
  CHECK(vector_of(pool.row_tokens(row)) == Ints{1, 2, 3, PagePool::kPendingId, PagePool::kPendingId});
  CHECK(vector_of(pool.row_tokens(other)) == Ints{4, PagePool::kPendingId});
  pool.settle(span_of({row, other, row}), span_of({5, 6, 7}));
  CHECK(vector_of(pool.row_tokens(row)) == Ints{1, 2, 3, 5, 7});
  pool.append(row, 9);
  CHECK(vector_of(pool.row_tokens(other)) == Ints{4, 6});
}

TEST_CASE("page pool: slots follow the pages, and dirty spans cover what was written") {
  PagePool pool(2, 7, 4, 16);
  const int32_t a = pool.admit(span_of({1, 2, 3}))->req_idx;
  CHECK(pool.extend(a, 7));
  CHECK(pool.n_slots(a) == 7);  // the second page reaches beyond max_seq_len
  const Ints pages = vector_of(pool.row_pages(a));
  for (int32_t position = 0; position < 7; ++position) {
    CHECK(pool.row_slots(a)[position] == pages[static_cast<size_t>(position / 4)] * 4 + position % 4);
  }
  const auto dirty = pool.take_dirty();
  REQUIRE(dirty.size() == 1);
  CHECK(dirty[0].begin == 0);
  CHECK(dirty[0].end == 7);
  CHECK(pool.take_dirty().empty());
  CHECK(pool.reserved_slot() == 16);
}

TEST_CASE("page pool: contiguous rows own fixed slots") {
  PagePool pool(2, 4);
  const auto a = pool.admit(span_of({1, 2, 3}));
  CHECK(std::string(a->miss_reason) == "disabled");
  CHECK(pool.extend(a->req_idx, 4));
  CHECK_FALSE(pool.extend(a->req_idx, 5));
  CHECK(pool.commit(a->req_idx, 3) == 0);
  const auto b = pool.admit(span_of({1}));
  CHECK(pool.row_slots(b->req_idx)[1] == 5);
  CHECK_FALSE(pool.admit(span_of({1})).has_value());
  CHECK(pool.n_held_pages() == 8);
  pool.release(a->req_idx);
  pool.check_integrity();
  CHECK(pool.n_free_pages() == 4);
}

TEST_CASE("page pool: sizes that make no pool are refused") {
  CHECK_THROWS_AS(PagePool(0, 4), std::invalid_argument);
  CHECK_THROWS_AS(PagePool(1, 4, 0, 16), std::invalid_argument);
  CHECK_THROWS_AS(PagePool(1, 4, 8, 7), std::invalid_argument);
  for (const auto& [n_rows, n_tokens] : {std::pair{1, std::optional{int64_t{1} << 31}}, {1 << 20, std::nullopt}}) {
    CHECK_THROWS_WITH_AS(PagePool(n_rows, 1 << 20, 1, n_tokens), doctest::Contains("exceeds the int32 slot index limit"),
                         std::invalid_argument);
  }
}
