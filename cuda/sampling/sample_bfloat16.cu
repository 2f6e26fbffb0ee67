// sample() for bfloat16 logits.
#include "sampling/sample_launch.cuh"

namespace astrai {
template void launch_sample<__nv_bfloat16>(const SampleArgs&, cudaStream_t);
}  // namespace astrai
