// What every launcher needs: the device of its tensors made current while it runs, and errors as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "astrai/error.h"

namespace astrai {

inline void check_cuda(cudaError_t status, const char* op) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is told here: the next launch is not to find it again
  throw Error(std::string(op) + ": " + cudaGetErrorString(status));
}

// Makes a device current and gives the caller's one back.
class DeviceGuard {
 public:
  DeviceGuard(int device_idx, const char* op) {
    check_cuda(cudaGetDevice(&previous_), op);
    if (previous_ == device_idx) {
      previous_ = -1;
    } else {
      check_cuda(cudaSetDevice(device_idx), op);
    }
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (previous_ >= 0) cudaSetDevice(previous_);
  }

 private:
  int previous_ = -1;  // -1 when nothing has to be given back
};

}  // namespace astrai
