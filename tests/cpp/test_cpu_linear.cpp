// Every instruction set that this machine has, over raw memory; the same properties over torch tensors, and the
// messages, are in tests/python/ops/test_cpu_ops.py.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "astrai/cpu_linear.h"
#include "astrai/error.h"
#include "astrai/thread_pool.h"

using namespace astrai;

namespace {

TensorView view(void* memory, DType dtype, std::vector<int64_t> shape) {
  TensorView v;
  v.data = memory;
  v.dtype = dtype;
  v.ndim = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    v.shape[i] = shape[i];
    v.strides[i] = stride;
  }
  return v;
}

// bfloat16 by truncation: any bits do for an input.
std::vector<uint16_t> to_bf16(std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t word;
    std::memcpy(&word, &values[i], 4);
    word &= 0xffff0000u;
    std::memcpy(&values[i], &word, 4);
    bits[i] = static_cast<uint16_t>(word >> 16);
  }
  return bits;
}

struct Problem {
  int64_t m, n, k;
  std::vector<float> x, weight, bias;

  Problem(int64_t m, int64_t n, int64_t k, unsigned seed) : m(m), n(n), k(k) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (auto [values, size] : {std::pair(&x, m * k), {&weight, n * k}, {&bias, n}}) {
      values->resize(static_cast<size_t>(size));
      for (float& value : *values) value = normal(generator);
    }
  }

  double exact(int64_t row, int64_t col) const {
    double sum = static_cast<double>(bias[static_cast<size_t>(col)]);
    for (int64_t i = 0; i < k; ++i) {
      sum += static_cast<double>(x[static_cast<size_t>(row * k + i)]) *
             static_cast<double>(weight[static_cast<size_t>(col * k + i)]);
    }
    return sum;
  }
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kDepths[] = {1, 7, 8, 31, 33, 576, 1001};

}  // namespace

TEST_CASE("cpu_linear float32 agrees with float64, for every number of rows and odd sizes") {
  ThreadPool pool(2);
  for (const CpuIsa isa : supported_cpu_isas()) {
    for (int64_t m = 1; m <= 17; ++m) {
      for (const int64_t k : kDepths) {
        CAPTURE(cpu_isa_name(isa));
        CAPTURE(m);
        CAPTURE(k);
        Problem p(m, 29, k, static_cast<unsigned>(m * 10'000 + k));
        std::vector<float> out(static_cast<size_t>(m * p.n), kNan);
        cpu_linear(view(p.x.data(), DType::kFloat32, {m, k}), view(p.weight.data(), DType::kFloat32, {p.n, k}),
                   view(out.data(), DType::kFloat32, {m, p.n}), view(p.bias.data(), DType::kFloat32, {p.n}), isa, pool);
        double worst = 0;
        for (int64_t i = 0; i < m * p.n; ++i) {
          const double error = std::abs(static_cast<double>(out[static_cast<size_t>(i)]) - p.exact(i / p.n, i % p.n));
          worst = error <= worst ? worst : error;  // NaN stays
        }
        CHECK(worst <= 2e-6 * std::sqrt(static_cast<double>(k)) * 4);
      }
    }
  }
}

TEST_CASE("cpu_linear bfloat16 weights agree with float64 and a row does not depend on its batch") {
  ThreadPool pool(3);
  for (const CpuIsa isa : supported_cpu_isas()) {
    for (const int64_t k : kDepths) {
      CAPTURE(cpu_isa_name(isa));
      CAPTURE(k);
      Problem p(17, 53, k, static_cast<unsigned>(k));
      std::vector<uint16_t> x = to_bf16(p.x), weight = to_bf16(p.weight), bias = to_bf16(p.bias);
      const TensorView w = view(weight.data(), DType::kBFloat16, {p.n, k});
      const TensorView b = view(bias.data(), DType::kBFloat16, {p.n});
      std::vector<float> together(static_cast<size_t>(p.m * p.n), kNan), alone = together;
      cpu_linear(view(x.data(), DType::kBFloat16, {p.m, k}), w, view(together.data(), DType::kFloat32, {p.m, p.n}), b,
                 isa, pool);
      double worst = 0;
      for (int64_t i = 0; i < p.m * p.n; ++i) {
        const double error =
            std::abs(static_cast<double>(together[static_cast<size_t>(i)]) - p.exact(i / p.n, i % p.n));
        worst = error <= worst ? worst : error;
      }
      CHECK(worst <= 2e-6 * std::sqrt(static_cast<double>(k)) * 4);
      for (int64_t row = 0; row < p.m; ++row) {
        cpu_linear(view(x.data() + row * k, DType::kBFloat16, {1, k}), w,
                   view(alone.data() + row * p.n, DType::kFloat32, {1, p.n}), b, isa, pool);
      }
      CHECK(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("cpu_linear writes nothing outside out and reads nothing outside its inputs") {
  ThreadPool pool(1);
  for (const CpuIsa isa : supported_cpu_isas()) {
    const int64_t m = 5, n = 13, k = 37;
    Problem p(m, n, k, 3);
    const size_t guard = 64;
    const auto guarded = [&](const std::vector<float>& values) {
      std::vector<float> memory(values.size() + 2 * guard, kNan);
      std::copy(values.begin(), values.end(), memory.begin() + guard);
      return memory;
    };
    std::vector<float> x = guarded(p.x), weight = guarded(p.weight), bias = guarded(p.bias);
    std::vector<float> out(static_cast<size_t>(m * n) + 2 * guard, 7.5f);
    cpu_linear(view(x.data() + guard, DType::kFloat32, {m, k}), view(weight.data() + guard, DType::kFloat32, {n, k}),
               view(out.data() + guard, DType::kFloat32, {m, n}), view(bias.data() + guard, DType::kFloat32, {n}), isa,
               pool);
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_guard = i < guard || i >= out.size() - guard;
      CHECK((is_guard ? out[i] == 7.5f : std::isfinite(out[i])));
    }
  }
}

TEST_CASE("resolve_cpu_isa picks the best set by default and refuses what is not there") {
  CHECK(resolve_cpu_isa("") == supported_cpu_isas().back());
  CHECK(resolve_cpu_isa("portable") == CpuIsa::kPortable);
  CHECK_THROWS_AS(resolve_cpu_isa("sse9"), std::invalid_argument);
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    bool is_supported = false;
    for (const CpuIsa supported : supported_cpu_isas()) is_supported = is_supported || supported == isa;
    if (is_supported) {
      CHECK(resolve_cpu_isa(cpu_isa_name(isa)) == isa);
    } else {
      CHECK_THROWS_AS(resolve_cpu_isa(cpu_isa_name(isa)), KernelUnavailableError);
    }
  }
}
