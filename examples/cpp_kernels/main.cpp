// store_kv and rms_norm on raw device pointers and a stream of the caller's, from a host compiler: no nvcc, no Python.
// Writes rows into slots of a KV cache and normalises others, and checks what comes back. Without a GPU it says so and
// exits 0: that it links and starts is what can be shown there.
#include <astrai/fused_ops.h>
#include <astrai/ops.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

// Device memory that is given back at the end.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t n_bytes) { check(cudaMalloc(&memory_, n_bytes), "cudaMalloc"); }
  ~DeviceBuffer() { cudaFree(memory_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

template <typename T>
void upload(const DeviceBuffer& to, const std::vector<T>& from, cudaStream_t stream) {
  check(cudaMemcpyAsync(to.get(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
}

template <typename T>
std::vector<T> download(const DeviceBuffer& from, size_t n, cudaStream_t stream) {
  std::vector<T> values(n);
  check(cudaMemcpyAsync(values.data(), from.get(), n * sizeof(T), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return values;
}

// bfloat16 is the upper half of a float; the values below need no rounding.
uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

float to_float(uint16_t bfloat16) {
  const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

astrai::TensorView on_gpu(const DeviceBuffer& buffer, astrai::DType dtype, std::initializer_list<int64_t> shape) {
  return astrai::row_major(buffer.get(), dtype, shape, astrai::kCuda);
}

// Two rows of two heads go to slots 3 and 0 of a cache of four.
bool stores_rows(cudaStream_t stream) {
  constexpr int64_t kHeads = 2, kHeadDim = 64, kRow = kHeads * kHeadDim;
  std::vector<uint16_t> rows(2 * kRow);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = to_bfloat16(static_cast<float>(i));
  const std::vector<int32_t> slots{3, 0};
  const DeviceBuffer k(rows.size() * 2), k_cache(4 * kRow * 2), v_cache(4 * kRow * 2), out_cache_loc(8);
  upload(k, rows, stream);
  upload(out_cache_loc, slots, stream);

  const astrai::TensorView new_rows = on_gpu(k, astrai::DType::kBFloat16, {2, kHeads, kHeadDim});
  astrai::store_kv(new_rows, new_rows, on_gpu(k_cache, astrai::DType::kBFloat16, {4, kHeads, kHeadDim}),
                   on_gpu(v_cache, astrai::DType::kBFloat16, {4, kHeads, kHeadDim}),
                   on_gpu(out_cache_loc, astrai::DType::kInt32, {2}), stream);

  const auto cache = download<uint16_t>(k_cache, 4 * kRow, stream);
  return std::memcmp(&cache[3 * kRow], &rows[0], kRow * 2) == 0 && std::memcmp(&cache[0], &rows[kRow], kRow * 2) == 0;
}

// A row of equal values has a root mean square of that value: it becomes the weight.
bool normalises_rows(cudaStream_t stream) {
  constexpr int64_t kRows = 3, kLen = 256;
  const DeviceBuffer x(kRows * kLen * 2), weight(kLen * 2), out(kRows * kLen * 2);
  upload(x, std::vector<uint16_t>(kRows * kLen, to_bfloat16(4.0f)), stream);
  upload(weight, std::vector<uint16_t>(kLen, to_bfloat16(0.5f)), stream);

  astrai::rms_norm(on_gpu(x, astrai::DType::kBFloat16, {kRows, kLen}), on_gpu(weight, astrai::DType::kBFloat16, {kLen}),
                   on_gpu(out, astrai::DType::kBFloat16, {kRows, kLen}), 1e-6f, stream);

  for (const uint16_t value : download<uint16_t>(out, kRows * kLen, stream)) {
    if (std::abs(to_float(value) - 0.5f) > 1e-2f) return false;
  }
  return true;
}

}  // namespace

int main() {
  std::string archs;
  for (const std::string& arch : astrai::cuda_archs()) archs += " " + arch;
  int n_devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&n_devices);
  if (status != cudaSuccess || n_devices == 0) {
    std::printf("linked with kernels for architectures%s; no GPU here to run them on (%s)\n", archs.c_str(),
                status == cudaSuccess ? "no device" : cudaGetErrorString(status));
    return 0;
  }
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  const bool stored = stores_rows(stream), normalised = normalises_rows(stream);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::printf("architectures%s: store_kv %s, rms_norm %s\n", archs.c_str(), stored ? "right" : "WRONG",
              normalised ? "right" : "WRONG");
  return stored && normalised ? 0 : 1;
}
