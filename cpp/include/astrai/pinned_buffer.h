// Host memory that GPUs read and write by themselves, so that copies run while the host goes on. Zero-sized ones hold
// nothing. The definition is in astrai::cuda; a build without CUDA has one that throws.
#pragma once

#include <cstddef>
#include <cstdint>

namespace astrai {

class PinnedBuffer {
 public:
  // n_bytes >= 0, else std::invalid_argument. For all GPUs of the process; device_idx says whose context makes it.
  // KernelUnavailableError without CUDA, Error where the driver refuses.
  PinnedBuffer(int64_t n_bytes, int device_idx);
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  // Never throws, also after an error of a kernel that has cost the process its context: that is why it exists.
  ~PinnedBuffer();

  std::byte* bytes() const { return bytes_; }  // [n_bytes()], uninitialised; null when empty
  int64_t n_bytes() const { return n_bytes_; }

 private:
  std::byte* bytes_ = nullptr;
  int64_t n_bytes_;
};

}  // namespace astrai
