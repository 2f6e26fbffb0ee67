#include "astrai/decode_runs.h"

#include <algorithm>
#include <numeric>

namespace astrai {

// A page of the tree stands for all tokens before it, so the last page of a split tells the split and those before it.
int32_t DecodeRuns::last_page(int32_t member, int32_t split) const {
  return requests_[static_cast<std::size_t>(member)].pages[((split + 1) * split_len_ - 1) / page_size_];
}

void DecodeRuns::find(const PagePool& pool, Int32Span req_indices, Int32Span starts, int64_t n_padding,
                      int64_t split_len) {
  split_len_ = split_len;
  page_size_ = pool.page_size();
  has_shared_ = false;
  requests_.clear();
  runs_.clear();
  for (int64_t i = 0; i < req_indices.size; ++i) {
    const int64_t n_written = starts[i];  // the slot of the token behind them is nobody else's
    const int64_t n_in_tree = std::min(pool.n_tree_pages(req_indices[i]) * page_size_, n_written);
    requests_.push_back({pool.row_pages(req_indices[i]).values, static_cast<int32_t>(n_in_tree / split_len),
                         static_cast<int32_t>(n_written / split_len + 1)});
  }
  requests_.insert(requests_.end(), static_cast<std::size_t>(n_padding), {nullptr, 0, 1});
  order_.resize(requests_.size());
  std::iota(order_.begin(), order_.end(), 0);
  parts_.assign(1, {0, static_cast<int32_t>(order_.size()), 0});
  while (!parts_.empty()) {
    const Part part = parts_.back();
    parts_.pop_back();
    divide(part);
  }
  const auto has_more = [](const DecodeRun& a, const DecodeRun& b) { return a.n_splits > b.n_splits; };
  if (!std::is_sorted(runs_.begin(), runs_.end(), has_more)) std::stable_sort(runs_.begin(), runs_.end(), has_more);
}

int64_t DecodeRuns::n_units(int64_t stack_len) const {
  int64_t n = 0;
  for (const DecodeRun& run : runs_) n += run.n_splits * ((run.n_members + stack_len - 1) / stack_len);
  return n;
}

void DecodeRuns::write_units(int64_t stack_len, DecodeUnit* units) const {
  const auto len = static_cast<int32_t>(stack_len);
  for (const DecodeRun& run : runs_) {
    const int32_t end_split = run.first_split + run.n_splits, end = run.first_member + run.n_members;
    for (int32_t split = run.first_split; split < end_split; ++split) {
      for (int32_t first = run.first_member; first < end; first += len) {
        *units++ = {first, split * kUnitMembers + std::min(len, end - first)};
      }
    }
  }
}

void DecodeRuns::add_run(int32_t split, int32_t end_split, int32_t begin, int32_t end) {
  if (end_split <= split) return;
  has_shared_ = has_shared_ || end - begin > 1;
  runs_.push_back({split, end_split - split, begin, end - begin});
}

// Sorts the members by what their next split is: those with the same one are a run, and a part that may divide later.
void DecodeRuns::divide(const Part& part) {
  keys_.clear();
  for (int32_t i = part.begin; i < part.end; ++i) {
    const int32_t member = order_[static_cast<std::size_t>(i)];
    const bool can_share = requests_[static_cast<std::size_t>(member)].n_shareable > part.split;
    keys_.emplace_back(can_share ? last_page(member, part.split) : -1, member);
  }
  if (!std::is_sorted(keys_.begin(), keys_.end())) std::sort(keys_.begin(), keys_.end());
  for (std::size_t i = 0; i < keys_.size(); ++i) order_[static_cast<std::size_t>(part.begin) + i] = keys_[i].second;
  const auto n = static_cast<int32_t>(keys_.size());
  for (int32_t first = 0, last = 0; first < n; first = last) {
    const int32_t key = keys_[static_cast<std::size_t>(first)].first;
    for (last = first + 1; key >= 0 && last < n && keys_[static_cast<std::size_t>(last)].first == key;) ++last;
    const int32_t begin = part.begin + first, end = part.begin + last;
    if (end - begin == 1) {
      const int32_t member = order_[static_cast<std::size_t>(begin)];
      add_run(part.split, requests_[static_cast<std::size_t>(member)].n_splits, begin, end);
      continue;
    }
    const int32_t end_split = common_end(begin, end, part.split);
    add_run(part.split, end_split, begin, end);
    parts_.push_back({begin, end, end_split});
  }
}

// The first split behind `split` on which the members do not agree. Agreeing on one, they agree on those before.
int32_t DecodeRuns::common_end(int32_t begin, int32_t end, int32_t split) const {
  int32_t unknown_end = requests_[static_cast<std::size_t>(order_[static_cast<std::size_t>(begin)])].n_shareable;
  for (int32_t i = begin + 1; i < end; ++i) {
    const int32_t member = order_[static_cast<std::size_t>(i)];
    unknown_end = std::min(unknown_end, requests_[static_cast<std::size_t>(member)].n_shareable);
  }
  const auto all_have = [&](int32_t at) {
    const int32_t page = last_page(order_[static_cast<std::size_t>(begin)], at);
    for (int32_t i = begin + 1; i < end; ++i) {
      if (last_page(order_[static_cast<std::size_t>(i)], at) != page) return false;
    }
    return true;
  };
  int32_t agreed = split;
  while (agreed + 1 < unknown_end) {
    const int32_t middle = agreed + (unknown_end - agreed) / 2;
    (all_have(middle) ? agreed : unknown_end) = middle;
  }
  return agreed + 1;
}

}  // namespace astrai
