// _C.DirtySpans: what PagePool.take_dirty() and Layout.dirty_spans give. It stays in C++ on its way to write_table_update: a step
// of many rows has as many spans.
#pragma once

#include <vector>

#include "astrai/page_pool.h"

namespace astrai::bindings {

struct DirtySpans {
  std::vector<DirtySpan> spans;
};

}  // namespace astrai::bindings
