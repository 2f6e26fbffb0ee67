// _C's GPU operations and what was built. Contracts: <astrai/ops.h>.
#include "astrai/ops.h"

#include <pybind11/stl.h>

#include <stdexcept>

#include "bindings.h"
#include "stream_handle.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

// A torch.dtype or its name.
DType dtype_from_object(const py::object& object) {
  std::string name = py::str(object);
  if (name.rfind("torch.", 0) == 0) name.erase(0, 6);
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw std::invalid_argument("prefill_q_tile_rows: dtype is '" + name +
                              "'; accepted: bfloat16, float16, float32, float64");
}

// An index, or the index of a torch.device; 0 for a device that names none.
int device_idx_from_object(const py::object& object) {
  if (py::isinstance<py::int_>(object)) return object.cast<int>();
  const py::object index = object.attr("index");
  return index.is_none() ? 0 : index.cast<int>();
}

}  // namespace

void bind_ops(py::module_& m) {
  m.attr("BUILT_WITH_CUDA") = !cuda_archs().empty();
  m.attr("CUDA_REASON") = ASTRAI_CUDA_REASON;
  m.def("compiled_instances", &compiled_instances, "Kernel name -> (dtype, head_dim) pairs; head_dim 0 means any.");
  m.def("cuda_archs", &cuda_archs, "Architectures of the machine code in this build.");
  m.def(
      "prefill_q_tile_rows",
      [](int n_heads, int n_kv_heads, int head_dim, const py::object& dtype, const py::object& device) {
        return prefill_q_tile_rows(n_heads, n_kv_heads, head_dim, dtype_from_object(dtype),
                                   device_idx_from_object(device));
      },
      py::arg("n_heads"), py::arg("n_kv_heads"), py::arg("head_dim"), py::arg("dtype"), py::arg("device"),
      "Query rows of one prefill tile.");
  m.def(
      "rotary_emb",
      [](const StreamedTensor& x, const TensorView& freqs, const TensorView& out, const StreamHandle& stream) {
        rotary_emb(x.view, freqs, out, stream_or_current(stream, x));
      },
      py::arg("x"), py::arg("freqs"), py::arg("out"), py::arg("stream") = py::none(),
      "Rotate interleaved pairs of x into out.");
  m.def(
      "store_kv",
      [](const StreamedTensor& k, const TensorView& v, const TensorView& k_cache, const TensorView& v_cache,
         const TensorView& out_cache_loc, const StreamHandle& stream) {
        store_kv(k.view, v, k_cache, v_cache, out_cache_loc, stream_or_current(stream, k));
      },
      py::arg("k"), py::arg("v"), py::arg("k_cache"), py::arg("v_cache"), py::arg("out_cache_loc"),
      py::arg("stream") = py::none(), "Copy rows of k and v into cache slots.");
}

}  // namespace astrai::bindings
