// sample() for float16 logits.
#include "sampling/sample_launch.cuh"

namespace astrai {
template void launch_sample<__half>(const SampleArgs&, cudaStream_t);
}  // namespace astrai
