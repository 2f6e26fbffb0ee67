// RadixCache: splits, growth of edges, order of eviction and forced collisions; random operations are in tests/python.
#include <doctest/doctest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "astrai/error.h"
#include "astrai/radix_cache.h"

using namespace astrai;

namespace {

using Ints = std::vector<int32_t>;


// Records all whole pages of ids with pages first_page, first_page + 1, ... and lets go.
void add(RadixCache& tree, const Ints& ids, int32_t first_page, const std::string& name = "") {
  const int64_t n_matched = tree.lookup(span_of(ids), name).n_pages;
  Ints pages(ids.size() / static_cast<size_t>(tree.page_size()) - static_cast<size_t>(n_matched));
  std::iota(pages.begin(), pages.end(), first_page);
  const int32_t held = tree.lock(tree.lookup(span_of(ids), name), name);
  tree.unlock(tree.insert(held, ids.data() + n_matched * tree.page_size(), span_of(pages)));
  tree.check_integrity();
}

Ints pages_of(const RadixCache& tree, const Ints& ids, const std::string& name = "") {
  Ints pages;
  tree.append_pages(tree.lookup(span_of(ids), name), pages);
  return pages;
}

}  // namespace

TEST_CASE("radix cache: a divergence inside an edge splits it at a page boundary") {
  for (const int hash_bits : {0, 64}) {
    RadixCache tree(2, hash_bits);
    add(tree, {1, 2, 3, 4, 5, 6, 7, 8}, 0);
    add(tree, {1, 2, 3, 4, 5, 9, 9, 9}, 10);
    CHECK(pages_of(tree, {1, 2, 3, 4, 5, 6, 7, 8}) == Ints{0, 1, 2, 3});
    CHECK(pages_of(tree, {1, 2, 3, 4, 5, 9, 9, 9}) == Ints{0, 1, 10, 11});
    CHECK(pages_of(tree, {1, 2, 3}) == Ints{0});
    CHECK(pages_of(tree, {2, 1}).empty());
    CHECK(tree.n_pages() == 6);
  }
}

TEST_CASE("radix cache: eviction takes the least recently used leaf from its end, never a parent first") {
  RadixCache tree(1);
  add(tree, {1, 2, 3}, 0);
  add(tree, {1, 8, 9}, 10);
  tree.unlock(tree.lock(tree.lookup(span_of({1, 2, 3}))));  // used again: {8, 9} is the oldest
  Ints evicted;
  CHECK(tree.evict_lru(1, evicted) == 1);
  CHECK(evicted == Ints{11});
  CHECK(pages_of(tree, {1, 8, 9}) == Ints{0, 10});
  evicted.clear();
  CHECK(tree.evict_lru(3, evicted) == 3);
  CHECK(evicted == Ints{10, 1, 2});
  evicted.clear();
  CHECK(tree.evict_lru(5, evicted) == 1);
  CHECK(evicted == Ints{0});
  CHECK(tree.n_namespaces() == 0);
  tree.check_integrity();
}

TEST_CASE("radix cache: what is held is never evicted, and goes when it is let go") {
  RadixCache tree(2);
  add(tree, {1, 2, 3, 4, 5, 6}, 0);
  const int32_t held = tree.lock(tree.lookup(span_of({1, 2, 3, 4})));
  Ints evicted;
  CHECK(tree.evict_lru(100, evicted) == 1);
  CHECK(evicted == Ints{2});
  CHECK_THROWS_AS(tree.evict(0, evicted), Error);
  CHECK(tree.ref_count(1) == 1);
  tree.unlock(held);
  evicted.clear();
  tree.evict(0, evicted);
  CHECK(evicted == Ints{0, 1});
  CHECK(tree.n_pages() == 0);
  tree.check_integrity();
}

TEST_CASE("radix cache: a leaf that one holder lengthens stays one edge and keeps its pages") {
  RadixCache tree(1);
  int32_t held = tree.lock(tree.lookup({}));
  for (int32_t i = 0; i < 1000; ++i) held = tree.insert(held, &i, {&i, 1});
  const std::vector<int32_t> holders{held};
  tree.check_integrity(&holders);
  Ints ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  CHECK(pages_of(tree, ids) == ids);
  CHECK(tree.depth_of(held) == 1000);
  tree.unlock(held);
}

TEST_CASE("radix cache: memory stays within twice the live pages when an edge is cut again and again") {
  RadixCache tree(16);
  const size_t n_pages = 512;
  Ints ids(n_pages * 16, 7);
  add(tree, ids, 0);
  const int64_t before = tree.state_bytes();
  for (size_t n = n_pages - 1; n > 0; --n) tree.unlock(tree.lock(tree.lookup(span_of(ids).head(static_cast<int64_t>(n) * 16))));
  tree.check_integrity();
  // 512 nodes of one page: their edges take no more than twice the room; the rest is 512 nodes and table entries.
  CHECK(tree.state_bytes() < before + 2 * static_cast<int64_t>(n_pages) * (17 * 4 + 128));
}

TEST_CASE("radix cache: explicit miss reasons") {
  RadixCache tree(2);
  const auto reason = [&](const Ints& ids, const std::string& name = "") {
    return tree.explain_miss(tree.lookup(span_of(ids), name), span_of(ids)).reason;
  };
  CHECK(reason({1, 2}) == MissReason::kEmptyCache);
  add(tree, {1, 2, 3, 4}, 0);
  CHECK(reason({1, 2, 3, 4, 5}) == MissReason::kEndOfPrompt);
  CHECK(reason({1, 2, 3, 5}) == MissReason::kTokenDiffers);
  CHECK(reason({1, 2, 3, 4, 5, 6}) == MissReason::kPageBoundary);
  CHECK(reason({1, 2}, "b") == MissReason::kOtherNamespace);
  Ints evicted;
  tree.evict_lru(2, evicted);
  CHECK(reason({1, 2}) == MissReason::kEvicted);
}

TEST_CASE("radix cache: bad arguments are refused") {
  CHECK_THROWS_AS(RadixCache(0), std::invalid_argument);
  CHECK_THROWS_AS(RadixCache(1, 65), std::invalid_argument);
  RadixCache tree(2);
  CHECK_THROWS_AS(tree.hash_of(0), std::invalid_argument);
  CHECK_THROWS_AS(page_hash({}, 0, 2), std::invalid_argument);
  const Ints ids{1, 2};
  CHECK_FALSE(tree.record(0, span_of(ids), 1));
  CHECK_THROWS_AS(tree.record(-1, span_of(ids), 0), std::invalid_argument);
  tree.check_integrity();
}
