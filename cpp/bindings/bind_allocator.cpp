// _C.Int32Array, _C.Allocator and _C.ReqToTokenPool.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "astrai/allocator.h"
#include "astrai/req_to_token_pool.h"
#include "bindings.h"
#include "int32_array.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

Int32Array make_int32_array(Int32Argument& values) { return {values.take()}; }

void bind_int32_array(py::module_& m) {
  py::class_<Int32Array>(m, "Int32Array", py::buffer_protocol(), py::is_final(),
                         "An int32 vector, seen by Python as a buffer.")
      .def(py::init(&make_int32_array), py::arg("values"))
      .def("__len__", [](const Int32Array& a) { return a.values.size(); })
      .def("tolist", [](const Int32Array& a) { return a.values; })
      .def_buffer([](Int32Array& a) {
        return py::buffer_info(a.values.data(), static_cast<py::ssize_t>(a.values.size()));
      });
}

}  // namespace

void bind_allocator(py::module_& m) {
  bind_int32_array(m);
  py::class_<Allocator>(m, "Allocator", py::is_final(), "Pages of a pool: free, held with a ref count, or cached.")
      .def(py::init<int64_t>(), py::arg("n_pages"))
      .def("set_on_evict", &Allocator::set_on_evict, py::arg("on_evict").none(true))
      .def("alloc", &Allocator::alloc)
      .def(
          "alloc_many",
          [](Allocator& a, int64_t n) -> std::optional<Int32Array> {
            if (n > a.n_pages()) return std::nullopt;
            Int32Array pages{std::vector<int32_t>(static_cast<size_t>(n < 0 ? 0 : n))};
            if (!a.alloc_many(n, pages.values.data())) return std::nullopt;
            return pages;
          },
          py::arg("n"))
      .def("free", &Allocator::free, py::arg("page"), py::arg("keep_cached") = false)
      .def(
          "free_many", [](Allocator& a, Int32Argument& pages) { a.free_many(pages.span()); }, py::arg("pages"))
      .def("inc_ref", &Allocator::inc_ref, py::arg("page"))
      .def("ref_count", &Allocator::ref_count, py::arg("page"))
      .def("touch", &Allocator::touch, py::arg("page"))
      .def_property_readonly("n_pages", &Allocator::n_pages)
      .def_property_readonly("n_free", &Allocator::n_free)
      .def_property_readonly("n_cached", &Allocator::n_cached)
      .def_property_readonly("n_held", &Allocator::n_held)
      .def("check_integrity", &Allocator::check_integrity)
      .def("state_bytes", &Allocator::state_bytes);

  py::class_<ReqToTokenPool>(m, "ReqToTokenPool", py::buffer_protocol(), py::is_final(),
                             "The table request row -> token slot of each position.")
      .def(py::init<int32_t, int32_t>(), py::arg("size"), py::arg("max_context_len"))
      .def("alloc", &ReqToTokenPool::alloc, py::arg("n"))
      .def(
          "free", [](ReqToTokenPool& t, Int32Argument& rows) { t.free(rows.span()); }, py::arg("req_indices"))
      .def(
          "write",
          [](ReqToTokenPool& t, int32_t req_idx, int32_t start, Int32Argument& slots) {
            t.write(req_idx, start, slots.span());
          },
          py::arg("req_idx"), py::arg("start"), py::arg("slots"))
      .def_property_readonly("size", &ReqToTokenPool::size)
      .def_property_readonly("max_context_len", &ReqToTokenPool::max_context_len)
      .def_property_readonly("n_free", &ReqToTokenPool::n_free)
      // A view of the object's own buffer, so that it keeps the pool alive.
      .def_property_readonly("req_to_token", [](py::object self) { return py::memoryview(self); })
      .def_buffer([](ReqToTokenPool& t) {
        return py::buffer_info(t.table(), {t.size(), t.max_context_len()},
                               {sizeof(int32_t) * static_cast<size_t>(t.max_context_len()), sizeof(int32_t)});
      });
}

}  // namespace astrai::bindings
