// The inspector's view of the prefix tree as Python dicts; shared by RadixCache.snapshot and PagePool.snapshot.
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

}  // namespace astrai::bindings
