// Token ids in, text out: the streams of all running requests, advanced by one call a step.
//
// A stream's text lies in one string, and what its reader has got is a prefix of it:
//
//   | released: the deltas joined | held: could begin a stop string |   + 0 to 3 bytes of a cut character (not text)
//
// The released part only grows, so the joined deltas equal the whole text byte for byte, however tokens are grouped.
// Ends: a stop token, the first complete stop string, or max_tokens; a match beats max_tokens on the same token. A
// character cut off by the end is left out. Both kinds of stop are off while fewer than min_tokens were pushed: a stop
// string that is complete before that is ordinary text, and so is the text of a stop token.
// Single-threaded: one thread, the scheduler's, owns a TextStreams. Any number of them may share one TokenTable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "astrai/stop_matcher.h"
#include "astrai/token_table.h"
#include "astrai/utf8_assembler.h"

namespace astrai {

struct TextOptions {
  std::vector<std::string> stops;        // UTF-8; see StopMatcher for what is refused
  std::vector<std::int64_t> stop_ids;    // token ids that end the stream; ids outside the table are refused
  std::int64_t max_tokens = 0;           // >= 1
  std::int64_t min_tokens = 0;           // 0 .. max_tokens
  bool include_stop = false;             // keep the matched stop string (never a stop token's text) in the text
  bool skip_special = true;              // special ids give no text, but for
  std::vector<std::int64_t> shown_ids;   // these; ids outside the table are refused
  bool strip_leading_space = false;      // drop one blank at the very beginning (SentencePiece's word marker)
};

enum class FinishReason : std::uint8_t { kNone, kStop, kLength };

// What one stream has to say after a step.
struct TextEvent {
  std::int64_t handle = 0;
  std::string text;           // the part released by this step; may be empty when the stream ends
  std::int64_t n_tokens = 0;  // pushed so far, the end token included
  FinishReason finish = FinishReason::kNone;
  std::optional<std::string> stop_string;  // the match that ended the stream
  std::optional<std::int64_t> stop_token;  // or the token that did
};

// The text of one request.
class TextStream {
 public:
  // The table must outlive the stream. Throws std::invalid_argument naming the option that is refused.
  TextStream(const TokenTable& table, TextOptions options);

  // Takes one token and appends what it releases to event.text; sets the other fields but the handle.
  // Preconditions: !is_finished(), the table contains token_id. O(bytes of the piece x stops), amortised.
  void push(std::int64_t token_id, TextEvent& event);
  // Ends the stream from outside (cancelled, out of room) and returns the text that was held. Idempotent.
  std::string finish();

  bool is_finished() const { return is_finished_; }
  // Everything released so far; valid until the next push or finish.
  std::string_view text() const { return std::string_view(text_).substr(0, n_released_); }

 private:
  bool is_shown(std::int64_t token_id) const;
  bool append(std::string_view piece, TextEvent& event);
  void release_up_to(std::size_t end, std::string& delta);
  void end(FinishReason reason, TextEvent& event);

  const TokenTable* table_;
  TextOptions options_;  // stop_ids and shown_ids sorted; stops moved into matcher_
  StopMatcher matcher_;
  Utf8Assembler utf8_;
  std::string text_;
  std::size_t n_released_ = 0;  // bytes of text_
  std::int64_t n_tokens_ = 0;
  bool is_at_start_ = true;  // no byte of text has come yet
  bool is_finished_ = false;
};

// Streams by handle. A handle is never given out twice: one that was closed stays invalid.
class TextStreams {
 public:
  explicit TextStreams(std::shared_ptr<const TokenTable> table);  // not null

  // Starts a stream and returns its handle. Throws std::invalid_argument naming the option that is refused.
  std::int64_t open(TextOptions options);

  // Pushes token_ids[i] to the stream handles[i]. Returns an event for every stream that released text or ended, in
  // the order of the call. A handle may repeat (several tokens of one step): its events are one, and tokens after
  // its end are not counted. Throws std::invalid_argument, and pushes nothing, when a handle is closed or had
  // finished before the call, a token id is outside the table, or the lengths differ. O(bytes of the pieces).
  std::vector<TextEvent> push_batch(const std::int64_t* handles, std::size_t n_handles, const std::int64_t* token_ids,
                                    std::size_t n_token_ids);

  // These throw std::invalid_argument for a handle that is not open.
  std::string finish(std::int64_t handle);  // ends the stream, returns what was held ("" when it had ended)
  std::string text(std::int64_t handle) const;  // everything released so far
  void close(std::int64_t handle);

  std::size_t n_open() const { return slots_.size() - free_slots_.size(); }

 private:
  struct Slot {
    std::optional<TextStream> stream;
    std::int64_t generation = 0;     // counts the streams this slot has had; the high part of their handles
    std::int64_t event_step = 0;     // the push_batch call that last made an event here
    std::size_t event_idx = 0;       // and which one it is
  };
  Slot& slot_of(std::int64_t handle, const char* operation);
  const Slot& slot_of(std::int64_t handle, const char* operation) const;

  std::shared_ptr<const TokenTable> table_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_slots_;
  std::int64_t step_ = 0;
};

}  // namespace astrai
