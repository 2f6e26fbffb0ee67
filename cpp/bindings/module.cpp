// Entry point of astrai._C: registers exceptions and calls one bind_* function per area.
#include <pybind11/pybind11.h>

#include "astrai/error.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  m.attr("__version__") = ASTRAI_VERSION;
  static py::exception<astrai::KernelUnavailableError> kernel_unavailable(m, "KernelUnavailableError",
                                                                         PyExc_RuntimeError);
}
