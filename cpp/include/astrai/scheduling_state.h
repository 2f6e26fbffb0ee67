// The scheduling decisions of continuous batching over a PagePool: a state machine with no clock, thread or tensor inside.
//
//   submit, finish, complete        events in: a request, its end, the tokens of a step that was computed
//   plan                            the next step out, to be written by BatchPlan and computed by the engine
//
//   waiting   preempted tasks, then tasks never admitted     FIFO; every one younger than all running
//   running   admission order, which is arrival order        each has a row of the pool
//   leaving   finished, still holding a row                  the next plan records their pages and gives the rows back
//
// The oldest running task is preempted by nobody, which is why there is always progress. Preemption recomputes: what a task
// has written stays in the prefix tree until someone needs the pages. Decisions depend on the events alone.
//
// A plan is a promise to run it, in order. The next one may be asked for before the tokens of the last are known
// (can_plan_ahead); a task that turns out to have ended is then part of one step too many, whose token for it is dropped.
//
// The pool must outlive the state, and its rows are the state's alone: nobody else admits, extends, appends or releases.
// Single-threaded, like the pool.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "astrai/batch_plan.h"
#include "astrai/int32_span.h"
#include "astrai/page_pool.h"

namespace astrai {

struct TaskOptions {
  std::string namespace_name;         // prefixes are shared inside it alone
  int64_t selection = 0;              // tasks of one forward have the same: an adapter, an attention backend
  std::optional<int64_t> max_tokens;  // tokens it may draw, >= 1; absent: until finish()
  bool waits_for_tokens = false;      // its next token cannot be drawn before the engine knows the last one
};

// One generation as the state sees it. A token is planned when a step that writes its KV is, written when that step is
// complete; a prefix hit counts in both.
struct Task {
  int64_t task_id = 0;
  std::vector<int32_t> token_ids;  // what the next admission prefills: the prompt, after a preemption all tokens so far
  TaskOptions options;
  int32_t req_idx = -1;            // row of the pool while running or leaving
  int64_t n_prefill = 0;           // tokens to write before decoding starts
  int64_t n_planned = 0;
  int64_t n_written = 0;
  int64_t n_drawn = 0;             // tokens that planned steps draw, over all its stays
  int64_t n_pending = 0;           // of them, those of steps that are not complete
  int64_t n_preemptions = 0;
  std::optional<Admission> first_admission;  // how much of the prompt was cached, and why not more
  bool is_finished = false;
  bool keeps_pages = true;         // written pages may enter the prefix tree

  bool has_more_to_draw() const {
    return n_planned >= n_prefill && (!options.max_tokens || n_drawn < *options.max_tokens);
  }
  // Whether the next step can draw another token from the one drawn last.
  bool decodes() const { return has_more_to_draw() && !awaits_a_token(); }
  bool awaits_a_token() const { return has_more_to_draw() && options.waits_for_tokens && n_pending > 0; }
};

// The tasks of one forward. The first n_decode decode; the first n_sampled, those among them, draw a token from their last
// position; the others are chunks that do not reach the end of their prompt. One entry a task in each array.
struct StepGroup {
  int64_t selection = 0;
  std::vector<int64_t> task_ids;
  std::vector<int32_t> req_indices, starts, q_lens;  // as in PlanRows
  int64_t n_sampled = 0;
  int64_t n_decode = 0;  // PlanOptions::n_decode

  // For BatchPlan::build; valid as long as the group is unchanged.
  PlanRows rows() const {
    const auto n = static_cast<int64_t>(task_ids.size());
    return {{req_indices.data(), n}, {starts.data(), n}, {q_lens.data(), n}};
  }
};

struct StepPlan {
  std::vector<StepGroup> groups;     // in order of their first task; empty when there is nothing to compute
  std::vector<int64_t> out_of_room;  // tasks that ended here, as the pool cannot grow for them or their context is full
  std::vector<std::pair<int64_t, std::string>> refused;  // tasks that the pool could never hold, with the reason
  std::vector<int64_t> admitted;     // tasks that left the queue for the first time
};

class SchedulingState {
 public:
  // prefill_chunk: prompt tokens computed in one step, beside one for each decoding task; 0 is unlimited. Throws
  // std::invalid_argument when negative.
  explicit SchedulingState(PagePool& pool, int64_t prefill_chunk = 512);

  // Queues a task behind all others and returns its id, which is never given again. Throws std::invalid_argument on
  // max_tokens below 1. A prompt that the pool can never hold is refused by a later plan.
  int64_t submit(Int32Span prompt, TaskOptions options = {});
  // Ends a task now (cancelled, stopped, failed). keep_pages false: what it wrote last is not to be trusted, and nothing more
  // of it enters the prefix tree; chunks of its prompt that were complete before are there. Nothing happens for a task that
  // has ended. O(tasks).
  void finish(int64_t task_id, bool keep_pages = true);
  // The group's forward is done. token_ids: [n_sampled]; ended: indices into the group of tasks whose token was their last,
  // which are to be finished afterwards. Tasks that ended since the plan do not count: their rows may be another's by now.
  // Throws std::invalid_argument, and nothing changed, when a length or an index does not fit the group.
  void complete(const StepGroup& group, Int32Span token_ids, Int32Span ended = {});

  // Whether the next plan needs no result of those before: it surely finds a slot for every token, so that it preempts no
  // task, whose tokens must be known, and ends none. False also where most tasks would only wait. O(running).
  bool can_plan_ahead() const;
  // Decides the next step: gives back, admits, cuts prompts into chunks, extends the decoding tasks. Its tokens count as
  // planned and its draws as pending from here on, so it must be run. O(running + what the pool's transactions take).
  StepPlan plan();
  // Gives the rows of finished tasks back; plan() does it first of all.
  void cleanup();

  bool has_work() const { return !waiting_.empty() || !running_.empty() || !leaving_.empty(); }
  // nullptr for a task that has ended and given its row back. Valid until the next call that changes the state.
  const Task* find(int64_t task_id) const;
  std::vector<int64_t> waiting() const;  // ids, in order
  std::vector<int64_t> running() const;
  int64_t n_preemptions() const { return n_preemptions_; }

 private:
  struct Work {
    Task* task;
    int32_t q_len;
  };

  void refill(StepPlan& plan);
  void refuse_head(StepPlan& plan, std::string reason);
  bool leaves_headroom() const;
  bool soon_finds_more(const Task& task) const;
  void activate(const Admission& admission, StepPlan& plan);
  std::vector<Work> prefill() const;
  std::vector<Task*> decode(StepPlan& plan);
  bool try_extend(const std::vector<Task*>& decoding);
  void preempt_youngest();
  void give_back(Task& task);
  StepGroup promise(std::vector<Work> members);

  PagePool* pool_;
  int64_t prefill_chunk_;
  int64_t next_id_ = 0;
  std::unordered_map<int64_t, Task> tasks_;  // all that are in one of the next three, which point into it
  std::deque<Task*> waiting_;
  std::vector<Task*> running_;
  std::vector<Task*> leaving_;
  bool has_new_room_ = true;  // false while the head of the queue is known not to fit
  int64_t n_preemptions_ = 0;
};

// How many tokens can follow a prompt of n_prompt tokens; 0 or less when it cannot be served. The last sampled token needs a
// position of the context but no slot of the pool, as it is never written. O(1).
int64_t generation_room(const PagePool& pool, int64_t n_prompt);

}  // namespace astrai
