// _C.attn_paged_decode. Contract: <astrai/attn_paged_decode.h>.
#include "astrai/attn_paged_decode.h"

#include "bindings.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {

void bind_attn_paged_decode(py::module_& m) {
  m.def(
      "attn_paged_decode",
      [](const StreamedTensor& q, const TensorView& k_cache, const TensorView& v_cache, const TensorView& req_to_token,
         const TensorView& req_pool_indices, const TensorView& kv_indptr, const TensorView& split_indptr,
         const TensorView& o_part, const TensorView& ml_part, const TensorView& out,
         const std::optional<TensorView>& new_k, const std::optional<TensorView>& new_v,
         const std::optional<TensorView>& lse, float sm_scale, float soft_cap, int64_t window, int64_t split_len,
         const std::optional<TensorView>& members, const std::optional<TensorView>& n_units,
         const std::optional<TensorView>& units, int64_t stack_len, bool is_plan_settled,
         const std::optional<uintptr_t>& stream) {
        attn_paged_decode({q.view, k_cache, v_cache, req_to_token, req_pool_indices, kv_indptr, split_indptr, o_part,
                           ml_part, out, new_k, new_v, lse, members, n_units, units, sm_scale, soft_cap, window,
                           split_len, stack_len, is_plan_settled},
                          stream ? reinterpret_cast<void*>(*stream) : q.stream);
      },
      py::arg("q"), py::arg("k_cache"), py::arg("v_cache"), py::arg("req_to_token"), py::arg("req_pool_indices"),
      py::arg("kv_indptr"), py::arg("split_indptr"), py::arg("o_part"), py::arg("ml_part"), py::arg("out"),
      py::arg("new_k") = py::none(), py::arg("new_v") = py::none(), py::arg("lse") = py::none(), py::arg("sm_scale") = 1.0F,
      py::arg("soft_cap") = 0.0F, py::arg("window") = 0, py::arg("split_len") = 512, py::arg("members") = py::none(),
      py::arg("n_units") = py::none(), py::arg("units") = py::none(), py::arg("stack_len") = 1,
      py::arg("is_plan_settled") = false, py::arg("stream") = py::none(),
      "Attend one new token per request over its paged KV.");
  m.def("decode_stack_len", &decode_stack_len, py::arg("n_heads"), py::arg("n_kv_heads"), py::arg("head_dim"),
        "Requests sharing slots whose query rows attn_paged_decode attends together.");
}

}  // namespace astrai::bindings
