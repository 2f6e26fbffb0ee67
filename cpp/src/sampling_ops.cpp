// Argument checks of the sampling operations. They need no CUDA, so a build without it refuses the same calls.
#include "astrai/sampling_ops.h"

#include "astrai/shape_check.h"
#include "op_checks.h"

namespace astrai {
namespace {

constexpr int64_t kMaxInt = 2147483647;
constexpr int64_t kStateBytes = sizeof(SampleRowState);

int64_t subset_keys_bytes(int64_t batch, int64_t vocab_size) {
  return batch * n_chunks_of(vocab_size) * kScanThreads * static_cast<int64_t>(sizeof(uint32_t));
}

void check_logits(ShapeCheck& check, const TensorView& logits) {
  check.shape("logits", logits, {"B", "V"});
  check.dtype("logits", logits, {DType::kBFloat16, DType::kFloat16, DType::kFloat32}).contiguous_from(1, "logits", logits);
  const int64_t batch = check.size("B"), vocab_size = check.size("V");
  check.require(vocab_size >= 1 && vocab_size <= kMaxSampleVocab && batch <= kMaxSampleBatch, [&] {
    return "logits has shape " + shape_string(logits) + "; accepted: up to " + std::to_string(kMaxSampleBatch) +
           " rows of 1 to " + std::to_string(kMaxSampleVocab) + " tokens";
  });
}

void check_flat(ShapeCheck& check, const char* arg, const TensorView& t, std::initializer_list<ShapeCheck::Dim> dims,
                std::initializer_list<DType> dtypes) {
  check.shape(arg, t, dims).dtype(arg, t, dtypes).contiguous_from(0, arg, t);
}

void check_workspace(ShapeCheck& check, const TensorView& workspace, int64_t n_bytes) {
  check.dtype("workspace", workspace, {DType::kUInt8}).contiguous_from(0, "workspace", workspace);
  check.writable("workspace", workspace);
  check.require(workspace.ndim == 1 && workspace.numel() >= n_bytes, [&] {
    return "workspace has shape " + shape_string(workspace) + "; expected [" + std::to_string(n_bytes) + "] or more";
  });
  check.require(starts_on_vector(workspace.data, {}, workspace.dtype), "workspace does not start on 16 bytes");
}

LogitEdits check_edits(ShapeCheck& check, const LogitEditTensors& edits) {
  check_flat(check, "edit_rows", edits.rows, {"B"}, {DType::kInt32});
  check_flat(check, "edit_lens", edits.lens, {"L"}, {DType::kInt32});
  check_flat(check, "edit_ids", edits.ids, {"L", "C"}, {DType::kInt32});
  check_flat(check, "edit_bias", edits.bias, {"L", "C"}, {DType::kFloat32});
  check_flat(check, "edit_counts", edits.counts, {"L", "C"}, {DType::kFloat32});
  check_flat(check, "penalties", edits.penalties, {"L", 3}, {DType::kFloat32});
  check.require(edits.ids.numel() <= kMaxInt, "edit_ids has more than 2^31 - 1 entries");
  return {edits.rows.data_as<const int32_t>(), edits.lens.data_as<int32_t>(),  edits.ids.data_as<int32_t>(),
          edits.bias.data_as<float>(),         edits.counts.data_as<float>(),  edits.penalties.data_as<const float>(),
          static_cast<int>(check.size("L")),   static_cast<int>(check.size("C"))};
}

}  // namespace

int64_t sample_workspace_bytes(int64_t batch, int64_t vocab_size) {
  return subset_keys_bytes(batch, vocab_size) + batch * kStateBytes;
}

int64_t top_logprobs_workspace_bytes(int64_t batch, int64_t vocab_size) {
  return subset_keys_bytes(batch, vocab_size) +
         batch * n_chunks_of(vocab_size) * 2 * static_cast<int64_t>(sizeof(float));
}

SampleArgs check_sample(const SampleTensors& tensors, bool has_wide_rows) {
  ShapeCheck check("sample");
  check_logits(check, tensors.logits);
  check_flat(check, "temperature", tensors.temperature, {"B"}, {DType::kFloat32});
  check_flat(check, "top_k", tensors.top_k, {"B"}, {DType::kInt32});
  check_flat(check, "top_p", tensors.top_p, {"B"}, {DType::kFloat32});
  check_flat(check, "min_p", tensors.min_p, {"B"}, {DType::kFloat32});
  check_flat(check, "seeds", tensors.seeds, {"B"}, {DType::kInt64});
  check_flat(check, "positions", tensors.positions, {"B"}, {DType::kInt64});
  check_flat(check, "token_ids", tensors.token_ids, {"B"}, {DType::kInt32, DType::kInt64});
  check_flat(check, "is_faulty", tensors.is_faulty, {"B"}, {DType::kBool, DType::kUInt8});
  check.writable("token_ids", tensors.token_ids).writable("is_faulty", tensors.is_faulty);
  const int64_t batch = check.size("B"), vocab_size = check.size("V");
  check_workspace(check, tensors.workspace, sample_workspace_bytes(batch, vocab_size));

  SampleArgs args{};
  args.logits = tensors.logits.data;
  args.logits_stride = tensors.logits.strides[0];
  args.batch = static_cast<int>(batch);
  args.vocab_size = static_cast<int>(vocab_size);
  args.is_vectorizable = starts_on_vector(args.logits, {batch > 1 ? args.logits_stride : 0}, tensors.logits.dtype);
  args.temperature = tensors.temperature.data_as<const float>();
  args.top_p = tensors.top_p.data_as<const float>();
  args.min_p = tensors.min_p.data_as<const float>();
  args.top_k = tensors.top_k.data_as<const int32_t>();
  args.seeds = tensors.seeds.data_as<const int64_t>();
  args.positions = tensors.positions.data_as<const int64_t>();
  args.token_ids = tensors.token_ids.data;
  args.token_ids_are_64_bit = tensors.token_ids.dtype == DType::kInt64;
  args.is_faulty = tensors.is_faulty.data_as<uint8_t>();
  if (tensors.edits) args.edits = check_edits(check, *tensors.edits);
  if (tensors.bitmask) {
    const int64_t n_words = (vocab_size + 31) / 32;
    if (tensors.bitmask_rows) {
      check.shape("bitmask", *tensors.bitmask, {"M", n_words});
      check_flat(check, "bitmask_rows", *tensors.bitmask_rows, {"B"}, {DType::kInt32});
      args.bitmask_rows = tensors.bitmask_rows->data_as<const int32_t>();
    } else {
      check.shape("bitmask", *tensors.bitmask, {"B", n_words});
    }
    check.require(tensors.bitmask->size(0) <= kMaxInt, "bitmask has more than 2^31 - 1 rows");
    args.n_bitmask_rows = static_cast<int>(tensors.bitmask->size(0));
    check.dtype("bitmask", *tensors.bitmask, {DType::kInt32}).contiguous_from(1, "bitmask", *tensors.bitmask);
    args.bitmask = tensors.bitmask->data_as<const uint8_t>();
    args.bitmask_stride = tensors.bitmask->strides[0] * static_cast<int64_t>(sizeof(int32_t));
  }
  args.subset_keys = tensors.workspace.data_as<uint32_t>();
  args.states =
      reinterpret_cast<SampleRowState*>(tensors.workspace.data_as<uint8_t>() + subset_keys_bytes(batch, vocab_size));
  args.has_wide_rows = has_wide_rows;
  return args;
}

KeepDrawnArgs check_keep_drawn(const TensorView& token_ids, const TensorView& is_faulty, const TensorView& rows,
                               const TensorView& last_ids, const std::optional<LogitEditTensors>& edits) {
  ShapeCheck check("keep_drawn");
  check_flat(check, "token_ids", token_ids, {"B"}, {DType::kInt32});
  check_flat(check, "is_faulty", is_faulty, {"B"}, {DType::kBool, DType::kUInt8});
  check_flat(check, "rows", rows, {"B"}, {DType::kInt32});
  check_flat(check, "last_ids", last_ids, {"N"}, {DType::kInt32});
  check.writable("last_ids", last_ids);
  check.require(check.size("B") <= kMaxSampleBatch && check.size("N") <= kMaxInt,
                [&] { return "token_ids has shape " + shape_string(token_ids) + "; accepted: up to 65535 rows"; });
  KeepDrawnArgs args{};
  args.token_ids = token_ids.data_as<const int32_t>();
  args.is_faulty = is_faulty.data_as<const uint8_t>();
  args.rows = rows.data_as<const int32_t>();
  args.last_ids = last_ids.data_as<int32_t>();
  args.batch = static_cast<int>(check.size("B"));
  args.n_places = static_cast<int>(check.size("N"));
  if (edits) {
    args.edits = check_edits(check, *edits);
    check.writable("edit_lens", edits->lens).writable("edit_ids", edits->ids);
    check.writable("edit_bias", edits->bias).writable("edit_counts", edits->counts);
  }
  return args;
}

TopLogprobsArgs check_top_logprobs(const TensorView& logits, const TensorView& token_ids, const TensorView& chosen,
                                   const TensorView& top_ids, const TensorView& top_logprobs,
                                   const TensorView& workspace) {
  ShapeCheck check("top_logprobs");
  check_logits(check, logits);
  check_flat(check, "token_ids", token_ids, {"B"}, {DType::kInt32, DType::kInt64});
  check_flat(check, "chosen", chosen, {"B"}, {DType::kFloat32});
  check_flat(check, "top_ids", top_ids, {"B", "n"}, {DType::kInt32});
  check_flat(check, "top_logprobs", top_logprobs, {"B", "n"}, {DType::kFloat32});
  check.writable("chosen", chosen).writable("top_ids", top_ids).writable("top_logprobs", top_logprobs);
  check.require(check.size("n") <= kMaxTopLogprobs, [&] {
    return "top_ids has shape " + shape_string(top_ids) + "; at most " + std::to_string(kMaxTopLogprobs) + " a row";
  });
  const int64_t batch = check.size("B"), vocab_size = check.size("V");
  check_workspace(check, workspace, top_logprobs_workspace_bytes(batch, vocab_size));

  TopLogprobsArgs args{};
  args.logits = logits.data;
  args.logits_stride = logits.strides[0];
  args.batch = static_cast<int>(batch);
  args.vocab_size = static_cast<int>(vocab_size);
  args.n_top = static_cast<int>(check.size("n"));
  args.is_vectorizable = starts_on_vector(logits.data, {batch > 1 ? args.logits_stride : 0}, logits.dtype);
  args.token_ids = token_ids.data;
  args.token_ids_are_64_bit = token_ids.dtype == DType::kInt64;
  args.chosen = chosen.data_as<float>();
  args.top_ids = top_ids.data_as<int32_t>();
  args.top_logprobs = top_logprobs.data_as<float>();
  args.subset_keys = workspace.data_as<uint32_t>();
  args.chunk_stats = reinterpret_cast<float*>(workspace.data_as<uint8_t>() + subset_keys_bytes(batch, vocab_size));
  return args;
}

}  // namespace astrai
