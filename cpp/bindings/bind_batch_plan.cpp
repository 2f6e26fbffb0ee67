// _C.BatchPlan, _C.Layout and _C.write_table_update.
#include "astrai/batch_plan.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "astrai/table_update.h"
#include "bindings.h"
#include "dirty_spans.h"
#include "int32_array.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

// The view is released when it goes out of scope, after the plan is written.
PlanStaging staging_of(const char* argument, const py::buffer_info& view) {
  if (!holds_integers(view, 4) || view.ndim != 1 || (view.shape[0] > 1 && view.strides[0] != view.itemsize)) {
    throw py::type_error(std::string(argument) + " is a buffer of format '" + view.format + "' with " +
                         std::to_string(view.ndim) + " dimensions; a contiguous one of int32 is needed");
  }
  return {static_cast<int32_t*>(view.ptr), view.shape[0]};
}

py::dict sections(const Layout& layout) {
  py::dict places;
  for (const PlanSection& section : layout.sections) {
    places[section.name] = py::make_tuple(section.offset, section.length);
  }
  return places;
}

DirtySpans dirty_spans(const Layout& layout) { return {layout.dirty_spans}; }

}  // namespace

void bind_batch_plan(py::module_& m) {
  py::class_<Layout>(m, "Layout", py::is_final(), "Where the sections of a step's plan lie in its staging buffer.")
      .def_property_readonly("sections", &sections)
      .def_readonly("n_rows", &Layout::n_rows)
      .def_readonly("n_decode", &Layout::n_decode)
      .def_readonly("total_q", &Layout::total_q)
      .def_readonly("max_len", &Layout::max_len)
      .def_readonly("max_q_len", &Layout::max_q_len)
      .def_readonly("n_tiles", &Layout::n_tiles)
      .def_readonly("n_splits", &Layout::n_splits)
      .def_readonly("n_units", &Layout::n_units)
      .def_readonly("has_shared", &Layout::has_shared)
      .def_readonly("n_int32", &Layout::n_int32)
      .def_property_readonly("dirty_spans", &dirty_spans);

  py::class_<BatchPlan>(m, "BatchPlan", py::is_final(), "Writes every index array of a step into one staging buffer.")
      .def(py::init<PagePool&, int64_t, int64_t, int64_t>(), py::arg("pool"), py::arg("max_total_q"),
           py::arg("max_batch_size"), py::arg("split_len") = 512, py::keep_alive<1, 2>())
      .def_static("staging_size", &BatchPlan::staging_size, py::arg("max_total_q"), py::arg("max_batch_size"),
                  py::arg("max_splits"))
      .def(
          "build",
          [](BatchPlan& plan, const Int32Argument& req_indices, const Int32Argument& starts,
             const Int32Argument& q_lens, const py::buffer& staging, int64_t q_tile_rows,
             std::optional<int64_t> pad_to, std::optional<int64_t> n_decode, int64_t stack_len) {
            const py::buffer_info view = staging.request(/*writable=*/true);
            return plan.build({req_indices.span(), starts.span(), q_lens.span()}, staging_of("BatchPlan.build: staging", view),
                              {q_tile_rows, pad_to.value_or(0), n_decode, stack_len});
          },
          py::arg("req_indices"), py::arg("starts"), py::arg("q_lens"), py::kw_only(), py::arg("staging"),
          py::arg("q_tile_rows") = 64, py::arg("pad_to") = py::none(), py::arg("n_decode") = py::none(),
          py::arg("stack_len") = 1, "Plans one step.");

  m.def(
      "n_dirty_entries", [](const DirtySpans& dirty) { return n_dirty_entries(dirty.spans); }, py::arg("spans"),
      "Entries of the table in these spans.");
  m.def(
      "write_table_update",
      [](const PagePool& pool, const DirtySpans& dirty, const py::buffer& out) {
        const py::buffer_info view = out.request(/*writable=*/true);
        write_table_update(pool, dirty.spans, staging_of("write_table_update: out", view));
      },
      py::arg("pool"), py::arg("spans"), py::arg("out"), "Writes the positions of these entries, then their slots.");
}

}  // namespace astrai::bindings
