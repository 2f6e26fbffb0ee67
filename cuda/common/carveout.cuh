// How a multiprocessor's memory is divided between L1 cache and shared memory while a kernel runs.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "common/launch.cuh"

namespace astrai {

// Gives all of it to shared memory, for kernels that run between others with much of it. A multiprocessor changes the
// division only when it is idle: one that came to a kernel of little shared memory first would have room for fewer thread
// blocks of the next, seen as one block that began when the others had ended. Once for each device, which is current.
template <auto kKernel>
void prefer_shared_memory(const char* op) {
  static std::array<std::atomic<bool>, 64> is_done{};
  int device_idx = 0;
  check_cuda(cudaGetDevice(&device_idx), op);
  std::atomic<bool>& is_done_here = is_done[static_cast<size_t>(device_idx) % is_done.size()];
  if (is_done_here.load(std::memory_order_relaxed)) return;
  check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
             op);
  is_done_here.store(true, std::memory_order_relaxed);
}

}  // namespace astrai
