// BatchPlan's layout and refusals; tests/python/kvcache/test_batch_plan.py compares its arrays with a naive model.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "astrai/batch_plan.h"

using namespace astrai;

namespace {

// One step's rows with their storage.
struct Rows {
  std::vector<int32_t> req_indices, starts, q_lens;
  PlanRows view() const { return {span_of(req_indices), span_of(starts), span_of(q_lens)}; }
};

struct Staging {
  std::vector<int32_t> values = std::vector<int32_t>(1000, -7);
  PlanStaging view() { return {values.data(), static_cast<int64_t>(values.size())}; }
  std::vector<int32_t> section(const Layout& layout, const char* name) const {
    for (const PlanSection& section : layout.sections) {
      if (std::strcmp(section.name, name) != 0) continue;
      const auto begin = values.begin() + section.offset;
      return {begin, begin + section.length};
    }
    return {};
  }
};

int32_t admit(PagePool& pool, int32_t n_tokens, int32_t first_id) {
  std::vector<int32_t> ids(static_cast<std::size_t>(n_tokens));
  std::iota(ids.begin(), ids.end(), first_id);
  return pool.admit(span_of(ids))->req_idx;
}

using Values = std::vector<int32_t>;

}  // namespace

TEST_CASE("a mixed step packs the rows in order") {
  PagePool pool(4, 32);  // contiguous: slot = req_idx * 32 + position
  const int32_t prefill = admit(pool, 5, 100);
  const int32_t decode = admit(pool, 3, 200);
  BatchPlan plan(pool, 64, 4, 2);
  Staging staging;
  const Rows rows{{prefill, decode}, {1, 2}, {3, 1}};

  const Layout layout = plan.build(rows.view(), staging.view(), {2});

  CHECK(staging.section(layout, "token_ids") == Values{101, 102, 103, 202});
  CHECK(staging.section(layout, "position_ids") == Values{1, 2, 3, 2});
  CHECK(staging.section(layout, "out_cache_loc") ==
        Values{prefill * 32 + 1, prefill * 32 + 2, prefill * 32 + 3, decode * 32 + 2});
  CHECK(staging.section(layout, "seq_lens") == Values{4, 3});
  CHECK(staging.section(layout, "kv_indptr") == Values{0, 4, 7});
  CHECK(staging.section(layout, "qo_indptr") == Values{0, 3, 4});
  CHECK(staging.section(layout, "logits_indices") == Values{2, 3});
  CHECK(staging.section(layout, "q_tile_to_batch") == Values{0, 1, 0});
  CHECK(staging.section(layout, "q_tile_to_index") == Values{0, 0, 1});
  CHECK(staging.section(layout, "decode_split_indptr") == Values{0});
  CHECK(layout.max_len == 4);
  CHECK(layout.max_q_len == 3);
}

TEST_CASE("rows that decode have splits and no tiles, the others tiles and no splits") {
  PagePool pool(4, 32);
  const int32_t decode = admit(pool, 3, 200);
  const int32_t prefill = admit(pool, 5, 100);
  const int32_t last_of_prompt = admit(pool, 4, 300);
  BatchPlan plan(pool, 64, 4, 2);
  Staging staging;
  const Rows rows{{decode, prefill, last_of_prompt}, {2, 1, 3}, {1, 3, 1}};

  const Layout layout = plan.build(rows.view(), staging.view(), {2, 0, 1});

  CHECK(staging.section(layout, "q_tile_to_batch") == Values{1, 1, 2});
  CHECK(staging.section(layout, "q_tile_to_index") == Values{0, 1, 0});
  CHECK(staging.section(layout, "decode_split_indptr") == Values{0, 2});
  CHECK(staging.section(layout, "decode_members") == Values{0, decode, 3, 0});
  CHECK(staging.section(layout, "decode_n_units") == Values{2, 0});
  CHECK(staging.section(layout, "decode_units") == Values{0, 0 * kUnitMembers + 1, 0, 1 * kUnitMembers + 1});
  CHECK(!layout.has_shared);
}

TEST_CASE("requests that share pages share the units of their whole splits") {
  PagePool pool(3, 64, 4, 128);
  std::vector<int32_t> prompt(40, 7);
  Rows rows;
  for (const int32_t last_id : {1, 2, 3}) {
    prompt.back() = last_id;
    rows.req_indices.push_back(pool.admit(span_of(prompt))->req_idx);
    rows.starts.push_back(39);
    rows.q_lens.push_back(1);
    pool.commit(rows.req_indices.back(), 39);
  }
  BatchPlan plan(pool, 64, 3, 8);
  Staging staging;

  const Layout layout = plan.build(rows.view(), staging.view(), {64, 0, std::nullopt, 2});

  CHECK(layout.has_shared);
  CHECK(staging.section(layout, "decode_split_indptr") == Values{0, 5, 10, 15});
  CHECK(staging.section(layout, "decode_members") == Values{0, 0, 40, 0, 1, 1, 40, 5, 2, 2, 40, 10});
  // Four splits of all three in two stacks each, then the last one of each request.
  CHECK(staging.section(layout, "decode_n_units") == Values{11, 0});
  Values units;
  for (const int32_t split : {0, 1, 2, 3}) {
    for (const int32_t word : {0, split * kUnitMembers + 2, 2, split * kUnitMembers + 1}) units.push_back(word);
  }
  for (const int32_t member : {0, 1, 2}) {
    for (const int32_t word : {member, 4 * kUnitMembers + 1}) units.push_back(word);
  }
  CHECK(staging.section(layout, "decode_units") == units);
}

TEST_CASE("padding rows write to the reserved slot and name no row of the pool") {
  PagePool pool(2, 8, 4, 16);
  const int32_t req_idx = admit(pool, 3, 5);
  BatchPlan plan(pool, 16, 8);
  Staging staging;
  const Rows rows{{req_idx}, {2}, {1}};

  const Layout layout = plan.build(rows.view(), staging.view(), {64, 3});

  CHECK(layout.n_rows == 3);
  CHECK(staging.section(layout, "out_cache_loc")[1] == 16);
  CHECK(staging.section(layout, "out_cache_loc")[2] == 16);
  CHECK(staging.section(layout, "req_pool_indices") == Values{req_idx, 2, 2});
  CHECK(staging.section(layout, "seq_lens") == Values{3, 1, 1});
  CHECK(staging.section(layout, "kv_indptr") == Values{0, 3, 4, 5});
  CHECK(staging.section(layout, "decode_split_indptr") == Values{0, 1, 2, 3});
  CHECK(staging.section(layout, "decode_members") == Values{0, req_idx, 3, 0, 1, 2, 1, 1, 2, 2, 1, 2});
}

TEST_CASE("a refused plan touches neither the staging buffer nor the pool's dirty spans") {
  PagePool pool(2, 16, 4, 32);
  const int32_t req_idx = admit(pool, 6, 0);
  BatchPlan plan(pool, 16, 4);
  Staging staging;
  const Values before = staging.values;
  const Rows unknown_token{{req_idx}, {6}, {1}};
  const Rows twice{{req_idx, req_idx}, {0, 1}, {1, 1}};
  const Rows unused{{1 - req_idx}, {0}, {1}};

  CHECK_THROWS_WITH_AS(plan.build(unknown_token.view(), staging.view()),
                       "BatchPlan.build: row 0 (request 0) computes tokens 6 to 6 but knows 6; append them first",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(plan.build(twice.view(), staging.view()),
                       "BatchPlan.build: row 1 (request 0) is in this step twice", std::invalid_argument);
  CHECK_THROWS_AS(plan.build(unused.view(), staging.view()), std::invalid_argument);
  CHECK(staging.values == before);
  CHECK(pool.take_dirty().size() == 1);
}

TEST_CASE("staging_size refuses negative sizes") {
  CHECK_THROWS_AS(BatchPlan::staging_size(-1, 3, 3), std::invalid_argument);
  CHECK_THROWS_AS(BatchPlan::staging_size(45, -1, 3), std::invalid_argument);
  CHECK_THROWS_AS(BatchPlan::staging_size(45, 3, -1), std::invalid_argument);
  CHECK(BatchPlan::staging_size(0, 0, 0) >= 0);
}

TEST_CASE("staging_size suffices for the largest plan and a smaller buffer is refused") {
  PagePool pool(3, 16);
  Rows rows;
  for (int32_t i = 0; i < 3; ++i) {
    rows.req_indices.push_back(admit(pool, 15, i));
    rows.starts.push_back(0);
    rows.q_lens.push_back(15);
  }
  BatchPlan plan(pool, 45, 3);
  std::vector<int32_t> values(static_cast<std::size_t>(BatchPlan::staging_size(45, 3, 3)));
  const Layout layout = plan.build(rows.view(), {values.data(), static_cast<int64_t>(values.size())}, {1});
  CHECK(layout.n_int32 <= static_cast<int64_t>(values.size()));
  CHECK_THROWS_AS(plan.build(rows.view(), {values.data(), layout.n_int32 - 1}, {1}), std::invalid_argument);
}

TEST_CASE("the largest tiles and splits are one each, and count as such") {
  PagePool pool(4, 8);
  const int32_t a = admit(pool, 2, 0), b = admit(pool, 3, 0);
  BatchPlan plan(pool, 64, 4, std::numeric_limits<int64_t>::max());
  const Rows rows{{b, a}, {2, 0}, {1, 2}};
  Staging staging;

  const Layout layout = plan.build(rows.view(), staging.view(), {std::numeric_limits<int64_t>::max(), 0, 1});

  CHECK(layout.n_tiles == 1);
  CHECK(layout.n_splits == 1);
  CHECK(staging.section(layout, "q_tile_to_batch") == Values{1});
  CHECK(staging.section(layout, "decode_split_indptr") == Values{0, 1});
}
