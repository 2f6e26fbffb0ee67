// _C's CPU operations and the threads they run on. Contracts: <astrai/all_finite.h>, <astrai/cpu_attention.h>,
// <astrai/cpu_isa.h>, <astrai/cpu_linear.h>, <astrai/cpu_rowwise.h>, <astrai/thread_pool.h>.
#include <pybind11/stl.h>

#include "astrai/all_finite.h"
#include "astrai/cpu_attention.h"
#include "astrai/cpu_isa.h"
#include "astrai/cpu_linear.h"
#include "astrai/cpu_rowwise.h"
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
  m.def(
      "all_finite",
      [](const TensorView& values) {
        py::gil_scoped_release release;
        return all_finite(values, shared_thread_pool());
      },
      py::arg("values"), "Whether no value is NaN or infinite.");
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
  m.def(
      "cpu_paged_decode",
      [](const TensorView& q, const TensorView& k_cache, const TensorView& v_cache, const TensorView& req_to_token,
         const TensorView& req_pool_indices, const TensorView& kv_indptr, const TensorView& out,
         const std::optional<TensorView>& new_k, const std::optional<TensorView>& new_v, float sm_scale,
         float soft_cap, const std::string& isa) {
        py::gil_scoped_release release;
        const CpuPagedDecodeArgs args{q,   k_cache, v_cache, req_to_token, req_pool_indices, kv_indptr,
                                      out, new_k,   new_v,   sm_scale,     soft_cap};
        cpu_paged_decode(args, resolve_cpu_isa(isa), shared_thread_pool());
      },
      py::arg("q"), py::arg("k_cache"), py::arg("v_cache"), py::arg("req_to_token"), py::arg("req_pool_indices"),
      py::arg("kv_indptr"), py::arg("out"), py::arg("new_k") = py::none(), py::arg("new_v") = py::none(), py::kw_only(),
      py::arg("sm_scale"), py::arg("soft_cap") = 0.0f, py::arg("isa") = "", "Attend one new token per request over its paged KV.");
  m.def(
      "cpu_rms_norm",
      [](const TensorView& x, const TensorView& weight, const TensorView& out, float eps,
         const std::optional<TensorView>& residual, const std::string& isa) {
        py::gil_scoped_release release;
        cpu_rms_norm(x, weight, out, eps, residual, resolve_cpu_isa(isa), shared_thread_pool());
      },
      py::arg("x"), py::arg("weight"), py::arg("out"), py::arg("eps"), py::arg("residual") = py::none(),
      py::arg("isa") = "", "Normalise rows, after adding them to residual.");
  m.def(
      "cpu_silu_mul",
      [](const TensorView& gate_up, const TensorView& out, const std::string& isa) {
        py::gil_scoped_release release;
        cpu_silu_mul(gate_up, out, resolve_cpu_isa(isa), shared_thread_pool());
      },
      py::arg("gate_up"), py::arg("out"), py::arg("isa") = "", "out = silu(gate) * up.");
  m.def(
      "cpu_gelu_mul",
      [](const TensorView& gate_up, const TensorView& out, const std::string& isa) {
        py::gil_scoped_release release;
        cpu_gelu_mul(gate_up, out, resolve_cpu_isa(isa), shared_thread_pool());
      },
      py::arg("gate_up"), py::arg("out"), py::arg("isa") = "", "out = gelu(gate) * up, the tanh form.");
  m.def(
      "cpu_rotary_emb",
      [](const TensorView& x, const TensorView& freqs, const TensorView& out) {
        py::gil_scoped_release release;
        cpu_rotary_emb(x, freqs, out, shared_thread_pool());
      },
      py::arg("x"), py::arg("freqs"), py::arg("out"), "Rotate interleaved pairs of x into out.");
}

}  // namespace astrai::bindings
