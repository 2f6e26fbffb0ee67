// The prefix tree as Python dicts, by pages and by edges; shared by RadixCache and PagePool. Includers have pybind11/stl.h.
#pragma once

#include <pybind11/pybind11.h>

#include "astrai/radix_cache.h"

namespace astrai::bindings {

inline pybind11::list snapshot_dicts(const RadixCache& tree, int64_t max_pages) {
  using pybind11::literals::operator""_a;
  pybind11::list views;
  for (const RadixPageView& view : tree.snapshot(max_pages)) {
    views.append(pybind11::dict("page"_a = view.page, "parent"_a = view.parent_page, "n_tokens"_a = tree.page_size(),
                                "ref_count"_a = view.ref_count, "hash"_a = view.hash,
                                "namespace"_a = view.namespace_name));
  }
  return views;
}

inline pybind11::list edge_dicts(const RadixCache& tree, int64_t max_edges, int64_t max_ids) {
  using pybind11::literals::operator""_a;
  pybind11::list views;
  for (const RadixEdgeView& view : tree.edges(max_edges, max_ids)) {
    views.append(pybind11::dict("node"_a = view.node, "parent"_a = view.parent, "ref_count"_a = view.ref_count,
                                "n_tokens"_a = static_cast<int64_t>(view.n_pages) * tree.page_size(),
                                "token_ids"_a = view.token_ids, "namespace"_a = view.namespace_name));
  }
  return views;
}

}  // namespace astrai::bindings
