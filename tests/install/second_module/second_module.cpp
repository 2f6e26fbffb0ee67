// Takes and returns types that astrai._C has registered: by reference, by value, by shared_ptr; throws its exceptions. Also
// shows Python the C++ scheduling state, over pools that _C has made, for a comparison with the engine's.
#include <astrai/error.h>
#include <astrai/page_pool.h>
#include <astrai/radix_cache.h>
#include <astrai/scheduling_state.h>
#include <astrai/token_table.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace py = pybind11;

namespace {

using Ids = std::vector<int32_t>;

// Types of one module are known to another when both were compiled with the same pybind11 internals. Without them every call
// says that the type is not registered: better to say here what is wrong.
void import_core() {
  const py::module_ core = py::module_::import("astrai._C");
  const auto theirs = core.attr("PYBIND11_INTERNALS_ID").cast<std::string>();
  if (theirs != PYBIND11_INTERNALS_ID) {
    throw py::import_error("second_module has " PYBIND11_INTERNALS_ID ", astrai._C has " + theirs +
                           "; build one of them with the pybind11 and compiler of the other");
  }
}

int32_t admit(astrai::PagePool& pool, const Ids& ids) {
  const auto admission = pool.admit(astrai::span_of(ids));
  if (!admission) throw astrai::Error("second_module: no room for a prompt of " + std::to_string(ids.size()));
  return admission->req_idx;
}

py::dict as_dict(const astrai::StepGroup& group) {
  using py::literals::operator""_a;
  return py::dict("selection"_a = group.selection, "task_ids"_a = group.task_ids, "req_indices"_a = group.req_indices,
                  "starts"_a = group.starts, "q_lens"_a = group.q_lens, "n_sampled"_a = group.n_sampled,
                  "n_decode"_a = group.n_decode);
}

void bind_scheduling_state(py::module_& m) {
  using astrai::SchedulingState;
  py::class_<astrai::StepGroup>(m, "StepGroup").def("as_dict", &as_dict);
  py::class_<astrai::StepPlan>(m, "StepPlan")
      .def_readonly("groups", &astrai::StepPlan::groups)
      .def_readonly("out_of_room", &astrai::StepPlan::out_of_room)
      .def_readonly("refused", &astrai::StepPlan::refused)
      .def_readonly("admitted", &astrai::StepPlan::admitted);
  py::class_<SchedulingState>(m, "SchedulingState")
      .def(py::init<astrai::PagePool&, int64_t>(), py::keep_alive<1, 2>())
      .def("submit",
           [](SchedulingState& state, const Ids& prompt, const std::string& namespace_name, int64_t selection,
              std::optional<int64_t> max_tokens, bool waits_for_tokens) {
             return state.submit(astrai::span_of(prompt), {namespace_name, selection, max_tokens, waits_for_tokens});
           })
      .def("finish", &SchedulingState::finish)
      .def("complete",
           [](SchedulingState& state, const astrai::StepGroup& group, const Ids& token_ids, const Ids& ended) {
             state.complete(group, astrai::span_of(token_ids), astrai::span_of(ended));
           })
      .def("can_plan_ahead", &SchedulingState::can_plan_ahead)
      .def("plan", &SchedulingState::plan)
      .def("waiting", &SchedulingState::waiting)
      .def("running", &SchedulingState::running)
      .def("has_work", &SchedulingState::has_work)
      .def("n_preemptions", &SchedulingState::n_preemptions);
  m.def("generation_room", &astrai::generation_room);
}

}  // namespace

PYBIND11_MODULE(second_module, m) {
  import_core();
  m.def("admit", &admit);
  m.def("make_pool", [](int64_t n_tokens) { return astrai::PagePool(2, 64, 4, n_tokens); });
  m.def("same_pool", [](astrai::PagePool& pool) -> astrai::PagePool& { return pool; }, py::return_value_policy::reference);
  m.def("n_cached_tokens", [](const astrai::RadixCache& tree, const Ids& ids) {
    return tree.lookup(astrai::span_of(ids)).n_pages * tree.page_size();
  });
  m.def("make_table", [](const std::vector<std::string>& pieces) {
    return std::make_shared<astrai::TokenTable>(pieces, std::vector<uint8_t>(pieces.size(), 0));
  });
  m.def("use_count", [](const std::shared_ptr<astrai::TokenTable>& table) { return table.use_count(); });
  m.def("fail", [] { throw astrai::KernelUnavailableError("second_module has no kernels"); });
  bind_scheduling_state(m);
}
