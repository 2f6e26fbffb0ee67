// A model with real KV traffic and no arithmetic to speak of: what it writes to a token slot depends on every token up to
// that position, so a wrong slot, page or prefix shows in what it generates. It sees a step as a real model on a device
// does: the arrays of the plan and a copy of the table, never the pool.
#pragma once

#include <astrai/batch_plan.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

class ToyModel {
 public:
  static constexpr int64_t kVocabSize = 97;

  explicit ToyModel(int64_t n_slots) : kv_(static_cast<size_t>(n_slots), kUnwritten) {}

  // The next token of each row. words: the plan. table: [n_rows, row_len] token slots.
  std::vector<int32_t> forward(const astrai::Layout& layout, const int32_t* words, const int32_t* table, int64_t row_len) {
    const int32_t* token_ids = section(layout, words, "token_ids");
    const int32_t* positions = section(layout, words, "position_ids");
    const int32_t* out_cache_loc = section(layout, words, "out_cache_loc");
    const int32_t* table_rows = section(layout, words, "req_pool_indices");
    const int32_t* qo_indptr = section(layout, words, "qo_indptr");
    std::vector<int32_t> next_ids;
    for (int64_t row = 0; row < layout.n_rows; ++row) {
      const int32_t* slots = table + table_rows[row] * row_len;
      for (int32_t i = qo_indptr[row]; i < qo_indptr[row + 1]; ++i) {
        const int64_t past = positions[i] == 0 ? 0 : kv_.at(static_cast<size_t>(slots[positions[i] - 1]));
        if (past == kUnwritten) throw std::logic_error("the model reads a slot that nobody has written");
        kv_.at(static_cast<size_t>(out_cache_loc[i])) = chain(past, token_ids[i]);
      }
      next_ids.push_back(sample(kv_.at(static_cast<size_t>(out_cache_loc[qo_indptr[row + 1] - 1]))));
    }
    return next_ids;
  }

  // What a prompt generates without a pool: the answer that any pool must give.
  static std::vector<int32_t> answer(const std::vector<int32_t>& prompt, int64_t n_tokens) {
    int64_t past = 0;
    for (const int32_t id : prompt) past = chain(past, id);
    std::vector<int32_t> output;
    for (int64_t i = 0; i < n_tokens; ++i) {
      output.push_back(sample(past));
      past = chain(past, output.back());
    }
    return output;
  }

 private:
  static constexpr int64_t kUnwritten = -1;
  static int64_t chain(int64_t past, int32_t token_id) { return (past * 31 + token_id + 1) % 1000003; }
  static int32_t sample(int64_t past) { return static_cast<int32_t>(past % kVocabSize); }

  static const int32_t* section(const astrai::Layout& layout, const int32_t* words, const char* name) {
    for (const astrai::PlanSection& section : layout.sections) {
      if (std::strcmp(section.name, name) == 0) return words + section.offset;
    }
    throw std::logic_error(name);
  }

  std::vector<int64_t> kv_;  // [n_slots]
};
