// The linear kernel, included once per instruction set after vec.inl.
//
// One accumulator vector per (row of x, row of weight) runs over k in steps of the format, is then summed over its
// lanes, and the bias is added: the same operations in the same order for a row whatever tile it is computed in.
// Tiles of kTileM x kTileN such accumulators stay in registers. The loops go over kLinearBandRows rows of weight, and
// inside over the rows of x, so that weights come from memory once and from the first-level cache after that. The first
// rows of x also prefetch the next band: the hardware's prefetchers lose the trail at every page and at every tile.

// float32 weights; x float32 as it is.
struct Float32Format {
  using Weight = float;
  using X = float;
  static constexpr int kStep = kLanes;
  using Loaded = Vec;
  ASTRAI_INLINE static Loaded load_weight(const float* w) { return load(w); }
  ASTRAI_INLINE static Vec multiply_add(Loaded w, const float* x, Vec sum) {
    return fused_multiply_add(w, load(x), sum);
  }
};

// bfloat16 weights; x as float32, its steps sorted into even and odd places to meet load_pair().
struct BFloat16Format {
  using Weight = uint16_t;
  using X = float;
  static constexpr int kStep = 2 * kLanes;
  using Loaded = VecPair;
  ASTRAI_INLINE static Loaded load_weight(const uint16_t* w) { return load_pair(w); }
  ASTRAI_INLINE static Vec multiply_add(Loaded w, const float* x, Vec sum) {
    return fused_multiply_add(w.odd, load(x + kLanes), fused_multiply_add(w.even, load(x), sum));
  }
};

ASTRAI_TARGET inline void store_output(const LinearTask& task, int64_t m, int64_t n, float value) {
  if (task.bias != nullptr) {
    value += task.is_bias_bf16 ? float_from_bf16(static_cast<const uint16_t*>(task.bias)[n])
                               : static_cast<const float*>(task.bias)[n];
  }
  const int64_t at = m * task.n + n;
  if (task.is_out_bf16) {
    static_cast<uint16_t*>(task.out)[at] = bf16_from_float(value);
  } else {
    static_cast<float*>(task.out)[at] = value;
  }
}

// out[m..m+kTileM, n..n+kTileN]
template <typename Format, int kTileM, int kTileN, bool kPrefetch>
ASTRAI_TARGET void linear_tile(const LinearTask& task, int64_t m, int64_t n) {
  const auto* x = static_cast<const typename Format::X*>(task.x) + m * task.x_stride;
  const auto* weight = static_cast<const typename Format::Weight*>(task.weight) + n * task.k;
  const int64_t k_whole = task.k - task.k % Format::kStep;
  Vec sums[kTileM][kTileN] = {};
  for (int64_t k = 0; k < k_whole; k += Format::kStep) {
#pragma GCC unroll 16
    for (int j = 0; j < kTileN; ++j) {
      const auto* w_place = weight + j * task.k + k;
      if (kPrefetch) __builtin_prefetch(w_place + kLinearBandRows * task.k);
      const auto w = Format::load_weight(w_place);
#pragma GCC unroll 16
      for (int i = 0; i < kTileM; ++i) {
        sums[i][j] = Format::multiply_add(w, x + i * task.x_stride + k, sums[i][j]);
      }
    }
  }
  if (k_whole < task.k) {  // the rest of each row, padded with zeros as x is
    for (int j = 0; j < kTileN; ++j) {
      typename Format::Weight rest[Format::kStep] = {};
      std::memcpy(rest, weight + j * task.k + k_whole, sizeof(rest[0]) * static_cast<size_t>(task.k - k_whole));
      const auto w = Format::load_weight(rest);
      for (int i = 0; i < kTileM; ++i) {
        sums[i][j] = Format::multiply_add(w, x + i * task.x_stride + k_whole, sums[i][j]);
      }
    }
  }
  for (int i = 0; i < kTileM; ++i) {
    for (int j = 0; j < kTileN; ++j) store_output(task, m + i, n + j, sum_of_lanes(sums[i][j]));
  }
}

template <typename Format, int kTileM, int kTileN, bool kPrefetch>
ASTRAI_TARGET void linear_band(const LinearTask& task, int64_t m, int64_t n_begin, int64_t n_end) {
  int64_t n = n_begin;
  for (; n + kTileN <= n_end; n += kTileN) linear_tile<Format, kTileM, kTileN, kPrefetch>(task, m, n);
  for (; n < n_end; ++n) linear_tile<Format, kTileM, 1, kPrefetch>(task, m, n);
}

// Rows m.. of out, at most 4 at a time; says how many. Tiles have at most 12 accumulators: with a weight and a part of
// x they fit the 16 registers of SSE2 and AVX2.
template <typename Format, bool kPrefetch>
ASTRAI_TARGET int64_t linear_rows(const LinearTask& task, int64_t m, int64_t n_begin, int64_t n_end) {
  switch (task.m - m) {
    case 1:
      linear_band<Format, 1, 6, kPrefetch>(task, m, n_begin, n_end);
      return 1;
    case 2:
      linear_band<Format, 2, 6, kPrefetch>(task, m, n_begin, n_end);
      return 2;
    case 3:
      linear_band<Format, 3, 4, kPrefetch>(task, m, n_begin, n_end);
      return 3;
    default:
      linear_band<Format, 4, 3, kPrefetch>(task, m, n_begin, n_end);
      return 4;
  }
}

template <typename Format>
ASTRAI_TARGET void linear_columns(const LinearTask& task, int64_t n_begin, int64_t n_end) {
  for (int64_t band = n_begin; band < n_end; band += kLinearBandRows) {
    const int64_t band_end = band + kLinearBandRows < n_end ? band + kLinearBandRows : n_end;
    int64_t m = linear_rows<Format, true>(task, 0, band, band_end);
    while (m < task.m) m += linear_rows<Format, false>(task, m, band, band_end);
  }
}

// x as it is, rows padded with zeros.
template <typename T>
ASTRAI_TARGET void pack_in_order(const void* x, int64_t m, int64_t k, int64_t stride, T* packed) {
  for (int64_t i = 0; i < m; ++i) {
    T* row = packed + i * stride;
    std::memcpy(row, static_cast<const T*>(x) + i * k, sizeof(T) * static_cast<size_t>(k));
    for (int64_t j = k; j < stride; ++j) row[j] = 0;
  }
}

ASTRAI_TARGET inline void pack_float32(const void* x, bool, int64_t m, int64_t k, int64_t stride, void* packed) {
  pack_in_order(x, m, k, stride, static_cast<float*>(packed));
}

// x as float32, each step of 2 * kLanes as its even places and then its odd places.
ASTRAI_TARGET inline void pack_even_odd(const void* x, bool is_x_bf16, int64_t m, int64_t k, int64_t stride,
                                        void* packed) {
  constexpr int kStep = 2 * kLanes;
  for (int64_t i = 0; i < m; ++i) {
    const auto* wide = static_cast<const float*>(x) + i * k;        // the row, if it is float
    const auto* narrow = static_cast<const uint16_t*>(x) + i * k;   // the row, if it is bfloat16
    float* row = static_cast<float*>(packed) + i * stride;
    int64_t step = 0;
    for (; is_x_bf16 && step + kStep <= k; step += kStep) {
      const VecPair pair = load_pair(narrow + step);
      store(row + step, pair.even);
      store(row + step + kLanes, pair.odd);
    }
    for (; step < stride; step += kStep) {
      for (int j = 0; j < kStep; ++j) {
        const int64_t at = step + j;
        const float value = at >= k ? 0.0f : is_x_bf16 ? float_from_bf16(narrow[at]) : wide[at];
        row[step + (j % 2) * kLanes + j / 2] = value;
      }
    }
  }
}

constexpr LinearKernel kLinearFloat32 = {Float32Format::kStep, XLayout::kFloat32, pack_float32,
                                         linear_columns<Float32Format>};
constexpr LinearKernel kLinearBFloat16 = {BFloat16Format::kStep, XLayout::kFloat32EvenOdd, pack_even_odd,
                                          linear_columns<BFloat16Format>};
