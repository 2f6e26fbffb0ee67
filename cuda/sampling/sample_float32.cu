// sample() for float32 logits.
#include "sampling/sample_launch.cuh"

namespace astrai {
template void launch_sample<float>(const SampleArgs&, cudaStream_t);
}  // namespace astrai
