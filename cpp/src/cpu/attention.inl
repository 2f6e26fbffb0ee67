// Attention of one query token over a span of KV, included once per instruction set after vec.inl. Scores first, then
// the sums over v; each query head of the group goes over the span by itself, which the first-level cache holds.

// scores[t] = q . k[slots[t]] * scale for n_tokens of them, several at a time to hide the latency of the sums.
template <typename T>
ASTRAI_TARGET void span_scores(const T* q, const T* k, int64_t k_stride, const int32_t* slots, int64_t n_tokens,
                               int64_t head_dim, float scale, float* scores) {
  constexpr int kTogether = 4;
  int64_t t = 0;
  for (; t + kTogether <= n_tokens; t += kTogether) {
    Vec sums[kTogether] = {};
    const T* rows[kTogether];
    for (int i = 0; i < kTogether; ++i) rows[i] = k + slots[t + i] * k_stride;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const Vec q_part = load(q + d);
      for (int i = 0; i < kTogether; ++i) sums[i] = fused_multiply_add(q_part, load(rows[i] + d), sums[i]);
    }
    for (int i = 0; i < kTogether; ++i) scores[t + i] = sum_of_lanes(sums[i]) * scale;
  }
  for (; t < n_tokens; ++t) {
    Vec sum = {};
    const T* row = k + slots[t] * k_stride;
    for (int64_t d = 0; d < head_dim; d += kLanes) sum = fused_multiply_add(load(q + d), load(row + d), sum);
    scores[t] = sum_of_lanes(sum) * scale;
  }
}

// sums[d] = sum over t of weights[t] * v[slots[t]][d], for kVecs vectors of d.
template <typename T, int kVecs>
ASTRAI_TARGET void span_sums(const T* v, int64_t v_stride, const int32_t* slots, const float* weights,
                             int64_t n_tokens, float* sums) {
  Vec parts[kVecs] = {};
  for (int64_t t = 0; t < n_tokens; ++t) {
    const Vec weight = broadcast(weights[t]);
    const T* row = v + slots[t] * v_stride;
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) parts[i] = fused_multiply_add(weight, load(row + i * kLanes), parts[i]);
  }
  for (int i = 0; i < kVecs; ++i) store(sums + i * kLanes, parts[i]);
}

template <typename T>
ASTRAI_TARGET void attend_span(const PagedDecodeTask& task, const KvSpan& span, float* partials) {
  const int64_t n_tokens = span.end - span.begin;
  const int64_t head_offset = span.kv_head * task.head_dim;
  const int32_t* slots =
      task.req_to_token + task.req_pool_indices[span.request] * task.table_stride + span.begin;
  const T* k = static_cast<const T*>(task.k_cache) + head_offset;
  const T* v = static_cast<const T*>(task.v_cache) + head_offset;
  const T* q = static_cast<const T*>(task.q) + span.request * task.q_stride + head_offset * task.group;

  float weights[kCpuKvSpan];
  const int64_t n_padded = (n_tokens + kLanes - 1) / kLanes * kLanes;
  for (int64_t head = 0; head < task.group; ++head) {
    float* partial = partials + head * partial_size(task.head_dim);
    span_scores(q + head * task.head_dim, k, task.k_stride, slots, n_tokens, task.head_dim, task.sm_scale, weights);
    // Padding repeats a score, so that it does not change the maximum; its weight is left out of the sum.
    for (int64_t t = n_tokens; t < n_padded; ++t) weights[t] = weights[0];
    if (task.soft_cap > 0) {
      for (int64_t t = 0; t < n_padded; t += kLanes) {
        // tanh(x) is 1 - 2 / (exp(2x) + 1).
        const Vec e = exp(load(weights + t) * (2.0f / task.soft_cap));
        store(weights + t, task.soft_cap - 2.0f * task.soft_cap / (e + 1.0f));
      }
    }
    Vec largest = load(weights);
    for (int64_t t = kLanes; t < n_padded; t += kLanes) {
      const Vec part = load(weights + t);
      largest = part > largest ? part : largest;
    }
    const float max = max_of_lanes(largest);
    for (int64_t t = 0; t < n_padded; t += kLanes) store(weights + t, exp(load(weights + t) - max));
    for (int64_t t = n_tokens; t < n_padded; ++t) weights[t] = 0;
    Vec total = {};
    for (int64_t t = 0; t < n_padded; t += kLanes) total = total + load(weights + t);
    partial[task.head_dim] = max;
    partial[task.head_dim + 1] = sum_of_lanes(total);

    int64_t d = 0;
    for (; d + 8 * kLanes <= task.head_dim; d += 8 * kLanes) {
      span_sums<T, 8>(v + d, task.v_stride, slots, weights, n_tokens, partial + d);
    }
    for (; d < task.head_dim; d += kLanes) {
      span_sums<T, 1>(v + d, task.v_stride, slots, weights, n_tokens, partial + d);
    }
  }
}
