// _C's CPU operations and the threads they run on. Contracts: <astrai/cpu_isa.h>, <astrai/cpu_linear.h>,
// <astrai/thread_pool.h>.
#include <pybind11/stl.h>

#include "astrai/cpu_isa.h"
#include "astrai/cpu_linear.h"
#include "astrai/thread_pool.h"
#include "bindings.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

std::vector<std::string> cpu_isas() {
  std::vector<std::string> names;
  for (const CpuIsa isa : supported_cpu_isas()) names.emplace_back(cpu_isa_name(isa));
  return names;
}

int cpu_threads(std::optional<int> n) {
  ThreadPool& pool = shared_thread_pool();
  if (n) {
    py::gil_scoped_release release;  // waits for an operation in progress
    pool.set_n_threads(*n);
  }
  return pool.n_threads();
}

}  // namespace

void bind_cpu_ops(py::module_& m) {
  m.attr("CPU_LINEAR_MAX_ROWS") = kCpuLinearMaxRows;
  m.def("cpu_isas", &cpu_isas, "Instruction sets available here, best last.");
  m.def("cpu_threads", &cpu_threads, py::arg("n") = py::none(), "Set the number of threads; returns it.");
  m.def(
      "cpu_linear",
      [](const TensorView& x, const TensorView& weight, const TensorView& out, const std::optional<TensorView>& bias,
         const std::string& isa) {
        py::gil_scoped_release release;
        cpu_linear(x, weight, out, bias, resolve_cpu_isa(isa), shared_thread_pool());
      },
      py::arg("x"), py::arg("weight"), py::arg("out"), py::arg("bias") = py::none(), py::arg("isa") = "",
      "out = x @ weight.T + bias for few rows.");
}

}  // namespace astrai::bindings
