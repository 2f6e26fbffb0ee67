// What an operation says in a build without CUDA. ASTRAI_CUDA_REASON comes from cmake/AstraiCuda.cmake.
#pragma once

#include <string>

#include "astrai/error.h"

namespace astrai {

[[noreturn]] inline void throw_without_cuda(const std::string& op) {
  throw KernelUnavailableError(op + ": this build has no CUDA kernels (" ASTRAI_CUDA_REASON
                                    "). Rebuild with ASTRAI_WITH_CUDA=ON or run on the CPU.");
}

}  // namespace astrai
