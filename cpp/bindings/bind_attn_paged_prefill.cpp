// _C.attn_paged_prefill. Contract: <astrai/attn_paged_prefill.h>.
#include "astrai/attn_paged_prefill.h"

#include <pybind11/stl.h>

#include <tuple>

#include "bindings.h"
#include "tensor_caster.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

using Splits = std::tuple<int, int, int>;  // n_tiles, n_splits, split_len of a PrefillSplitPlan

}  // namespace

void bind_attn_paged_prefill(py::module_& m) {
  m.def(
      "attn_paged_prefill",
      [](const StreamedTensor& q, const TensorView& k_cache, const TensorView& v_cache, const TensorView& req_to_token,
         const TensorView& req_pool_indices, const TensorView& kv_indptr, const TensorView& qo_indptr,
         const TensorView& q_tile_to_batch, const TensorView& q_tile_to_index, const TensorView& out, bool is_causal,
         float sm_scale, int window, float soft_cap, int q_tile_rows, const std::optional<TensorView>& lse,
         const std::optional<TensorView>& workspace, const std::optional<Splits>& splits, const std::optional<uintptr_t>& stream) {
        const PagedPrefillTensors tensors{q.view,    k_cache,   v_cache,         req_to_token,    req_pool_indices,
                                          kv_indptr, qo_indptr, q_tile_to_batch, q_tile_to_index, out,
                                          lse.value_or(TensorView{}), workspace.value_or(TensorView{})};
        const auto [n_split_tiles, n_splits, split_len] = splits.value_or(Splits{0, 1, 0});
        const PagedPrefillOptions options{is_causal, sm_scale,    window,
                                          soft_cap,  q_tile_rows, {n_split_tiles, n_splits, split_len}};
        attn_paged_prefill(tensors, options, stream ? reinterpret_cast<void*>(*stream) : q.stream);
      },
      py::arg("q"), py::arg("k_cache"), py::arg("v_cache"), py::arg("req_to_token"), py::arg("req_pool_indices"),
      py::arg("kv_indptr"), py::arg("qo_indptr"), py::arg("q_tile_to_batch"), py::arg("q_tile_to_index"),
      py::arg("out"), py::arg("is_causal"), py::arg("sm_scale"), py::arg("window") = 0, py::arg("soft_cap") = 0.0F,
      py::arg("q_tile_rows") = 0, py::arg("lse") = py::none(), py::arg("workspace") = py::none(),
      py::arg("splits") = py::none(), py::arg("stream") = py::none(),
      "Attend packed new rows over the paged KV of their requests.");
  m.def(
      "plan_prefill_splits",
      [](const std::vector<int>& q_lens, const std::vector<int>& kv_lens, int q_tile_rows, int n_heads, int n_kv_heads,
         int window, int n_multiprocessors) {
        const PrefillSplitPlan plan =
            plan_prefill_splits(q_lens, kv_lens, q_tile_rows, n_heads, n_kv_heads, window, n_multiprocessors);
        return Splits{plan.n_tiles, plan.n_splits, plan.split_len};
      },
      py::arg("q_lens"), py::arg("kv_lens"), py::arg("q_tile_rows"), py::arg("n_heads"), py::arg("n_kv_heads"),
      py::arg("window"), py::arg("n_multiprocessors"), "(n_split_tiles, n_splits, split_len) of a launch; (0, 1, 0): none.");
  m.def("prefill_workspace_size", &prefill_workspace_size, py::arg("q_tile_rows"), py::arg("n_heads"),
        py::arg("n_kv_heads"), py::arg("head_dim"), py::arg("n_multiprocessors"),
        "float32 elements that are enough for every plan of plan_prefill_splits.");
}

}  // namespace astrai::bindings
