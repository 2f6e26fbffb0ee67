// Uses the installed core: a page allocator, and the error of a check. Exits 0 when both behave.
#include <astrai/allocator.h>
#include <astrai/ops.h>
#include <astrai/shape_check.h>

#include <cstdio>
#include <stdexcept>

int main() {
  astrai::Allocator allocator(4);
  const int page = allocator.alloc();
  if (page < 0 || allocator.ref_count(page) != 1) {
    std::fprintf(stderr, "Allocator: page %d has no reference of ours\n", page);
    return 1;
  }
  allocator.free(page);
  if (allocator.n_free() != 4) {
    std::fprintf(stderr, "Allocator: %d of 4 pages are free\n", static_cast<int>(allocator.n_free()));
    return 1;
  }

  astrai::TensorView x;
  x.ndim = 1;
  x.shape[0] = 3;
  try {
    astrai::ShapeCheck("use_core").shape("x", x, {4});
  } catch (const std::invalid_argument& error) {
    std::printf("core works; a check says: %s\n", error.what());
    return 0;
  }
  std::fprintf(stderr, "ShapeCheck accepted a tensor of 3 where 4 was asked for\n");
  return 1;
}
