// PinnedBuffer of a build without CUDA, which has none to give.
#include "astrai/pinned_buffer.h"
#include "throw_unavailable.h"

namespace astrai {

PinnedBuffer::PinnedBuffer(int64_t n_bytes, int) : n_bytes_(n_bytes) { throw_without_cuda("PinnedBuffer"); }

PinnedBuffer::~PinnedBuffer() = default;

}  // namespace astrai
