// Entry point of astrai._C: registers exceptions and calls one bind_* function per area.
#include <pybind11/pybind11.h>

#include "astrai/error.h"
#include "bindings.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of AstrAI. Imports without torch, without a GPU and without a driver.";
  m.attr("__version__") = ASTRAI_VERSION;
  m.attr("PYBIND11_INTERNALS_ID") = PYBIND11_INTERNALS_ID;  // modules with another one cannot take these types
  py::register_exception<astrai::Error>(m, "Error", PyExc_RuntimeError);
  py::register_exception<astrai::KernelUnavailableError>(m, "KernelUnavailableError", PyExc_RuntimeError);
  astrai::bindings::bind_cpu_ops(m);
  astrai::bindings::bind_dequantize(m);
  astrai::bindings::bind_allocator(m);
  astrai::bindings::bind_radix_cache(m);
  astrai::bindings::bind_page_pool(m);
  astrai::bindings::bind_batch_plan(m);
  astrai::bindings::bind_ops(m);
  astrai::bindings::bind_attn_paged_decode(m);
  astrai::bindings::bind_attn_paged_prefill(m);
  astrai::bindings::bind_fused_ops(m);
  astrai::bindings::bind_moe_ops(m);
  astrai::bindings::bind_pinned_buffer(m);
  astrai::bindings::bind_sampling_ops(m);
  astrai::bindings::bind_token_text(m);
  astrai::bindings::bind_http_chunks(m);
}
