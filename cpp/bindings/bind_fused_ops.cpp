// _C's operations between matrix products and attention on a GPU. Contracts: <astrai/fused_ops.h>.
#include "astrai/fused_ops.h"

#include "astrai/narrow_linear.h"
#include "astrai/skinny_linear.h"
#include "bindings.h"
#include "stream_handle.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

SkinnyOutput output_of(const char* op, const std::string& name) {
  if (name == "store") return SkinnyOutput::kStore;
  if (name == "add") return SkinnyOutput::kAdd;
  if (name == "silu_mul") return SkinnyOutput::kSiluMul;
  throw std::invalid_argument(std::string(op) + ": output is '" + name + "'; accepted: 'store', 'add', 'silu_mul'");
}

}  // namespace

void bind_fused_ops(py::module_& m) {
  m.def(
      "rms_norm",
      [](const StreamedTensor& x, const TensorView& weight, const TensorView& out, float eps,
         const StreamHandle& stream) { rms_norm(x.view, weight, out, eps, stream_or_current(stream, x)); },
      py::arg("x"), py::arg("weight"), py::arg("out"), py::arg("eps"), py::arg("stream") = py::none(),
      "out = rms_norm(x) * weight.");
  m.def(
      "add_rms_norm",
      [](const StreamedTensor& x, const TensorView& residual, const TensorView& weight, const TensorView& out,
         float eps, const StreamHandle& stream) {
        add_rms_norm(x.view, residual, weight, out, eps, stream_or_current(stream, x));
      },
      py::arg("x"), py::arg("residual"), py::arg("weight"), py::arg("out"), py::arg("eps"),
      py::arg("stream") = py::none(), "residual += x, out = rms_norm(residual) * weight.");
  m.def(
      "silu_mul",
      [](const StreamedTensor& gate_up, const TensorView& out, const StreamHandle& stream) {
        silu_mul(gate_up.view, out, stream_or_current(stream, gate_up));
      },
      py::arg("gate_up"), py::arg("out"), py::arg("stream") = py::none(), "out = silu(gate) * up.");
  m.def(
      "gelu_mul",
      [](const StreamedTensor& gate_up, const TensorView& out, const StreamHandle& stream) {
        gelu_mul(gate_up.view, out, stream_or_current(stream, gate_up));
      },
      py::arg("gate_up"), py::arg("out"), py::arg("stream") = py::none(), "out = gelu_tanh(gate) * up.");
  m.def(
      "embedding",
      [](const StreamedTensor& ids, const TensorView& table, const TensorView& out, const StreamHandle& stream) {
        embedding(ids.view, table, out, stream_or_current(stream, ids));
      },
      py::arg("ids"), py::arg("table"), py::arg("out"), py::arg("stream") = py::none(), "out[t] = table[ids[t]].");
  m.def(
      "rotary_store_kv",
      [](const StreamedTensor& q, const TensorView& k, const TensorView& v, const TensorView& freqs,
         const TensorView& k_cache, const TensorView& v_cache, const TensorView& out_cache_loc,
         const TensorView& q_out, const std::optional<TensorView>& positions, const std::optional<TensorView>& q_norm,
         const std::optional<TensorView>& k_norm, float eps, const StreamHandle& stream) {
        rotary_store_kv(q.view, k, v, freqs, k_cache, v_cache, out_cache_loc, q_out, positions, q_norm, k_norm, eps,
                        stream_or_current(stream, q));
      },
      py::arg("q"), py::arg("k"), py::arg("v"), py::arg("freqs"), py::arg("k_cache"), py::arg("v_cache"),
      py::arg("out_cache_loc"), py::arg("q_out"), py::arg("positions") = py::none(), py::arg("q_norm") = py::none(),
      py::arg("k_norm") = py::none(), py::arg("eps") = 0.0F, py::arg("stream") = py::none(),
      "Norm and rotate q and k, write k and v to their cache slots, in one launch.");
  m.def(
      "skinny_linear",
      [](const StreamedTensor& x, const TensorView& weight, const TensorView& out, const std::optional<TensorView>& bias,
         const std::optional<TensorView>& norm_weight, float eps, const std::string& output, const StreamHandle& stream) {
        skinny_linear({x.view, weight, out}, {bias, norm_weight, eps, output_of("skinny_linear", output)},
                      stream_or_current(stream, x));
      },
      py::arg("x"), py::arg("weight"), py::arg("out"), py::arg("bias") = py::none(),
      py::arg("norm_weight") = py::none(), py::arg("eps") = 0.0F, py::arg("output") = "store",
      py::arg("stream") = py::none(), "Product of few rows with a large weight, with a norm before and an output behind.");
  m.def(
      "narrow_linear",
      [](const StreamedTensor& x, const TensorView& weight, const TensorView& out, const std::optional<TensorView>& bias,
         const std::string& output, const StreamHandle& stream) {
        narrow_linear({x.view, weight, out}, bias, output_of("narrow_linear", output), stream_or_current(stream, x));
      },
      py::arg("x"), py::arg("weight"), py::arg("out"), py::arg("bias") = py::none(), py::arg("output") = "store",
      py::arg("stream") = py::none(), "Product of tens to hundreds of rows with a weight, with an output behind.");
  m.def("skinny_linear_max_rows", &skinny_linear_max_rows, py::arg("row_len"),
        "Rows of this length that skinny_linear takes.");
}

}  // namespace astrai::bindings
