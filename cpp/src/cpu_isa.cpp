#include "astrai/cpu_isa.h"

#include <algorithm>
#include <stdexcept>

#include "astrai/error.h"
#include "cpu/kernels.h"

namespace astrai {
namespace {

constexpr CpuIsa kAllIsas[] = {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16};

// The feature tests of the compiler's run-time library also ask whether the system saves the wide registers.
bool is_supported(CpuIsa isa) {
#ifdef ASTRAI_X86_KERNELS
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case CpuIsa::kPortable:
      return true;
    case CpuIsa::kAvx2:
      return has_avx2;
    case CpuIsa::kAvx512:
      return has_avx512;
    case CpuIsa::kAvx512Bf16:
      return has_avx512 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return isa == CpuIsa::kPortable;
#endif
}

template <typename Isas>
std::string join_names(const Isas& isas) {
  std::string names;
  for (const CpuIsa isa : isas) names += (names.empty() ? "" : ", ") + std::string(cpu_isa_name(isa));
  return names;
}

}  // namespace

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "?";
}

const std::vector<CpuIsa>& supported_cpu_isas() {
  static const std::vector<CpuIsa> isas = [] {
    std::vector<CpuIsa> supported;
    for (const CpuIsa isa : kAllIsas) {
      if (is_supported(isa)) supported.push_back(isa);
    }
    return supported;
  }();
  return isas;
}

CpuIsa resolve_cpu_isa(const std::string& name) {
  const std::vector<CpuIsa>& supported = supported_cpu_isas();
  if (name.empty()) return supported.back();
  for (const CpuIsa isa : kAllIsas) {
    if (name != cpu_isa_name(isa)) continue;
    if (std::find(supported.begin(), supported.end(), isa) != supported.end()) return isa;
    throw KernelUnavailableError("isa '" + name + "' is not available on this machine; available are " +
                                 join_names(supported));
  }
  throw std::invalid_argument("isa is '" + name + "'; accepted are '' (the best available), " + join_names(kAllIsas));
}

const CpuKernels& cpu_kernels(CpuIsa isa) {
#ifdef ASTRAI_X86_KERNELS
  if (isa == CpuIsa::kAvx2) return kAvx2Kernels;
  if (isa == CpuIsa::kAvx512) return kAvx512Kernels;
  if (isa == CpuIsa::kAvx512Bf16) return kAvx512Bf16Kernels;
#endif
  if (isa != CpuIsa::kPortable) {
    throw KernelUnavailableError(std::string("isa '") + cpu_isa_name(isa) + "' is not part of this build");
  }
  return kPortableKernels;
}

}  // namespace astrai
