#include "astrai/token_text.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace astrai {

namespace {

constexpr int kSlotBits = 24;  // of a handle; the generation takes the bits above

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void check_ids(const TokenTable& table, const std::vector<std::int64_t>& ids, const char* name) {
  for (const std::int64_t id : ids) {
    if (!table.contains(id)) {
      refuse("TextStreams.open: " + std::string(name) + " has " + std::to_string(id) + "; the table has ids 0 to " +
             std::to_string(table.n_tokens() - 1));
    }
  }
}

void check_options(const TokenTable& table, const TextOptions& options) {
  if (options.max_tokens < 1) {
    refuse("TextStreams.open: max_tokens is " + std::to_string(options.max_tokens) + "; it must be at least 1");
  }
  if (options.min_tokens < 0 || options.min_tokens > options.max_tokens) {
    refuse("TextStreams.open: min_tokens is " + std::to_string(options.min_tokens) + "; it must be 0 to max_tokens (" +
           std::to_string(options.max_tokens) + ")");
  }
  check_ids(table, options.stop_ids, "stop_ids");
  check_ids(table, options.shown_ids, "shown_ids");
}

}  // namespace

TextStream::TextStream(const TokenTable& table, TextOptions options)
    : table_(&table), options_(std::move(options)), matcher_(std::move(options_.stops)) {
  check_options(table, options_);
  std::sort(options_.stop_ids.begin(), options_.stop_ids.end());
  std::sort(options_.shown_ids.begin(), options_.shown_ids.end());
}

void TextStream::push(std::int64_t token_id, TextEvent& event) {
  event.n_tokens = ++n_tokens_;
  if (n_tokens_ >= options_.min_tokens &&
      std::binary_search(options_.stop_ids.begin(), options_.stop_ids.end(), token_id)) {
    event.stop_token = token_id;
    end(FinishReason::kStop, event);
    return;
  }
  if (is_shown(token_id) && append(table_->piece(token_id), event)) return;
  if (n_tokens_ == options_.max_tokens) end(FinishReason::kLength, event);
}

bool TextStream::is_shown(std::int64_t token_id) const {
  return !options_.skip_special || !table_->is_special(token_id) ||
         std::binary_search(options_.shown_ids.begin(), options_.shown_ids.end(), token_id);
}

// Adds a piece to the text and releases what is certain. Returns true when a stop string ended the stream.
bool TextStream::append(std::string_view piece, TextEvent& event) {
  if (is_at_start_ && !piece.empty()) {
    is_at_start_ = false;
    if (options_.strip_leading_space && piece.front() == ' ') piece.remove_prefix(1);
  }
  std::size_t n_read = text_.size();  // bytes of text_ that the matcher has seen
  utf8_.push(piece, text_);
  while (const auto match = matcher_.advance(std::string_view(text_).substr(n_read))) {
    n_read += match->end;
    if (n_tokens_ < options_.min_tokens) continue;
    const std::string& stop = matcher_.stop(match->stop_idx);
    text_.resize(options_.include_stop ? n_read : n_read - stop.size());
    event.stop_string = stop;
    end(FinishReason::kStop, event);
    return true;
  }
  release_up_to(text_.size() - matcher_.n_held(), event.text);
  return false;
}

void TextStream::release_up_to(std::size_t end, std::string& delta) {
  delta.append(text_, n_released_, end - n_released_);
  n_released_ = end;
}

void TextStream::end(FinishReason reason, TextEvent& event) {
  event.finish = reason;
  is_finished_ = true;
  release_up_to(text_.size(), event.text);
}

std::string TextStream::finish() {
  std::string delta;
  if (!is_finished_) release_up_to(text_.size(), delta);
  is_finished_ = true;
  return delta;
}

TextStreams::TextStreams(std::shared_ptr<const TokenTable> table) : table_(std::move(table)) {}

std::int64_t TextStreams::open(TextOptions options) {
  TextStream stream(*table_, std::move(options));  // may throw: before a slot is taken
  if (free_slots_.empty()) {
    if (slots_.size() >> kSlotBits != 0) refuse("TextStreams.open: too many open streams; close those that ended");
    slots_.emplace_back();
    free_slots_.push_back(slots_.size() - 1);
  }
  const std::size_t slot_idx = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[slot_idx];
  slot.stream.emplace(std::move(stream));
  return (++slot.generation << kSlotBits) | static_cast<std::int64_t>(slot_idx);
}

const TextStreams::Slot& TextStreams::slot_of(std::int64_t handle, const char* operation) const {
  const auto slot_idx = static_cast<std::size_t>(handle & ((std::int64_t{1} << kSlotBits) - 1));
  if (handle < 0 || slot_idx >= slots_.size() || slots_[slot_idx].generation != handle >> kSlotBits ||
      !slots_[slot_idx].stream) {
    refuse(std::string("TextStreams.") + operation + ": handle " + std::to_string(handle) + " is not open");
  }
  return slots_[slot_idx];
}

TextStreams::Slot& TextStreams::slot_of(std::int64_t handle, const char* operation) {
  return const_cast<Slot&>(std::as_const(*this).slot_of(handle, operation));
}

std::vector<TextEvent> TextStreams::push_batch(const std::int64_t* handles, std::size_t n_handles,
                                               const std::int64_t* token_ids, std::size_t n_token_ids) {
  if (n_handles != n_token_ids) {
    refuse("TextStreams.push_batch: got " + std::to_string(n_handles) + " handles and " +
           std::to_string(n_token_ids) + " token ids; give one token for each handle");
  }
  for (std::size_t i = 0; i < n_handles; ++i) {
    if (slot_of(handles[i], "push_batch").stream->is_finished()) {
      refuse("TextStreams.push_batch: handle " + std::to_string(handles[i]) + " has finished; close it");
    }
    if (!table_->contains(token_ids[i])) {
      refuse("TextStreams.push_batch: token_ids[" + std::to_string(i) + "] is " + std::to_string(token_ids[i]) +
             "; the table has ids 0 to " + std::to_string(table_->n_tokens() - 1));
    }
  }
  ++step_;
  std::vector<TextEvent> events;
  events.reserve(n_handles);
  for (std::size_t i = 0; i < n_handles; ++i) {
    Slot& slot = slot_of(handles[i], "push_batch");
    if (slot.stream->is_finished()) continue;  // ended by an earlier token of this call
    if (slot.event_step == step_) {
      slot.stream->push(token_ids[i], events[slot.event_idx]);
      continue;
    }
    TextEvent event;
    slot.stream->push(token_ids[i], event);
    if (event.text.empty() && event.finish == FinishReason::kNone) continue;
    event.handle = handles[i];
    slot.event_step = step_;
    slot.event_idx = events.size();
    events.push_back(std::move(event));
  }
  return events;
}

std::string TextStreams::finish(std::int64_t handle) { return slot_of(handle, "finish").stream->finish(); }

std::string TextStreams::text(std::int64_t handle) const {
  return std::string(slot_of(handle, "text").stream->text());
}

void TextStreams::close(std::int64_t handle) {
  Slot& slot = slot_of(handle, "close");
  slot.stream.reset();
  free_slots_.push_back(static_cast<std::size_t>(&slot - slots_.data()));
}

}  // namespace astrai
