#include "astrai/scheduling_state.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace astrai {
namespace {

void check_group(const StepGroup& group, Int32Span token_ids, Int32Span ended) {
  if (token_ids.size != group.n_sampled) {
    throw std::invalid_argument("SchedulingState.complete: " + std::to_string(token_ids.size) +
                                " token_ids for a group that draws " + std::to_string(group.n_sampled));
  }
  for (const int32_t i : ended) {
    if (i < 0 || i >= static_cast<int64_t>(group.task_ids.size())) {
      throw std::invalid_argument("SchedulingState.complete: ended names task " + std::to_string(i) + " of a group of " +
                                  std::to_string(group.task_ids.size()));
    }
  }
}

template <typename Tasks>
std::vector<int64_t> ids_of(const Tasks& tasks) {
  std::vector<int64_t> ids;
  ids.reserve(tasks.size());
  for (const Task* task : tasks) ids.push_back(task->task_id);
  return ids;
}

}  // namespace

SchedulingState::SchedulingState(PagePool& pool, int64_t prefill_chunk) : pool_(&pool), prefill_chunk_(prefill_chunk) {
  if (prefill_chunk < 0) {
    throw std::invalid_argument("SchedulingState: prefill_chunk is " + std::to_string(prefill_chunk) +
                                "; it must be 1 or more, or 0 for no limit");
  }
}

int64_t SchedulingState::submit(Int32Span prompt, TaskOptions options) {
  if (options.max_tokens && *options.max_tokens < 1) {
    throw std::invalid_argument("SchedulingState.submit: max_tokens is " + std::to_string(*options.max_tokens) +
                                "; it must be 1 or more");
  }
  const int64_t task_id = next_id_++;
  Task& task = tasks_[task_id];
  task.task_id = task_id;
  task.token_ids.assign(prompt.begin(), prompt.end());
  task.options = std::move(options);
  waiting_.push_back(&task);
  has_new_room_ = true;
  return task_id;
}

void SchedulingState::finish(int64_t task_id, bool keep_pages) {
  const auto found = tasks_.find(task_id);
  if (found == tasks_.end() || found->second.is_finished) return;
  Task& task = found->second;
  if (task.req_idx < 0) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &task));
    tasks_.erase(found);
    has_new_room_ = true;
    return;
  }
  running_.erase(std::find(running_.begin(), running_.end(), &task));
  task.is_finished = true;
  task.keeps_pages = keep_pages;
  leaving_.push_back(&task);
}

void SchedulingState::complete(const StepGroup& group, Int32Span token_ids, Int32Span ended) {
  check_group(group, token_ids, ended);
  std::vector<char> has_ended(group.task_ids.size(), 0);
  for (const int32_t i : ended) has_ended[static_cast<size_t>(i)] = 1;
  std::vector<int32_t> rows, known_ids;
  for (size_t i = 0; i < group.task_ids.size(); ++i) {
    const auto found = tasks_.find(group.task_ids[i]);
    if (found == tasks_.end() || found->second.is_finished || found->second.req_idx < 0) continue;
    Task& task = found->second;
    task.n_written += group.q_lens[i];
    if (task.n_written <= task.n_prefill && !has_ended[i]) pool_->commit(task.req_idx, task.n_written);
    if (static_cast<int64_t>(i) >= group.n_sampled) continue;
    --task.n_pending;
    if (has_ended[i]) continue;
    rows.push_back(task.req_idx);
    known_ids.push_back(token_ids[static_cast<int64_t>(i)]);
  }
  if (!rows.empty()) pool_->settle(span_of(rows), span_of(known_ids));
}

bool SchedulingState::can_plan_ahead() const {
  int64_t n_pages = 0, n_decode = 0, n_waiting = 0;
  for (const Task* task : running_) {
    if (task->decodes()) {
      if (task->n_planned >= pool_->max_seq_len()) return false;
      n_pages += task->n_planned % pool_->page_size() == 0;
      ++n_decode;
    } else if (task->awaits_a_token()) {
      ++n_waiting;
    }
  }
  if (n_waiting > n_decode) return false;
  return pool_->is_contiguous() || n_pages <= pool_->n_free_pages() + pool_->n_cached_pages();
}

StepPlan SchedulingState::plan() {
  StepPlan plan;
  cleanup();
  refill(plan);
  const std::vector<Work> chunks = prefill();
  // One group for each selection; its decoding tasks come first.
  std::vector<std::vector<Work>> groups;
  const auto add = [&groups](const Work& work) {
    const auto has_selection = [&work](const std::vector<Work>& members) {
      return members.front().task->options.selection == work.task->options.selection;
    };
    const auto group = std::find_if(groups.begin(), groups.end(), has_selection);
    if (group == groups.end()) {
      groups.push_back({work});
    } else {
      group->push_back(work);
    }
  };
  for (Task* task : decode(plan)) add({task, 1});
  for (const Work& chunk : chunks) {
    // A task that was preempted for the sake of the decoding ones has lost its chunk.
    if (chunk.task->req_idx >= 0) add(chunk);
  }
  for (std::vector<Work>& members : groups) plan.groups.push_back(promise(std::move(members)));
  return plan;
}

// The group of these tasks, and what it writes and draws counted as planned and pending.
StepGroup SchedulingState::promise(std::vector<Work> members) {
  const auto draws = [](const Work& work) { return work.task->n_planned + work.q_len >= work.task->n_prefill; };
  // Chunks that end before their prompt does draw no token and go last.
  const auto first_partial = std::stable_partition(members.begin(), members.end(), draws);
  StepGroup group;
  group.selection = members.front().task->options.selection;
  group.n_sampled = first_partial - members.begin();
  for (const Work& work : members) {
    Task& task = *work.task;
    group.task_ids.push_back(task.task_id);
    group.req_indices.push_back(task.req_idx);
    group.starts.push_back(static_cast<int32_t>(task.n_planned));
    group.q_lens.push_back(work.q_len);
    group.n_decode += task.n_planned >= task.n_prefill;
    task.n_planned += work.q_len;
  }
  for (auto work = members.begin(); work != first_partial; ++work) {
    ++work->task->n_drawn;
    ++work->task->n_pending;
  }
  if (group.n_sampled > 0) pool_->append_pending({group.req_indices.data(), group.n_sampled});
  return group;
}

void SchedulingState::cleanup() {
  for (Task* task : leaving_) {
    give_back(*task);
    tasks_.erase(task->task_id);
  }
  leaving_.clear();
}

// Admits from the head of the queue while there is room, and while the next step could compute something of the prompt: one
// that came in earlier could not, and would miss the pages that those before it write until then. A head that does not fit now
// keeps those behind it waiting, so that it cannot starve.
void SchedulingState::refill(StepPlan& plan) {
  int64_t n_uncomputed = 0;
  for (const Task* task : running_) n_uncomputed += std::max<int64_t>(0, task->n_prefill - task->n_planned);
  while (!waiting_.empty() && has_new_room_ && pool_->n_free_rows() > 0) {
    if (prefill_chunk_ != 0 && n_uncomputed >= prefill_chunk_) return;
    Task& task = *waiting_.front();
    if (soon_finds_more(task)) return;
    std::optional<Admission> admission;
    try {
      admission = pool_->admit(span_of(task.token_ids), task.options.namespace_name);
    } catch (const std::invalid_argument& error) {
      refuse_head(plan, error.what());
      continue;
    }
    if (!admission && running_.empty()) {  // nobody is left whose end would make room
      refuse_head(plan, "the KV pool has no room for this prompt");
      continue;
    }
    if (admission && !leaves_headroom()) {
      pool_->release(admission->req_idx);
      admission.reset();
    }
    if (!admission) {
      has_new_room_ = false;
      return;
    }
    activate(*admission, plan);
    n_uncomputed += task.n_prefill - task.n_planned;
  }
}

void SchedulingState::refuse_head(StepPlan& plan, std::string reason) {
  const int64_t task_id = waiting_.front()->task_id;
  plan.refused.emplace_back(task_id, std::move(reason));
  waiting_.pop_front();
  tasks_.erase(task_id);
}

// True when every running task could still get a page: admitting a task only to preempt it in its first steps would compute
// its prompt for nothing.
bool SchedulingState::leaves_headroom() const {
  if (pool_->is_contiguous() || running_.empty()) return true;
  return pool_->n_free_pages() + pool_->n_cached_pages() >= static_cast<int64_t>(running_.size());
}

// Whether the next steps compute so much of the beginning of this queued prompt, for one that came before, that to wait for
// it is less work than to compute it again beside it.
bool SchedulingState::soon_finds_more(const Task& task) const {
  if (prefill_chunk_ == 0 || pool_->is_contiguous() || pool_->page_size() == 1) return false;
  const int64_t gain = std::max<int64_t>(pool_->page_size(), prefill_chunk_ / 2);
  return std::any_of(running_.begin(), running_.end(), [&](const Task* other) {
    const int64_t end = other->n_written + gain;
    return end <= std::min(other->n_prefill, static_cast<int64_t>(task.token_ids.size()) - 1) &&
           task.options.namespace_name == other->options.namespace_name &&
           std::equal(task.token_ids.begin(), task.token_ids.begin() + end, other->token_ids.begin());
  });
}

// The head of the queue runs.
void SchedulingState::activate(const Admission& admission, StepPlan& plan) {
  Task& task = *waiting_.front();
  waiting_.pop_front();
  task.req_idx = admission.req_idx;
  task.n_prefill = static_cast<int64_t>(task.token_ids.size());
  task.n_planned = task.n_written = admission.n_cached;
  if (!task.first_admission) {
    task.first_admission = admission;
    plan.admitted.push_back(task.task_id);
  }
  running_.push_back(&task);
}

// Chunks for the tasks whose prompt is not written yet, oldest first, under the budget.
std::vector<SchedulingState::Work> SchedulingState::prefill() const {
  int64_t budget = prefill_chunk_ == 0 ? INT64_MAX : prefill_chunk_;
  std::vector<Work> chunks;
  for (Task* task : running_) {
    const int64_t remaining = task->n_prefill - task->n_planned;
    if (remaining <= 0) continue;
    if (budget == 0) break;
    const int64_t q_len = std::min(remaining, budget);
    budget -= q_len;
    chunks.push_back({task, static_cast<int32_t>(q_len)});
  }
  return chunks;
}

// Gives each decoding task a slot for its next token, preempting the youngest tasks when the pool is full.
std::vector<Task*> SchedulingState::decode(StepPlan& plan) {
  std::vector<Task*> decoding;
  for (Task* task : running_) {
    if (task->decodes()) decoding.push_back(task);
  }
  const auto has_context = [this](const Task* task) { return task->n_planned < pool_->max_seq_len(); };
  while (!decoding.empty() && !try_extend(decoding)) {
    // No preemption makes room behind the end of the context.
    const auto at_the_end = std::stable_partition(decoding.begin(), decoding.end(), has_context);
    if (at_the_end != decoding.end()) {
      for (auto task = at_the_end; task != decoding.end(); ++task) {
        plan.out_of_room.push_back((*task)->task_id);
        finish((*task)->task_id);
      }
      decoding.erase(at_the_end, decoding.end());
      continue;
    }
    const Task& youngest = *running_.back();
    // A task that runs alone may find room by coming back when it holds a private copy of a page of the tree, which it then
    // does without. Each stay gives a token at least, so coming back has an end.
    if (running_.size() == 1 && !pool_->fits(youngest.n_planned + 1)) {
      plan.out_of_room.push_back(youngest.task_id);
      finish(youngest.task_id);
      return {};
    }
    preempt_youngest();
    const auto is_preempted = [](const Task* task) { return task->req_idx < 0; };
    decoding.erase(std::remove_if(decoding.begin(), decoding.end(), is_preempted), decoding.end());
  }
  return decoding;
}

bool SchedulingState::try_extend(const std::vector<Task*>& decoding) {
  std::vector<int32_t> rows, new_lens;
  for (const Task* task : decoding) {
    rows.push_back(task->req_idx);
    new_lens.push_back(static_cast<int32_t>(task->n_planned + 1));
  }
  return pool_->extend_batch(span_of(rows), span_of(new_lens)) == static_cast<int64_t>(decoding.size());
}

void SchedulingState::preempt_youngest() {
  Task& task = *running_.back();
  const Int32Span tokens = pool_->row_tokens(task.req_idx);
  task.token_ids.assign(tokens.begin(), tokens.end());
  give_back(task);
  ++task.n_preemptions;
  ++n_preemptions_;
  running_.pop_back();
  waiting_.push_front(&task);
}

// Records what the task has written, then drops its row.
void SchedulingState::give_back(Task& task) {
  if (task.keeps_pages) pool_->commit(task.req_idx, task.n_written);
  pool_->release(task.req_idx);
  task.req_idx = -1;
  has_new_room_ = true;
}

const Task* SchedulingState::find(int64_t task_id) const {
  const auto found = tasks_.find(task_id);
  return found == tasks_.end() ? nullptr : &found->second;
}

std::vector<int64_t> SchedulingState::waiting() const { return ids_of(waiting_); }
std::vector<int64_t> SchedulingState::running() const { return ids_of(running_); }

int64_t generation_room(const PagePool& pool, int64_t n_prompt) {
  const int64_t room = pool.max_seq_len() - n_prompt;
  return pool.is_contiguous() ? room : std::min(room, pool.n_tokens() - n_prompt + 1);
}

}  // namespace astrai
