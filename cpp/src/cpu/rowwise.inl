// Norm and activation of whole rows, included once per instruction set after vec.inl and attention.inl.

// A vector of a row with n elements left: whole, or the last n of them.
template <typename T>
ASTRAI_INLINE Vec load_upto(const T* p, int64_t n) {
  return n >= kLanes ? load(p) : load_part(p, n);
}
template <typename T>
ASTRAI_INLINE void store_upto(T* p, Vec v, int64_t n) {
  if (n >= kLanes) {
    store(p, v);
  } else {
    store_part(p, v, n);
  }
}

template <typename T>
ASTRAI_TARGET void rms_norm_rows(const RmsNormTask& task, int64_t row_begin, int64_t row_end) {
  const T* weight = static_cast<const T*>(task.weight);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const T* x = static_cast<const T*>(task.x) + row * task.n;
    T* out = static_cast<T*>(task.out) + row * task.n;
    if (task.residual != nullptr) {
      T* residual = static_cast<T*>(task.residual) + row * task.n;
      for (int64_t i = 0; i < task.n; i += kLanes) {
        const int64_t left = task.n - i;
        store_upto(residual + i, load_upto(residual + i, left) + load_upto(x + i, left), left);
      }
      x = residual;
    }
    Vec squares = {};
    for (int64_t i = 0; i < task.n; i += kLanes) {
      const Vec part = load_upto(x + i, task.n - i);
      squares = fused_multiply_add(part, part, squares);
    }
    const float mean = sum_of_lanes(squares) / static_cast<float>(task.n);
    const float scale = 1.0f / std::sqrt(mean + task.eps);
    for (int64_t i = 0; i < task.n; i += kLanes) {
      const int64_t left = task.n - i;
      store_upto(out + i, load_upto(x + i, left) * scale * load_upto(weight + i, left), left);
    }
  }
}

struct Silu {
  ASTRAI_INLINE static Vec apply(Vec x) { return x / (exp(-x) + 1.0f); }
};

// x (1 + tanh(u)) / 2 is x / (1 + exp(-2u)), with u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  ASTRAI_INLINE static Vec apply(Vec x) {
    const Vec cubic = fused_multiply_add(x * x, broadcast(0.044715f), broadcast(1.0f));
    return x / (exp(x * cubic * -1.5957691216f) + 1.0f);
  }
};

template <typename T, typename Act>
ASTRAI_TARGET void gated_act_rows(const GatedActTask& task, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const T* gates = static_cast<const T*>(task.gate_up) + row * 2 * task.n;
    const T* ups = gates + task.n;
    T* out = static_cast<T*>(task.out) + row * task.n;
    for (int64_t i = 0; i < task.n; i += kLanes) {
      const int64_t left = task.n - i;
      store_upto(out + i, Act::apply(load_upto(gates + i, left)) * load_upto(ups + i, left), left);
    }
  }
}

template <typename T>
constexpr TypedKernels kTypedKernels = {attend_span<T>, rms_norm_rows<T>, gated_act_rows<T, Silu>,
                                        gated_act_rows<T, GeluTanh>};
