// Programmatic dependent launch (CUDA C++ Programming Guide, section of that name): a kernel may start while the one
// before it on the stream still runs, so that its launch is hidden. On architectures before 9.0 all of this is an
// ordinary launch.
//
// The rule that makes it safe: every thread of a kernel launched here calls wait_for_previous_kernel() before it touches
// memory that another kernel reads or writes; a thread that touches none may end without, where another one waits. Then a
// kernel's end implies the end of all kernels before it, however early any of them let the next one start.
//
// Memory may be touched before the wait where that cannot matter: weights, which no kernel writes, and what a kernel wrote
// that lets the next one start only behind its last write (a __threadfence(), a __syncthreads(), then the call). The kernel
// after it may read that at once; so may the ones behind, since each starts behind the start of every block of the one before.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "common/launch.cuh"

namespace astrai {

// Returns when the kernels before this one have ended and their writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Once every thread block has said this or has ended, the next kernel's blocks may take free multiprocessors.
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// True when the code that the current device would run has the wait in it: a kernel of an older architecture that is
// compiled for this device from PTX has not, whatever the device can do.
template <auto kKernel>
bool has_wait_instruction(const char* op) {
  static std::array<std::atomic<int>, 64> known{};  // by device: 0 not asked yet, else 1 + the answer
  int device_idx = 0;
  check_cuda(cudaGetDevice(&device_idx), op);
  const auto place = static_cast<size_t>(device_idx);
  if (place >= known.size()) return false;
  int answer = known[place].load(std::memory_order_relaxed);
  if (answer == 0) {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, kKernel), op);
    answer = attributes.ptxVersion >= 90 ? 2 : 1;
    known[place].store(answer, std::memory_order_relaxed);
  }
  return answer == 2;
}

// Launches kKernel on a device that is current; it must keep the rule above.
template <auto kKernel, typename... Args>
void launch_overlapped(const char* op, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                       const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = has_wait_instruction<kKernel>(op) ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kKernel, args...), op);
}

}  // namespace astrai
