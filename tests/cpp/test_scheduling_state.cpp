// SchedulingState driven with a seed and a pretended model: what a slot holds depends on every token up to its position, so a
// wrong page, an early prefix match or a slot given to two requests changes what is generated. tests/install compares its
// plans with those of the Python engine's state, event by event.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "astrai/scheduling_state.h"

using namespace astrai;

namespace {

using Ints = std::vector<int32_t>;

int64_t chain(int64_t number, int32_t token_id) { return (number * 31 + token_id + 1) % 1000003; }
int32_t drawn_from(int64_t number) { return static_cast<int32_t>(number % 11); }

// What a prompt generates, whoever runs beside it.
Ints expected_output(const Ints& prompt, size_t n_tokens) {
  int64_t number = 0;
  for (const int32_t id : prompt) number = chain(number, id);
  Ints output;
  while (output.size() < n_tokens) {
    output.push_back(drawn_from(number));
    number = chain(number, output.back());
  }
  return output;
}

class Simulator {
 public:
  struct Request {
    Ints prompt, output;
    size_t n_wanted;
    bool is_cut_short;
  };

  Simulator(PagePool& pool, int64_t prefill_chunk)
      : state(pool, prefill_chunk), pool_(&pool), memory_(static_cast<size_t>(pool.n_tokens()) + 1, -1) {}

  int64_t submit(Ints prompt, size_t n_wanted, TaskOptions options = {}) {
    const int64_t id = state.submit(span_of(prompt), std::move(options));
    requests[id] = {std::move(prompt), {}, n_wanted, false};
    return id;
  }

  void cancel(int64_t id) {
    requests[id].is_cut_short = true;
    state.finish(id);
  }

  void step() {
    const StepPlan plan = state.plan();
    for (const int64_t id : plan.out_of_room) requests[id].is_cut_short = true;
    CHECK(plan.refused.empty());
    for (const StepGroup& group : plan.groups) compute(group);
    pool_->check_integrity();
  }

  void run() {
    int n_steps = 0;
    while (state.has_work()) {
      step();
      REQUIRE(++n_steps < 10000);
    }
    for (const auto& [id, request] : requests) {
      const size_t n = request.is_cut_short ? request.output.size() : request.n_wanted;
      CHECK_MESSAGE(request.output == expected_output(request.prompt, n), "task " << id);
    }
    CHECK(pool_->n_held_pages() == 0);
    CHECK(pool_->n_free_rows() == pool_->max_batch_size());
  }

  SchedulingState state;
  std::map<int64_t, Request> requests;

 private:
  void compute(const StepGroup& group) {
    Ints token_ids, ended;
    for (size_t i = 0; i < group.task_ids.size(); ++i) {
      const int64_t number = forward(group.req_indices[i], group.starts[i], group.q_lens[i]);
      if (static_cast<int64_t>(i) >= group.n_sampled) continue;
      Request& request = requests[group.task_ids[i]];
      token_ids.push_back(drawn_from(number));
      request.output.push_back(token_ids.back());
      if (request.output.size() == request.n_wanted) ended.push_back(static_cast<int32_t>(i));
    }
    state.complete(group, span_of(token_ids), span_of(ended));
    for (const int32_t i : ended) state.finish(group.task_ids[static_cast<size_t>(i)]);
  }

  // Writes the row's tokens [start, start + n), as an engine does after BatchPlan::build.
  int64_t forward(int32_t req_idx, int32_t start, int32_t n) {
    const Int32Span tokens = pool_->row_tokens(req_idx);
    const int32_t* slots = pool_->row_slots(req_idx);
    int64_t number = start == 0 ? 0 : memory_[static_cast<size_t>(slots[start - 1])];
    REQUIRE(number >= 0);
    for (int32_t i = start; i < start + n; ++i) {
      number = chain(number, tokens[i]);
      memory_[static_cast<size_t>(slots[i])] = number;
    }
    return number;
  }

  PagePool* pool_;
  std::vector<int64_t> memory_;  // [n_tokens + 1] what each slot holds, -1 at first
};

}  // namespace

TEST_CASE("scheduling state: what is generated depends on the prompt alone, in any pool and company") {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto draw = [&random](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const int32_t page_size = draw(1, 4);
    const bool is_contiguous = draw(0, 4) == 0;
    PagePool pool(draw(1, 5), 40, page_size, is_contiguous ? std::nullopt : std::optional<int64_t>(draw(10, 30) * page_size));
    Simulator simulator(pool, draw(0, 2) == 0 ? 0 : draw(1, 12));
    for (int i = 0; i < 40; ++i) {
      if (draw(0, 2) == 0) {
        const Ints prompt(static_cast<size_t>(draw(1, 9)), draw(0, 1));
        const int64_t room = generation_room(pool, static_cast<int64_t>(prompt.size()));
        if (pool.fits(static_cast<int64_t>(prompt.size())) && room > 0) {
          TaskOptions options;
          options.namespace_name = draw(0, 3) == 0 ? "other" : "";
          options.selection = draw(0, 1);
          const int64_t n_wanted = std::min<int64_t>(room, draw(1, 20));
          if (draw(0, 1) == 0) options.max_tokens = n_wanted;
          simulator.submit(prompt, static_cast<size_t>(n_wanted), options);
        }
      }
      if (!simulator.requests.empty() && draw(0, 9) == 0) {
        const int64_t id = draw(0, static_cast<int>(simulator.requests.size()) - 1);
        if (simulator.state.find(id) != nullptr && !simulator.state.find(id)->is_finished) simulator.cancel(id);
      }
      simulator.step();
    }
    simulator.run();
  }
}

TEST_CASE("scheduling state: a full pool preempts the youngest, which goes on where it was") {
  PagePool pool(3, 40, 2, 16);
  Simulator simulator(pool, 0);
  const int64_t oldest = simulator.submit({1, 2}, 10);
  const int64_t youngest = simulator.submit({3, 4}, 10);
  bool was_preempted = false;
  for (int i = 0; i < 8; ++i) {
    simulator.step();
    was_preempted = was_preempted || simulator.state.waiting() == std::vector<int64_t>{youngest};
    CHECK(simulator.state.running().front() == oldest);
  }
  CHECK(was_preempted);
  CHECK(simulator.state.n_preemptions() >= 1);
  simulator.run();
}

TEST_CASE("scheduling state: a task at the end of the context ends and preempts nobody") {
  PagePool pool(2, 8, 1, 64);
  Simulator simulator(pool, 0);
  const int64_t ended = simulator.submit({1, 2, 3, 4, 5}, 40);
  simulator.submit({1, 2}, 6);
  simulator.run();
  CHECK(simulator.requests[ended].is_cut_short);
  CHECK(simulator.requests[ended].output == expected_output({1, 2, 3, 4, 5}, 4));
  CHECK(simulator.state.n_preemptions() == 0);
}

TEST_CASE("scheduling state: a prompt is cut into chunks, and decoding goes on beside them") {
  PagePool pool(2, 40, 2, 80);
  Simulator simulator(pool, 4);
  const int64_t decoding = simulator.submit({1, 2}, 10);
  simulator.step();
  const int64_t prompt = simulator.submit(Ints(9, 7), 1);
  const StepPlan plan = simulator.state.plan();
  REQUIRE(plan.groups.size() == 1);
  const StepGroup& group = plan.groups.front();
  CHECK(group.task_ids == std::vector<int64_t>{decoding, prompt});
  CHECK(group.q_lens == Ints{1, 4});
  CHECK(group.n_decode == 1);
  CHECK(group.n_sampled == 1);
  CHECK(plan.admitted == std::vector<int64_t>{prompt});
}

TEST_CASE("scheduling state: prompts that no pool could hold are refused with the reason") {
  PagePool pool(2, 8, 2, 16);
  SchedulingState state(pool);
  const Ints too_long(8, 1);
  const int64_t id = state.submit(span_of(too_long));
  const StepPlan plan = state.plan();
  REQUIRE(plan.refused.size() == 1);
  CHECK(plan.refused.front().first == id);
  CHECK(plan.refused.front().second.find("the prompt has 8 tokens") != std::string::npos);
  CHECK(state.find(id) == nullptr);
  CHECK_FALSE(state.has_work());
}

TEST_CASE("scheduling state: the draws of a step in flight are pending, and one that ended meanwhile is dropped") {
  PagePool pool(2, 16, 2, 32);
  SchedulingState state(pool, 0);
  const Ints prompt{1, 2, 3};
  const int64_t stays = state.submit(span_of(prompt)), ends = state.submit(span_of(prompt));
  const StepPlan first = state.plan();
  CHECK(state.can_plan_ahead());
  const StepPlan second = state.plan();
  REQUIRE(second.groups.size() == 1);
  CHECK(second.groups[0].n_decode == 2);
  CHECK(pool.row_tokens(state.find(stays)->req_idx)[3] == PagePool::kPendingId);
  const Ints ids{5, 6}, ended{1};
  state.complete(first.groups[0], span_of(ids), span_of(ended));
  state.finish(ends);
  CHECK(pool.row_tokens(state.find(stays)->req_idx)[3] == 5);
  state.complete(second.groups[0], span_of(ids));
  CHECK(pool.row_tokens(state.find(stays)->req_idx)[4] == 5);
  state.cleanup();
  CHECK(state.find(ends) == nullptr);
  CHECK(state.find(stays)->n_pending == 0);
}

TEST_CASE("scheduling state: bad arguments are refused and change nothing") {
  PagePool pool(2, 16, 2, 32);
  CHECK_THROWS_AS(SchedulingState(pool, -1), std::invalid_argument);
  SchedulingState state(pool);
  const Ints prompt{1, 2, 3}, ids{5}, two_ids{5, 6}, ended{1};
  TaskOptions options;
  options.max_tokens = 0;
  CHECK_THROWS_AS(state.submit(span_of(prompt), options), std::invalid_argument);
  CHECK_FALSE(state.has_work());
  const int64_t id = state.submit(span_of(prompt));
  const StepPlan plan = state.plan();
  CHECK_THROWS_AS(state.complete(plan.groups[0], span_of(two_ids)), std::invalid_argument);
  CHECK_THROWS_AS(state.complete(plan.groups[0], span_of(ids), span_of(ended)), std::invalid_argument);
  CHECK(state.find(id)->n_written == 0);
  state.complete(plan.groups[0], span_of(ids));
  CHECK(state.find(id)->n_written == 3);
  state.finish(id);
  state.finish(id);
  state.finish(12345);
  state.cleanup();
  CHECK_FALSE(state.has_work());
}
