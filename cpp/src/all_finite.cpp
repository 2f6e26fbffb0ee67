// A value is NaN or infinite where all bits of its exponent are set: adding one at the lowest of them then carries into
// the sign. The loop is plain: the compiler turns it into vectors, and it waits for memory.
#include "astrai/all_finite.h"

#include <algorithm>
#include <atomic>

#include "astrai/shape_check.h"
#include "astrai/thread_pool.h"

namespace astrai {
namespace {

template <typename Word, Word kExponent>
bool is_run_finite(const void* values, int64_t n) {
  constexpr Word kLowest = kExponent & -kExponent, kSign = kExponent + kLowest;
  const Word* words = static_cast<const Word*>(values);
  Word carries = 0;
  for (int64_t i = 0; i < n; ++i) carries |= static_cast<Word>((words[i] & kExponent) + kLowest);
  return (carries & kSign) == 0;
}

using RunFn = bool (*)(const void* values, int64_t n);

RunFn function_for(DType dtype) {
  if (dtype == DType::kFloat32) return is_run_finite<uint32_t, 0x7f800000>;
  return dtype == DType::kBFloat16 ? is_run_finite<uint16_t, 0x7f80> : is_run_finite<uint16_t, 0x7c00>;
}

// The values as runs without gaps, numbered in row-major order.
struct Runs {
  const TensorView& values;
  int n_outer_dims;  // dimensions that count the runs
  int64_t len = 1;   // values of a run

  explicit Runs(const TensorView& values) : values(values), n_outer_dims(values.ndim) {
    while (n_outer_dims > 0 && values.is_contiguous_from(n_outer_dims - 1)) len *= values.size(--n_outer_dims);
  }

  const char* at(int64_t run) const {
    int64_t offset = 0;
    for (int dim = n_outer_dims - 1; dim >= 0; --dim) {
      offset += run % values.size(dim) * values.stride(dim);
      run /= values.size(dim);
    }
    return values.data_as<const char>() + offset * static_cast<int64_t>(dtype_size(values.dtype));
  }
};

}  // namespace

bool all_finite(const TensorView& values, ThreadPool& pool) {
  ShapeCheck check("all_finite");
  check.dtype("values", values, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  check.device("values", values, kCpu);
  const Runs runs(values);
  const RunFn is_run_finite = function_for(values.dtype);
  const auto value_bytes = static_cast<int64_t>(dtype_size(values.dtype));
  std::atomic<bool> is_finite{true};
  constexpr int64_t kMinChunkValues = 262'144;  // some 50 us of work
  const int64_t max_chunks = std::clamp<int64_t>(values.numel() / kMinChunkValues, 1, 4 * pool.n_threads());
  pool.run(values.numel(), max_chunks, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t within = begin % runs.len, n = std::min(runs.len - within, end - begin);
      if (!is_run_finite(runs.at(begin / runs.len) + within * value_bytes, n)) {
        is_finite.store(false, std::memory_order_relaxed);
      }
      begin += n;
    }
  });
  return is_finite.load(std::memory_order_relaxed);
}

}  // namespace astrai
