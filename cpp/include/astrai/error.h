// Exceptions of the AstrAI core. Bad arguments throw std::invalid_argument; everything else that can go wrong
// throws Error or a class derived from it. The core never prints, exits or returns an error code.
#pragma once

#include <stdexcept>

namespace astrai {

// A broken invariant or a failure at run time. RuntimeError in Python.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

// No kernel was built, or none can run here, for what was asked. KernelUnavailableError in Python.
class KernelUnavailableError : public Error {
 public:
  using Error::Error;
  ~KernelUnavailableError() override;
};

}  // namespace astrai
