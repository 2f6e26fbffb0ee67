// _C.RadixCache, _C.RadixHold and _C.page_hash.
#include <pybind11/stl.h>

#include <stdexcept>

#include "astrai/page_pool.h"
#include "astrai/radix_cache.h"
#include "bindings.h"
#include "int32_array.h"
#include "page_view.h"

namespace py = pybind11;

namespace astrai::bindings {
namespace {

// A held prefix, as Python sees it. The hold ends with RadixCache.release(hold), once.
struct RadixHold {
  const RadixCache* tree = nullptr;  // kept alive, so that no other is taken for it
  int32_t node = -1;                 // -1 after release
  int64_t n_pages = 0;
  int64_t n_tokens = 0;
  MissReason miss_reason = MissReason::kEndOfPrompt;
  int64_t miss_position = 0;
};

void check_held(const char* operation, const RadixCache& tree, const RadixHold& hold) {
  const char* refusal = hold.tree != &tree ? ": the hold is of another RadixCache" : ": the hold was released";
  if (hold.tree != &tree || hold.node < 0) throw std::invalid_argument(std::string("RadixCache.") + operation + refusal);
}

RadixHold match(RadixCache& tree, Int32Argument& ids, const std::string& namespace_name) {
  const RadixMatch found = tree.lookup(ids.span(), namespace_name);
  const RadixMiss miss = tree.explain_miss(found, ids.span());
  RadixHold hold{&tree,       -1,           found.n_pages, static_cast<int64_t>(found.n_pages) * tree.page_size(),
                 miss.reason, miss.position};
  hold.node = tree.lock(found, namespace_name);
  return hold;
}

void release(RadixCache& tree, RadixHold& hold) {
  check_held("release", tree, hold);
  tree.unlock(hold.node);
  hold.node = -1;
}

// Records `pages` for the ids that follow the held prefix and extends the hold over them.
int64_t insert(RadixCache& tree, RadixHold& hold, Int32Argument& ids, Int32Argument& pages) {
  check_held("insert", tree, hold);
  const int64_t n_pages = hold.n_pages + pages.span().size;
  if (n_pages * tree.page_size() > ids.span().size) {
    throw std::invalid_argument("RadixCache.insert: " + std::to_string(n_pages) + " pages of " +
                                std::to_string(tree.page_size()) + " tokens do not fit " +
                                std::to_string(ids.span().size) + " token ids");
  }
  int64_t n_recorded = 0;
  hold.node = tree.insert(hold.node, ids.span().values + hold.n_tokens, pages.span(), &n_recorded);
  hold.n_pages = n_pages;
  hold.n_tokens = n_pages * tree.page_size();
  return n_recorded;
}

}  // namespace

void bind_radix_cache(py::module_& m) {
  m.def(
      "page_hash",
      [](Int32Argument& token_ids, int64_t page_idx, int32_t page_size, uint64_t parent) {
        return page_hash(token_ids.span(), page_idx, page_size, parent);
      },
      py::arg("token_ids"), py::arg("page_idx"), py::arg("page_size"), py::arg("parent") = 0,
      "Rolling hash of one whole page of token ids; for display.");

  py::class_<RadixHold>(m, "RadixHold", py::is_final(), "A prefix held in a RadixCache until release().")
      .def_readonly("n_pages", &RadixHold::n_pages)
      .def_readonly("n_tokens", &RadixHold::n_tokens)
      .def_property_readonly("miss_reason", [](const RadixHold& h) { return miss_reason_name(h.miss_reason); })
      .def_readonly("miss_position", &RadixHold::miss_position);

  py::class_<RadixCache>(m, "RadixCache", py::is_final(), "Exact, page-aligned prefix matching over token ids.")
      .def(py::init<int32_t, int>(), py::arg("page_size"), py::arg("hash_bits") = 64)
      .def(
          "lookup",
          [](const RadixCache& tree, Int32Argument& ids, const std::string& namespace_name) {
            std::vector<int32_t> pages;
            tree.append_pages(tree.lookup(ids.span(), namespace_name), pages);
            return pages;
          },
          py::arg("token_ids"), py::arg("namespace") = "")
      .def("match", &match, py::arg("token_ids"), py::arg("namespace") = "", py::keep_alive<0, 1>())
      .def("insert", &insert, py::arg("hold"), py::arg("token_ids"), py::arg("pages"))
      .def("release", &release, py::arg("hold"))
      .def(
          "record",
          [](RadixCache& tree, int32_t page_idx, Int32Argument& ids, int64_t logical_page_idx,
             const std::string& namespace_name) {
            return tree.record(page_idx, ids.span(), logical_page_idx, namespace_name);
          },
          py::arg("page_idx"), py::arg("token_ids"), py::arg("logical_page_idx"), py::arg("namespace") = "")
      .def(
          "evict",
          [](RadixCache& tree, int32_t page_idx) {
            std::vector<int32_t> pages;
            tree.evict(page_idx, pages);
            return pages;
          },
          py::arg("page_idx"))
      .def(
          "evict_lru",
          [](RadixCache& tree, int64_t n_pages) {
            Int32Array pages;
            tree.evict_lru(n_pages, pages.values);
            return pages;
          },
          py::arg("n_pages"))
      .def("has_page", &RadixCache::has_page, py::arg("page_idx"))
      .def("ref_count", &RadixCache::ref_count, py::arg("page_idx"))
      .def("hash_of", &RadixCache::hash_of, py::arg("page_idx"))
      .def("snapshot", &snapshot_dicts, py::arg("max_pages") = 4096)
      .def("edges", &edge_dicts, py::arg("max_edges") = 256, py::arg("max_ids") = 64)
      .def_property_readonly("page_size", &RadixCache::page_size)
      .def_property_readonly("n_pages", &RadixCache::n_pages)
      .def_property_readonly("n_cached", &RadixCache::n_cached)
      .def_property_readonly("n_edges", &RadixCache::n_edges)
      .def_property_readonly("n_namespaces", &RadixCache::n_namespaces)
      .def("check_integrity", [](const RadixCache& tree) { tree.check_integrity(); })
      .def("state_bytes", &RadixCache::state_bytes);
}

}  // namespace astrai::bindings
