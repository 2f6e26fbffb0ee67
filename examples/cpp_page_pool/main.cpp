// Continuous batching for another engine: admission with prefix reuse, chunked prefill, preemption and the index arrays of
// each step, from astrai::core alone. Serves requests that share a long prefix from a pool that is too small for all of
// them, and checks every answer against the model without a pool.
#include <astrai/batch_plan.h>
#include <astrai/page_pool.h>
#include <astrai/scheduling_state.h>
#include <astrai/table_update.h>

#include <cstdio>
#include <map>
#include <vector>

#include "toy_model.h"

namespace {

constexpr int32_t kMaxBatchSize = 8;
constexpr int32_t kMaxSeqLen = 256;
constexpr int32_t kPageSize = 16;
constexpr int64_t kNumTokens = 26 * kPageSize;
constexpr int64_t kPrefillChunk = 64;

struct Request {
  std::vector<int32_t> prompt, output;
  int64_t n_wanted;
};

class Engine {
 public:
  Engine()
      : pool(kMaxBatchSize, kMaxSeqLen, kPageSize, kNumTokens),
        state(pool, kPrefillChunk),
        plan_(pool, kMaxBatchSize + kPrefillChunk, kMaxBatchSize),
        model_(kNumTokens + 1),
        table_(pool.table(), pool.table() + kMaxBatchSize * kMaxSeqLen) {}

  void submit(std::vector<int32_t> prompt, int64_t n_wanted) {
    astrai::TaskOptions options;
    options.max_tokens = n_wanted;
    const int64_t id = state.submit(astrai::span_of(prompt), options);
    requests[id] = {std::move(prompt), {}, n_wanted};
  }

  void step() {
    const astrai::StepPlan step = state.plan();
    for (const auto& [id, reason] : step.refused) std::printf("request %d is refused: %s\n", static_cast<int>(id), reason.c_str());
    for (const astrai::StepGroup& group : step.groups) compute(group);
  }

  astrai::PagePool pool;
  astrai::SchedulingState state;
  std::map<int64_t, Request> requests;

 private:
  void compute(const astrai::StepGroup& group) {
    int64_t max_splits = 0;
    for (const int32_t start : group.starts) max_splits += start / 512 + 1;
    const int64_t n_words = astrai::BatchPlan::staging_size(kMaxBatchSize + kPrefillChunk, kMaxBatchSize, max_splits);
    words_.resize(static_cast<size_t>(n_words));
    astrai::PlanOptions options;
    options.n_decode = group.n_decode;
    const astrai::Layout layout = plan_.build(group.rows(), {words_.data(), n_words}, options);
    send_table_update(layout);

    std::vector<int32_t> next_ids = model_.forward(layout, words_.data(), table_.data(), kMaxSeqLen);
    next_ids.resize(static_cast<size_t>(group.n_sampled));  // the others are chunks before the end of a prompt
    std::vector<int32_t> ended;
    for (int32_t i = 0; i < group.n_sampled; ++i) {
      Request& request = requests[group.task_ids[static_cast<size_t>(i)]];
      request.output.push_back(next_ids[static_cast<size_t>(i)]);
      if (static_cast<int64_t>(request.output.size()) == request.n_wanted) ended.push_back(i);
    }
    state.complete(group, astrai::span_of(next_ids), astrai::span_of(ended));
    for (const int32_t i : ended) state.finish(group.task_ids[static_cast<size_t>(i)]);
  }

  // On a GPU: one copy of the words, then one scatter.
  void send_table_update(const astrai::Layout& layout) {
    const int64_t n = astrai::n_dirty_entries(layout.dirty_spans);
    std::vector<int32_t> update(static_cast<size_t>(2 * n));
    astrai::write_table_update(pool, layout.dirty_spans, {update.data(), 2 * n});
    for (int64_t i = 0; i < n; ++i) {
      table_[static_cast<size_t>(update[static_cast<size_t>(i)])] = update[static_cast<size_t>(n + i)];
    }
  }

  astrai::BatchPlan plan_;
  ToyModel model_;
  std::vector<int32_t> table_;  // [kMaxBatchSize, kMaxSeqLen] the device's copy
  std::vector<int32_t> words_;  // the plan of a step
};

std::vector<int32_t> prompt_of(int request) {
  std::vector<int32_t> prompt(100, 7);  // what all of them begin with
  for (int i = 0; i < 20; ++i) prompt.push_back(request * 31 + i);
  return prompt;
}

}  // namespace

int main() {
  Engine engine;
  for (int request = 0; request < 24; ++request) engine.submit(prompt_of(request), 10 + 5 * (request % 12));
  int n_steps = 0;
  for (; engine.state.has_work(); ++n_steps) engine.step();
  engine.pool.check_integrity();

  int n_wrong = 0;
  for (const auto& [id, request] : engine.requests) {
    n_wrong += request.output != ToyModel::answer(request.prompt, request.n_wanted);
  }
  std::printf("%d requests in %d steps, %d of %d prompt tokens from the cache, %d preemptions, %d pages evicted, %d wrong answers\n",
              static_cast<int>(engine.requests.size()), n_steps, static_cast<int>(engine.pool.n_hit_tokens()),
              static_cast<int>(engine.pool.n_prompt_tokens()), static_cast<int>(engine.state.n_preemptions()),
              static_cast<int>(engine.pool.n_evicted_pages()), n_wrong);
  return n_wrong == 0 ? 0 : 1;
}
