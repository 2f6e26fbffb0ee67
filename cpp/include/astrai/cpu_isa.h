// Which instruction set the CPU kernels use. All sets are in every x86-64 build and the machine's best is chosen when
// the kernel is called; other architectures have the portable set alone (4-lane vectors of the compiler: SSE2, NEON).
// Results of different sets agree to rounding, not to the bit: a sum has as many partial sums as the set has lanes.
// Thread safe.
#pragma once

#include <string>
#include <vector>

namespace astrai {

enum class CpuIsa {
  kPortable,    // "portable"    4 lanes
  kAvx2,        // "avx2"        8 lanes, AVX2 and FMA
  kAvx512,      // "avx512"      16 lanes, AVX-512 F, BW, DQ and VL
  kAvx512Bf16,  // "avx512bf16"  the same, with the pairwise bfloat16 dot product for bfloat16 x and weights
};

const char* cpu_isa_name(CpuIsa isa);  // a literal, as above

// The sets that this build has and this machine can run, best last; never empty.
const std::vector<CpuIsa>& supported_cpu_isas();

// The set with that name; "" is the best one. Throws std::invalid_argument for a name that does not exist,
// KernelUnavailableError for one that this machine or build lacks.
CpuIsa resolve_cpu_isa(const std::string& name);

}  // namespace astrai
