// _C.PagePool, _C.Admission, _C.DirtySpan and _C.DirtySpans.
#include <pybind11/stl.h>

#include "astrai/page_pool.h"
#include "bindings.h"
#include "dirty_spans.h"
#include "int32_array.h"
#include "page_view.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

std::vector<int32_t> to_vector(Int32Span span) { return {span.begin(), span.end()}; }

py::dict stats(const PagePool& pool) {
  using py::literals::operator""_a;
  return py::dict("n_pages"_a = pool.n_pages(), "n_free_pages"_a = pool.n_free_pages(),
                  "n_cached_pages"_a = pool.n_cached_pages(), "n_held_pages"_a = pool.n_held_pages(),
                  "n_free_rows"_a = pool.n_free_rows(), "n_prompt_tokens"_a = pool.n_prompt_tokens(),
                  "n_hit_tokens"_a = pool.n_hit_tokens(), "n_evicted_pages"_a = pool.n_evicted_pages());
}

py::list snapshot(const PagePool& pool, int64_t max_pages) {
  return pool.tree() == nullptr ? py::list() : snapshot_dicts(*pool.tree(), max_pages);
}

py::list edges(const PagePool& pool, int64_t max_edges, int64_t max_ids) {
  return pool.tree() == nullptr ? py::list() : edge_dicts(*pool.tree(), max_edges, max_ids);
}

int64_t n_edges(const PagePool& pool) { return pool.tree() == nullptr ? 0 : pool.tree()->n_edges(); }

}  // namespace

void bind_page_pool(py::module_& m) {
  py::class_<Admission>(m, "Admission", py::is_final(), "A row for a prompt, and how much of it was cached.")
      .def_readonly("req_idx", &Admission::req_idx)
      .def_readonly("n_cached", &Admission::n_cached)
      .def_readonly("miss_reason", &Admission::miss_reason)
      .def_readonly("miss_position", &Admission::miss_position);

  py::class_<DirtySpan>(m, "DirtySpan", py::is_final(), "Positions of a table row written since take_dirty().")
      .def_readonly("req_idx", &DirtySpan::req_idx)
      .def_readonly("begin", &DirtySpan::begin)
      .def_readonly("end", &DirtySpan::end);

  py::class_<DirtySpans>(m, "DirtySpans", py::is_final(), "Spans of table rows, one a row.")
      .def("__len__", [](const DirtySpans& dirty) { return dirty.spans.size(); })
      .def(
          "__iter__",
          [](const DirtySpans& dirty) { return py::make_iterator(dirty.spans.begin(), dirty.spans.end()); },
          py::keep_alive<0, 1>());

  py::class_<PagePool>(m, "PagePool", py::buffer_protocol(), py::is_final(),
                       "Host bookkeeping of the KV pool, contiguous or paged.")
      .def(py::init<int32_t, int32_t, int32_t, std::optional<int64_t>>(), py::arg("max_batch_size"),
           py::arg("max_seq_len"), py::arg("page_size") = 1, py::arg("n_tokens") = py::none())
      .def(
          "admit",
          [](PagePool& pool, Int32Argument& ids, const std::string& namespace_name) {
            return pool.admit(ids.span(), namespace_name);
          },
          py::arg("token_ids"), py::arg("namespace") = "")
      .def("can_admit", &PagePool::can_admit, py::arg("n_tokens"))
      .def("fits", &PagePool::fits, py::arg("n_tokens"))
      .def("extend", &PagePool::extend, py::arg("req_idx"), py::arg("new_len"))
      .def(
          "extend_batch",
          [](PagePool& pool, Int32Argument& rows, Int32Argument& lens) {
            return pool.extend_batch(rows.span(), lens.span());
          },
          py::arg("req_indices"), py::arg("new_lens"))
      .def("append", &PagePool::append, py::arg("req_idx"), py::arg("token_id"))
      .def(
          "append_batch",
          [](PagePool& pool, Int32Argument& rows, Int32Argument& ids) {
            pool.append_batch(rows.span(), ids.span());
          },
          py::arg("req_indices"), py::arg("token_ids"))
      .def(
          "append_pending", [](PagePool& pool, Int32Argument& rows) { pool.append_pending(rows.span()); },
          py::arg("req_indices"))
      .def(
          "settle",
          [](PagePool& pool, Int32Argument& rows, Int32Argument& ids) { pool.settle(rows.span(), ids.span()); },
          py::arg("req_indices"), py::arg("token_ids"))
      .def("commit", &PagePool::commit, py::arg("req_idx"), py::arg("n_written"))
      .def("release", &PagePool::release, py::arg("req_idx"))
      .def("flush_cache", &PagePool::flush_cache)
      .def_property_readonly("contiguous", &PagePool::is_contiguous)
      .def_property_readonly("page_size", &PagePool::page_size)
      .def_property_readonly("max_batch_size", &PagePool::max_batch_size)
      .def_property_readonly("max_seq_len", &PagePool::max_seq_len)
      .def_property_readonly("n_pages", &PagePool::n_pages)
      .def_property_readonly("n_tokens", &PagePool::n_tokens)
      .def_property_readonly("reserved_slot", &PagePool::reserved_slot)
      .def_property_readonly("n_free_pages", &PagePool::n_free_pages)
      .def_property_readonly("n_cached_pages", &PagePool::n_cached_pages)
      .def_property_readonly("n_held_pages", &PagePool::n_held_pages)
      .def_property_readonly("n_edges", &n_edges)
      .def_property_readonly("n_free_rows", &PagePool::n_free_rows)
      .def("ref_count", &PagePool::ref_count, py::arg("page"))
      .def("n_slots", &PagePool::n_slots, py::arg("req_idx"))
      .def("n_tokens_of", [](const PagePool& p, int32_t row) { return p.row_tokens(row).size; }, py::arg("req_idx"))
      .def("tokens", [](const PagePool& p, int32_t row) { return to_vector(p.row_tokens(row)); }, py::arg("req_idx"))
      .def("pages", [](const PagePool& p, int32_t row) { return to_vector(p.row_pages(row)); }, py::arg("req_idx"))
      .def("take_dirty", [](PagePool& pool) { return DirtySpans{pool.take_dirty()}; })
      .def("stats", &stats)
      .def("snapshot", &snapshot, py::arg("max_pages") = 4096)
      .def("edges", &edges, py::arg("max_edges") = 256, py::arg("max_ids") = 64)
      .def("check_integrity", &PagePool::check_integrity)
      // A view of the object's own buffer, so that it keeps the pool alive.
      .def_property_readonly("table", [](py::object self) { return py::memoryview(self); })
      .def_buffer([](PagePool& pool) {
        return py::buffer_info(pool.table(), {pool.max_batch_size(), pool.max_seq_len()},
                               {sizeof(int32_t) * static_cast<size_t>(pool.max_seq_len()), sizeof(int32_t)});
      });
}

}  // namespace astrai::bindings
