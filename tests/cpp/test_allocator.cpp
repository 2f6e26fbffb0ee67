// Bitmask, LruList, Allocator and ReqToTokenPool; random operations against models are in tests/python/kvcache.
#include <doctest/doctest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "astrai/allocator.h"
#include "astrai/req_to_token_pool.h"

using namespace astrai;

TEST_CASE("bitmask: the lowest members come first across words and summary words") {
  for (const int64_t size : {1, 63, 64, 65, 4096, 4097, 10000}) {
    Bitmask mask(size, true);
    std::vector<int32_t> taken(static_cast<size_t>(size));
    const int64_t n_first = size / 2;
    mask.take_lowest(n_first, taken.data());
    mask.check_integrity();
    CHECK(mask.lowest() == n_first);
    mask.take_lowest(size - n_first, taken.data() + n_first);
    std::vector<int32_t> expected(taken.size());
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(taken == expected);
    CHECK(mask.count() == 0);
    CHECK(mask.lowest() == -1);
    mask.set(size - 1);
    mask.set(size - 1);
    CHECK(mask.count() == 1);
    CHECK(mask.lowest() == size - 1);
    mask.reset(size - 1);
    mask.reset(size - 1);
    CHECK(mask.count() == 0);
    mask.check_integrity();
  }
}

TEST_CASE("bitmask: an empty set and an impossible size") {
  CHECK(Bitmask(0, true).lowest() == -1);
  CHECK(Bitmask(100, false).lowest() == -1);
  CHECK_THROWS_AS(Bitmask(-1, false), std::invalid_argument);
}

TEST_CASE("lru list: order of use under insertion, removal and growth") {
  LruList list(3);
  list.push_newest(2);
  list.push_newest(0);
  list.insert_newer(2, 1);  // 2 1 0
  list.grow(5);
  list.push_newest(4);  // 2 1 0 4
  list.check_integrity();
  std::vector<int32_t> order;
  for (int32_t i = list.oldest(); i >= 0; i = list.newer(i)) order.push_back(i);
  CHECK(order == std::vector<int32_t>{2, 1, 0, 4});
  list.remove(2);
  list.remove(4);
  CHECK(list.oldest() == 1);
  CHECK(list.newer(0) == -1);
  CHECK_FALSE(list.contains(4));
  CHECK_FALSE(list.contains(17));
  CHECK(list.count() == 2);
  list.check_integrity();
}

TEST_CASE("allocator: a page is evicted only when none is free, the oldest first, and told once") {
  Allocator allocator(3);
  std::vector<int32_t> evicted;
  allocator.set_on_evict([&](int32_t page) { evicted.push_back(page); });
  for (const int32_t page : {0, 1, 2}) CHECK(allocator.alloc() == page);
  CHECK(allocator.alloc() == -1);
  allocator.free(1, true);
  allocator.free(0, true);
  allocator.free(2);
  CHECK(allocator.alloc() == 2);
  CHECK(evicted.empty());
  allocator.touch(1);
  CHECK(allocator.alloc() == 0);
  CHECK(evicted == std::vector<int32_t>{0});
  allocator.inc_ref(1);
  CHECK(allocator.n_cached() == 0);
  CHECK(allocator.alloc() == -1);
  allocator.check_integrity();
}

TEST_CASE("allocator: a refused call changes nothing") {
  Allocator allocator(4);
  std::vector<int32_t> pages(4);
  REQUIRE(allocator.alloc_many(2, pages.data()));
  CHECK_FALSE(allocator.alloc_many(3, pages.data()));
  const std::vector<int32_t> twice{0, 1, 0};
  CHECK_THROWS_AS(allocator.free_many({twice.data(), 3}), std::invalid_argument);
  CHECK_THROWS_AS(allocator.free(3), std::invalid_argument);
  CHECK_THROWS_AS(allocator.inc_ref(3), std::invalid_argument);
  CHECK_THROWS_AS(allocator.ref_count(4), std::invalid_argument);
  CHECK_THROWS_AS(allocator.alloc_many(-1, pages.data()), std::invalid_argument);
  CHECK(allocator.n_held() == 2);
  CHECK(allocator.n_free() == 2);
  CHECK(allocator.ref_count(0) == 1);
  allocator.check_integrity();
  CHECK_THROWS_AS(Allocator(0), std::invalid_argument);
}

TEST_CASE("table: rows are all or nothing, writes stay inside") {
  ReqToTokenPool table(2, 4);
  const auto rows = table.alloc(2);
  REQUIRE(rows.has_value());
  CHECK_FALSE(table.alloc(1).has_value());
  const std::vector<int32_t> slots{5, 6};
  table.write(1, 2, {slots.data(), 2});
  CHECK(table.row(1)[3] == 6);
  CHECK(table.row(0)[3] == 0);
  CHECK_THROWS_AS(table.write(1, 3, {slots.data(), 2}), std::invalid_argument);
  CHECK_THROWS_AS(table.write(2, 0, {slots.data(), 2}), std::invalid_argument);
  const std::vector<int32_t> twice{1, 1};
  CHECK_THROWS_AS(table.free({twice.data(), 2}), std::invalid_argument);
  CHECK(table.n_free() == 0);
  CHECK_THROWS_AS(ReqToTokenPool(0, 4), std::invalid_argument);
}
