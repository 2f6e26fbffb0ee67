// _C.dequantize and the formats it takes. Contract: <astrai/dequantize.h>.
#include "astrai/dequantize.h"

#include <pybind11/stl.h>

#include "astrai/thread_pool.h"
#include "bindings.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {

void bind_dequantize(py::module_& m) {
  py::dict formats;
  for (const BlockFormat& format : block_formats()) formats[format.name] = py::make_tuple(format.n_values, format.n_bytes);
  m.attr("BLOCK_FORMATS") = formats;
  m.def(
      "dequantize",
      [](const TensorView& packed, const std::string& format, const TensorView& out,
         const std::optional<TensorView>& row_index) {
        py::gil_scoped_release release;
        dequantize(packed, format, out, row_index, shared_thread_pool());
      },
      py::arg("packed"), py::arg("format"), py::arg("out"), py::arg("row_index") = py::none(),
      "Write the values of packed rows of a GGUF file into out.");
}

}  // namespace astrai::bindings
