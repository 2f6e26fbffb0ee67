#include "astrai/cpu_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "astrai/shape_check.h"
#include "astrai/thread_pool.h"
#include "cpu/bf16.h"
#include "cpu/kernels.h"

namespace astrai {
namespace {

void check_arguments(const CpuPagedDecodeArgs& args) {
  ShapeCheck check("cpu_paged_decode");
  const auto tensor = [&](const char* arg, const TensorView& t, std::initializer_list<ShapeCheck::Dim> dims,
                          std::initializer_list<DType> dtypes, int contiguous_from) {
    check.shape(arg, t, dims).dtype(arg, t, dtypes).device(arg, t, kCpu).contiguous_from(contiguous_from, arg, t);
  };
  tensor("q", args.q, {"B", "n_heads", "D"}, {DType::kFloat32, DType::kBFloat16}, 1);
  const DType dtype = args.q.dtype;
  tensor("k_cache", args.k_cache, {"n_slots", "n_kv_heads", "D"}, {dtype}, 1);
  tensor("v_cache", args.v_cache, {"n_slots", "n_kv_heads", "D"}, {dtype}, 1);
  tensor("req_to_token", args.req_to_token, {"n_rows", "max_len"}, {DType::kInt32}, 1);
  tensor("req_pool_indices", args.req_pool_indices, {"B"}, {DType::kInt32}, 0);
  tensor("kv_indptr", args.kv_indptr, {check.size("B") + 1}, {DType::kInt32}, 0);
  tensor("out", args.out, {"B", "n_heads", "D"}, {dtype}, 0);
  check.writable("out", args.out);
  check.require(args.new_k.has_value() == args.new_v.has_value(), "new_k and new_v are given together or not at all");
  if (args.new_k) {
    tensor("new_k", *args.new_k, {"B", "n_kv_heads", "D"}, {dtype}, 1);
    tensor("new_v", *args.new_v, {"B", "n_kv_heads", "D"}, {dtype}, 1);
    check.writable("k_cache", args.k_cache).writable("v_cache", args.v_cache);
  }
  const int64_t n_heads = check.size("n_heads"), n_kv_heads = check.size("n_kv_heads");
  check.require(n_kv_heads > 0 && n_heads % n_kv_heads == 0, [&] {
    return "q has " + std::to_string(n_heads) + " heads; expected a multiple of k_cache's " +
           std::to_string(n_kv_heads);
  });
  check.require(args.soft_cap >= 0, [&] {
    return "soft_cap is " + std::to_string(args.soft_cap) + "; expected a number above 0, or 0 for none";
  });
  check.require(check.size("D") % 16 == 0, [&] {
    return "q.head_dim is " + std::to_string(check.size("D")) + "; expected a multiple of 16";
  });

  const auto* rows = args.req_pool_indices.data_as<const int32_t>();
  const auto* kv_indptr = args.kv_indptr.data_as<const int32_t>();
  for (int64_t b = 0; b < check.size("B"); ++b) {
    const int64_t kv_len = int64_t{kv_indptr[b + 1]} - kv_indptr[b];
    if (rows[b] < 0 || rows[b] >= check.size("n_rows")) {
      check.require(false, [&] {
        return "req_pool_indices[" + std::to_string(b) + "] is " + std::to_string(rows[b]) +
               "; req_to_token has " + std::to_string(check.size("n_rows")) + " rows";
      });
    }
    if (kv_len < 0 || kv_len > check.size("max_len")) {
      check.require(false, [&] {
        return "kv_indptr gives request " + std::to_string(b) + " a length of " + std::to_string(kv_len) +
               "; expected 0.." + std::to_string(check.size("max_len"));
      });
    }
  }
}

void write_new_rows(const TensorView& rows, const TensorView& cache, const CpuPagedDecodeArgs& args) {
  const auto* kv_indptr = args.kv_indptr.data_as<const int32_t>();
  const auto* row_indices = args.req_pool_indices.data_as<const int32_t>();
  const int64_t element = static_cast<int64_t>(dtype_size(rows.dtype));
  for (int64_t b = 0; b < rows.size(0); ++b) {
    const int64_t kv_len = int64_t{kv_indptr[b + 1]} - kv_indptr[b];
    if (kv_len == 0) continue;
    const int64_t slot =
        args.req_to_token.data_as<const int32_t>()[row_indices[b] * args.req_to_token.stride(0) + kv_len - 1];
    std::memcpy(cache.data_as<char>() + slot * cache.stride(0) * element,
                rows.data_as<const char>() + b * rows.stride(0) * element,
                static_cast<size_t>(rows.size(1) * rows.size(2) * element));
  }
}

// out[head_dim] of one query head from the partials of its n_spans spans, which lie span_stride floats apart.
void merge_spans(const float* partials, int64_t n_spans, int64_t span_stride, int64_t head_dim, bool is_bf16,
                 void* out) {
  float max = -INFINITY;
  for (int64_t s = 0; s < n_spans; ++s) max = std::max(max, partials[s * span_stride + head_dim]);
  thread_local std::vector<float> sums;
  sums.assign(static_cast<size_t>(head_dim), 0.0f);
  float total = 0;
  for (int64_t s = 0; s < n_spans; ++s) {
    const float* partial = partials + s * span_stride;
    const float weight = std::exp(partial[head_dim] - max);
    total += weight * partial[head_dim + 1];
    for (int64_t d = 0; d < head_dim; ++d) sums[static_cast<size_t>(d)] += weight * partial[d];
  }
  const float scale = n_spans == 0 ? 0.0f : 1.0f / total;
  for (int64_t d = 0; d < head_dim; ++d) {
    const float value = sums[static_cast<size_t>(d)] * scale;
    if (is_bf16) {
      static_cast<uint16_t*>(out)[d] = bf16_from_float(value);
    } else {
      static_cast<float*>(out)[d] = value;
    }
  }
}

}  // namespace

void cpu_paged_decode(const CpuPagedDecodeArgs& args, CpuIsa isa, ThreadPool& pool) {
  check_arguments(args);
  if (args.new_k) {
    write_new_rows(*args.new_k, args.k_cache, args);
    write_new_rows(*args.new_v, args.v_cache, args);
  }
  const int64_t batch = args.q.size(0), n_heads = args.q.size(1), head_dim = args.q.size(2);
  const int64_t n_kv_heads = args.k_cache.size(1);
  const bool is_bf16 = args.q.dtype == DType::kBFloat16;
  const TypedKernels& kernels = is_bf16 ? cpu_kernels(isa).bf16 : cpu_kernels(isa).float32;
  PagedDecodeTask task{};
  task.q = args.q.data;
  task.k_cache = args.k_cache.data;
  task.v_cache = args.v_cache.data;
  task.req_to_token = args.req_to_token.data_as<const int32_t>();
  task.req_pool_indices = args.req_pool_indices.data_as<const int32_t>();
  task.q_stride = args.q.stride(0);
  task.k_stride = args.k_cache.stride(0);
  task.v_stride = args.v_cache.stride(0);
  task.table_stride = args.req_to_token.stride(0);
  task.group = n_heads / n_kv_heads;
  task.head_dim = head_dim;
  task.sm_scale = args.sm_scale;
  task.soft_cap = args.soft_cap;

  // Spans of a request lie together, and of a span all KV heads: those share the rows of k_cache.
  // One set of buffers per calling thread, so that a step of decoding allocates nothing.
  thread_local std::vector<KvSpan> spans;
  thread_local std::vector<int64_t> first_span;  // [batch + 1]
  thread_local std::vector<float> partials;      // [spans][group][partial_size]
  spans.clear();
  first_span.assign(1, 0);
  const auto* kv_indptr = args.kv_indptr.data_as<const int32_t>();
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t kv_len = int64_t{kv_indptr[b + 1]} - kv_indptr[b];
    for (int64_t begin = 0; begin < kv_len; begin += kCpuKvSpan) {
      const int64_t end = std::min(begin + kCpuKvSpan, kv_len);
      for (int64_t kv_head = 0; kv_head < n_kv_heads; ++kv_head) spans.push_back({b, kv_head, begin, end});
    }
    first_span.push_back(static_cast<int64_t>(spans.size()));
  }
  const auto n_spans = static_cast<int64_t>(spans.size());
  const int64_t span_floats = task.group * partial_size(head_dim);
  const auto n_floats = static_cast<size_t>(n_spans * span_floats);
  if (partials.size() < n_floats) partials.resize(n_floats);

  constexpr int64_t kMinChunkWork = 50'000;  // multiply-adds: below that a chunk is not worth handing out
  const auto chunk_limit = [&](int64_t work) {
    return std::clamp<int64_t>(work / kMinChunkWork, 1, 4 * pool.n_threads());
  };
  const int64_t n_keys = batch == 0 ? 0 : kv_indptr[batch] - kv_indptr[0];
  const KvSpan* span_list = spans.data();  // the worker threads have vectors of their own under these names
  float* partial_list = partials.data();
  pool.run(n_spans, chunk_limit(2 * n_keys * n_heads * head_dim), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) kernels.attend_span(task, span_list[i], partial_list + i * span_floats);
  });
  const int64_t* first_list = first_span.data();
  pool.run(batch * n_heads, chunk_limit(n_spans * task.group * head_dim), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / n_heads, head = i % n_heads;
      const int64_t first = first_list[b] + head / task.group;
      merge_spans(partial_list + first * span_floats + head % task.group * partial_size(head_dim),
                  (first_list[b + 1] - first_list[b]) / n_kv_heads, n_kv_heads * span_floats, head_dim, is_bf16,
                  args.out.data_as<char>() + i * head_dim * static_cast<int64_t>(dtype_size(args.out.dtype)));
    }
  });
}

}  // namespace astrai
