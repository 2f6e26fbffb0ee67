// The stream argument of the GPU operations.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor_caster.h"

namespace astrai::bindings {

using StreamHandle = std::optional<uintptr_t>;  // a cudaStream_t as an int; none means x's framework's current one

inline void* stream_or_current(const StreamHandle& stream, const StreamedTensor& x) {
  return stream ? reinterpret_cast<void*>(*stream) : x.stream;
}

}  // namespace astrai::bindings
