// _C's mixture of experts on a GPU. Contracts: <astrai/moe_ops.h>.
#include "astrai/moe_ops.h"

#include "astrai/moe_tiles.h"
#include "bindings.h"
#include "stream_handle.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {

void bind_moe_ops(py::module_& m) {
  m.def("moe_max_tiles", &moe_max_tiles, py::arg("n_pairs"), py::arg("n_experts"),
        "The most tiles that pairs of rows and experts can give.");
  m.def("moe_tile_rows", &moe_tile_rows, py::arg("n_pairs"), py::arg("n_experts"), "Rows of a tile.");
  m.def("moe_gate_up_row", &moe_gate_up_row, py::arg("tile_row"), py::arg("first_column"), py::arg("n_columns"),
        "The row of gate_up that lies in a row of a tile of weights, or -1.");
  m.def(
      "moe_route",
      [](const StreamedTensor& logits, const TensorView& ids, const TensorView& weights, bool norm_topk_prob,
         const StreamHandle& stream) {
        moe_route(logits.view, ids, weights, norm_topk_prob, stream_or_current(stream, logits));
      },
      py::arg("logits"), py::arg("ids"), py::arg("weights"), py::arg("norm_topk_prob"), py::arg("stream") = py::none(),
      "The heaviest experts of each row.");
  m.def(
      "moe_sort",
      [](const StreamedTensor& ids, const TensorView& order, const TensorView& tiles, int n_experts,
         const StreamHandle& stream) { moe_sort(ids.view, order, tiles, n_experts, stream_or_current(stream, ids)); },
      py::arg("ids"), py::arg("order"), py::arg("tiles"), py::arg("n_experts"), py::arg("stream") = py::none(),
      "Pairs of rows and experts sorted by expert, and the tiles of that order.");
  m.def(
      "moe_gate_up",
      [](const StreamedTensor& x, const TensorView& gate_up, const TensorView& order, const TensorView& tiles,
         const TensorView& gated, const StreamHandle& stream) {
        moe_gate_up(x.view, gate_up, order, tiles, gated, stream_or_current(stream, x));
      },
      py::arg("x"), py::arg("gate_up"), py::arg("order"), py::arg("tiles"), py::arg("gated"),
      py::arg("stream") = py::none(), "gated = silu(gate) * up of each pair, by position.");
  m.def(
      "moe_down",
      [](const StreamedTensor& gated, const TensorView& down, const TensorView& order, const TensorView& tiles,
         const TensorView& parts, const StreamHandle& stream) {
        moe_down(gated.view, down, order, tiles, parts, stream_or_current(stream, gated));
      },
      py::arg("gated"), py::arg("down"), py::arg("order"), py::arg("tiles"), py::arg("parts"),
      py::arg("stream") = py::none(), "parts = down gated of each pair, by pair.");
  m.def(
      "moe_combine",
      [](const StreamedTensor& parts, const TensorView& weights, const TensorView& out, const StreamHandle& stream) {
        moe_combine(parts.view, weights, out, stream_or_current(stream, parts));
      },
      py::arg("parts"), py::arg("weights"), py::arg("out"), py::arg("stream") = py::none(),
      "out = the weighted sum of each row's parts.");
}

}  // namespace astrai::bindings
