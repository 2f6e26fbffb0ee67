// Sampling on a GPU: one token a row, without sorting the vocabulary. As in <astrai/ops.h>: checked here, launched on the
// caller's stream, nothing allocated, nothing synchronised, capturable. Thread safe.
//
// The order of a row's tokens is: higher logit first, of equal logits the lower id. A row's result depends on that row and
// its parameters alone, to the bit: not on the batch, not on the number of thread blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "astrai/tensor_view.h"

namespace astrai {

constexpr int kMaxSampleVocab = 262144;
constexpr int kMaxSampleBatch = 65535;
constexpr int kMaxNarrowTopK = 512;  // up to here a row's candidates fit one thread block
constexpr int kMaxTopLogprobs = 64;

// What changes single logits before all else: L lists with room for C entries each, which live longer than a batch. The
// entries of a list have ids of their own. A logit x becomes, in float32: x += bias; if count >= 0: x = x > 0
// ? x / repetition : x * repetition, then x -= count * frequency + (count > 0 ? presence : 0). Keskar et al., CTRL, 2019,
// section 4.1, and OpenAI's formula of the two penalties. Logits of other tokens are taken as they are.
struct LogitEditTensors {
  TensorView rows;       // [B] int32: the list of each row, in [0, L); negative for none
  TensorView lens;       // [L] int32: entries in use, up to C
  TensorView ids;        // [L, C] int32 in [0, V)
  TensorView bias;       // [L, C] float32; -inf forbids the token
  TensorView counts;     // [L, C] float32: how often the row generated the token, -1: leave the penalties out
  TensorView penalties;  // [L, 3] float32: repetition, frequency, presence; 1, 0 and 0 are none
};

struct SampleTensors {
  TensorView logits;       // [B, V] bfloat16, float16 or float32, any stride from row to row
  TensorView temperature;  // [B] float32; 0: the first token of the order
  TensorView top_k;        // [B] int32; below 1 or above V: all tokens
  TensorView top_p;        // [B] float32; 1 or more: all
  TensorView min_p;        // [B] float32; 0: all
  TensorView seeds;        // [B] int64, the bits of an unsigned seed
  TensorView positions;    // [B] int64: tokens that the row has generated before this one
  TensorView token_ids;    // [B] int32 or int64: written
  TensorView is_faulty;    // [B] bool or uint8: written; 1 where a logit is NaN or none is finite or one is +inf, and where
                           // an edit or a row of the bitmask lies outside its tensor: id 0
  TensorView workspace;    // uint8 [sample_workspace_bytes(B, V) or more] on 16 bytes, any contents
  std::optional<LogitEditTensors> edits;
  std::optional<TensorView> bitmask;       // [M, ceil(V / 32)] int32: bit i % 32 of word i / 32 allows token i
  std::optional<TensorView> bitmask_rows;  // [B] int32: a row's row of bitmask, -1 for none; without it M = B, row by row
};

// Draws token_ids. What survives in a row, after edits and bitmask, as the CPU's astrai.sampling.Sampler has it:
// the first top_k tokens of the order; of these, with probabilities softmax((x - max) / temperature) over them, the
// shortest prefix whose mass reaches top_p, at least one; of these, those with (x - max) / temperature >= log(min_p).
// Among the survivors the token with the largest (x - max) / temperature + noise wins, which is a draw from their softmax
// (Gumbel-max trick: Maddison et al., A* Sampling, 2014, section 2). The noise is a function of (seed, position, id),
// the same as astrai.sampling.generator's.
// has_wide_rows false promises that every row has a temperature of 0 or a top_k of 1 to kMaxNarrowTopK; a row that breaks
// it is reported as faulty. It saves two launches.
void sample(const SampleTensors& tensors, bool has_wide_rows, void* stream);
int64_t sample_workspace_bytes(int64_t batch, int64_t vocab_size);

// What a draw leaves for the next one of the same rows.
//   token_ids  [B] int32, is_faulty [B] bool or uint8: as sample() wrote them
//   rows       [B] int32 in [0, N): where the id of each row belongs
//   last_ids   [N] int32: last_ids[rows[b]] = token_ids[b]; of rows with the same place one is kept
// In the list of a row with penalties the token counts once more; one that is new there becomes its last entry, where the
// list has room. A faulty row counts nothing. No two rows may have one list.
void keep_drawn(const TensorView& token_ids, const TensorView& is_faulty, const TensorView& rows,
                const TensorView& last_ids, const std::optional<LogitEditTensors>& edits, void* stream);

// Log-probabilities log_softmax(logits), none below -9999, of the chosen token and of the first n tokens of the order.
//   logits        [B, V] bfloat16, float16 or float32: the unmodified ones
//   token_ids     [B] int32 or int64 in [0, V): another traps on the device
//   chosen        [B] float32: written
//   top_ids       [B, n] int32, top_logprobs [B, n] float32, n 0 to kMaxTopLogprobs: written; past the last finite logit
//                 -1 and -9999
//   workspace     uint8 [top_logprobs_workspace_bytes(B, V) or more] on 16 bytes, any contents
void top_logprobs(const TensorView& logits, const TensorView& token_ids, const TensorView& chosen,
                  const TensorView& top_ids, const TensorView& top_logprobs, const TensorView& workspace, void* stream);
int64_t top_logprobs_workspace_bytes(int64_t batch, int64_t vocab_size);

// ---- how the launchers cut a row, and the arguments that they work from ----
// From here on not an interface: between astrai::core and astrai::cuda, it may change with any version.
constexpr int kSubsetVecs = 4;       // vectors of 8 logits that one thread of the scan looks at: a subset
constexpr int kScanThreads = 256;    // subsets of one chunk; vector j of subset t is vector j * kScanThreads + t of it
constexpr int kChunkTokens = kScanThreads * kSubsetVecs * 8;
constexpr int64_t n_chunks_of(int64_t vocab_size) { return (vocab_size + kChunkTokens - 1) / kChunkTokens; }

struct LogitEdits {
  const int32_t* rows;      // [batch], null without edits
  int32_t* lens;            // [n_lists]
  int32_t* ids;             // [n_lists, capacity], as bias and counts
  float *bias, *counts;
  const float* penalties;   // [n_lists, 3]
  int n_lists, capacity;    // whose product is an int
};

// What one thread block leaves for the next kernel of the same call.
struct SampleRowState {
  uint64_t bound;       // place of the last token that top-k and top-p keep
  uint64_t best;        // largest (sum, id) so far
  float max;            // largest logit
  int32_t is_wide;      // the draw is left to the scan of all tokens
  uint32_t n_arrived;   // chunks that are done
  uint32_t unused;
};

struct SampleArgs {
  const void* logits;           // [batch, vocab_size]
  int64_t logits_stride;
  int batch, vocab_size;
  bool is_vectorizable;         // every row of logits starts on 16 bytes
  const float *temperature, *top_p, *min_p;
  const int32_t* top_k;
  const int64_t *seeds, *positions;
  void* token_ids;              // [batch] int32 or int64
  bool token_ids_are_64_bit;
  uint8_t* is_faulty;
  LogitEdits edits;
  const uint8_t* bitmask;       // bytes of the words; null without
  int64_t bitmask_stride;       // bytes
  const int32_t* bitmask_rows;  // null: row b for row b
  int n_bitmask_rows;
  uint32_t* subset_keys;        // [batch, n_chunks * kScanThreads], in the workspace
  SampleRowState* states;       // [batch], in the workspace
  bool has_wide_rows;
};
// Checks all but the device.
SampleArgs check_sample(const SampleTensors& tensors, bool has_wide_rows);

struct KeepDrawnArgs {
  const int32_t* token_ids;
  const uint8_t* is_faulty;
  const int32_t* rows;
  int32_t* last_ids;
  LogitEdits edits;
  int batch, n_places;      // of last_ids
};
KeepDrawnArgs check_keep_drawn(const TensorView& token_ids, const TensorView& is_faulty, const TensorView& rows,
                               const TensorView& last_ids, const std::optional<LogitEditTensors>& edits);

struct TopLogprobsArgs {
  const void* logits;
  int64_t logits_stride;
  int batch, vocab_size, n_top;
  bool is_vectorizable, token_ids_are_64_bit;
  const void* token_ids;
  float* chosen;
  int32_t* top_ids;
  float* top_logprobs;
  uint32_t* subset_keys;  // as in SampleArgs
  float* chunk_stats;     // [batch, n_chunks, 2]: largest logit, sum of exp(x - largest)
};
TopLogprobsArgs check_top_logprobs(const TensorView& logits, const TensorView& token_ids, const TensorView& chosen,
                                   const TensorView& top_ids, const TensorView& top_logprobs,
                                   const TensorView& workspace);

}  // namespace astrai
