// PinnedBuffer by the CUDA runtime. Contract: <astrai/pinned_buffer.h>.
#include "astrai/pinned_buffer.h"

#include <stdexcept>

#include "common/launch.cuh"

namespace astrai {

PinnedBuffer::PinnedBuffer(int64_t n_bytes, int device_idx) : n_bytes_(n_bytes) {
  if (n_bytes < 0) {
    throw std::invalid_argument("PinnedBuffer: n_bytes is " + std::to_string(n_bytes) + "; at least 0 is needed");
  }
  if (n_bytes == 0) return;
  const DeviceGuard guard(device_idx, "PinnedBuffer");
  void* bytes = nullptr;
  check_cuda(cudaHostAlloc(&bytes, static_cast<size_t>(n_bytes), cudaHostAllocPortable), "PinnedBuffer");
  bytes_ = static_cast<std::byte*>(bytes);
}

PinnedBuffer::~PinnedBuffer() {
  // Of a lost context the memory goes with the process; the error is not the next launch's.
  if (bytes_ != nullptr && cudaFreeHost(bytes_) != cudaSuccess) cudaGetLastError();
}

}  // namespace astrai
