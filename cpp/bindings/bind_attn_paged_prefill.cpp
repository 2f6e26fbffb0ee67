// _C.attn_paged_prefill. Contract: <astrai/attn_paged_prefill.h>.
#include "astrai/attn_paged_prefill.h"

#include "bindings.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {

void bind_attn_paged_prefill(py::module_& m) {
  m.def(
      "attn_paged_prefill",
      [](const StreamedTensor& q, const TensorView& k_cache, const TensorView& v_cache, const TensorView& req_to_token,
         const TensorView& req_pool_indices, const TensorView& kv_indptr, const TensorView& qo_indptr,
         const TensorView& q_tile_to_batch, const TensorView& q_tile_to_index, const TensorView& out, bool is_causal,
         float sm_scale, int window, float soft_cap, int q_tile_rows, const std::optional<TensorView>& lse,
         const std::optional<uintptr_t>& stream) {
        const PagedPrefillTensors tensors{q.view,    k_cache,   v_cache,         req_to_token,    req_pool_indices,
                                          kv_indptr, qo_indptr, q_tile_to_batch, q_tile_to_index, out,
                                          lse.value_or(TensorView{})};
        const PagedPrefillOptions options{is_causal, sm_scale, window, soft_cap, q_tile_rows};
        attn_paged_prefill(tensors, options, stream ? reinterpret_cast<void*>(*stream) : q.stream);
      },
      py::arg("q"), py::arg("k_cache"), py::arg("v_cache"), py::arg("req_to_token"), py::arg("req_pool_indices"),
      py::arg("kv_indptr"), py::arg("qo_indptr"), py::arg("q_tile_to_batch"), py::arg("q_tile_to_index"),
      py::arg("out"), py::arg("is_causal"), py::arg("sm_scale"), py::arg("window") = 0, py::arg("soft_cap") = 0.0F,
      py::arg("q_tile_rows") = 0, py::arg("lse") = py::none(), py::arg("stream") = py::none(),
      "Attend packed new rows over the paged KV of their requests.");
}

}  // namespace astrai::bindings
