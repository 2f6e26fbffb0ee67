// _C's sampling on a GPU. Contracts: <astrai/sampling_ops.h>.
#include "astrai/sampling_ops.h"

#include <array>

#include "bindings.h"
#include "stream_handle.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

// The tensors of `edits` with what keeps their buffers for a call.
struct BorrowedEdits {
  std::array<TensorBorrow, 6> borrows;
  std::optional<LogitEditTensors> tensors;
};

void load_edits(const char* op, const std::optional<py::tuple>& edits, BorrowedEdits& loaded) {
  if (!edits) return;
  std::array<TensorView, 6> views;
  if (edits->size() != views.size()) {
    throw std::invalid_argument(std::string(op) + ": edits is not a tuple of 6 tensors");
  }
  for (size_t i = 0; i < views.size(); ++i) {
    if (!loaded.borrows[i].load((*edits)[i], views[i])) {
      throw py::type_error(std::string(op) + ": edits holds something that is no tensor");
    }
  }
  loaded.tensors = LogitEditTensors{views[0], views[1], views[2], views[3], views[4], views[5]};
}

}  // namespace

void bind_sampling_ops(py::module_& m) {
  m.def(
      "sample",
      [](const StreamedTensor& logits, const TensorView& temperature, const TensorView& top_k, const TensorView& top_p,
         const TensorView& min_p, const TensorView& seeds, const TensorView& positions, const TensorView& token_ids,
         const TensorView& is_faulty, const TensorView& workspace, const std::optional<py::tuple>& edits,
         const std::optional<TensorView>& bitmask, const std::optional<TensorView>& bitmask_rows, bool has_wide_rows,
         const StreamHandle& stream) {
        BorrowedEdits loaded;
        load_edits("sample", edits, loaded);
        const SampleTensors tensors{logits.view, temperature, top_k,     top_p,          min_p,   seeds,       positions,
                                    token_ids,   is_faulty,   workspace, loaded.tensors, bitmask, bitmask_rows};
        sample(tensors, has_wide_rows, stream_or_current(stream, logits));
      },
      py::arg("logits"), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"), py::arg("min_p"), py::arg("seeds"),
      py::arg("positions"), py::arg("token_ids"), py::arg("is_faulty"), py::arg("workspace"),
      py::arg("edits") = py::none(), py::arg("bitmask") = py::none(), py::arg("bitmask_rows") = py::none(),
      py::arg("has_wide_rows") = true, py::arg("stream") = py::none(), "Draw one token a row.");
  m.def("sample_workspace_bytes", &sample_workspace_bytes, py::arg("batch"), py::arg("vocab_size"),
        "Bytes of sample's workspace.");
  m.def(
      "keep_drawn",
      [](const StreamedTensor& token_ids, const TensorView& is_faulty, const TensorView& rows, const TensorView& last_ids,
         const std::optional<py::tuple>& edits, const StreamHandle& stream) {
        BorrowedEdits loaded;
        load_edits("keep_drawn", edits, loaded);
        keep_drawn(token_ids.view, is_faulty, rows, last_ids, loaded.tensors, stream_or_current(stream, token_ids));
      },
      py::arg("token_ids"), py::arg("is_faulty"), py::arg("rows"), py::arg("last_ids"), py::arg("edits") = py::none(),
      py::arg("stream") = py::none(), "Keep what was drawn for the next draw.");
  m.def(
      "top_logprobs",
      [](const StreamedTensor& logits, const TensorView& token_ids, const TensorView& chosen, const TensorView& top_ids,
         const TensorView& logprobs, const TensorView& workspace, const StreamHandle& stream) {
        top_logprobs(logits.view, token_ids, chosen, top_ids, logprobs, workspace, stream_or_current(stream, logits));
      },
      py::arg("logits"), py::arg("token_ids"), py::arg("chosen"), py::arg("top_ids"), py::arg("logprobs"),
      py::arg("workspace"), py::arg("stream") = py::none(), "Log-probabilities of the chosen and the first tokens.");
  m.def("top_logprobs_workspace_bytes", &top_logprobs_workspace_bytes, py::arg("batch"), py::arg("vocab_size"),
        "Bytes of top_logprobs' workspace.");
}

}  // namespace astrai::bindings
