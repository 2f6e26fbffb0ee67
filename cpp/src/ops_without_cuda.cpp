// The GPU operations of a build without CUDA: they check their arguments, then say why there is no kernel.
// ASTRAI_CUDA_REASON comes from cmake/AstraiCuda.cmake.
#include "astrai/attn_paged_decode.h"
#include "astrai/attn_paged_prefill.h"
#include "astrai/error.h"
#include "astrai/ops.h"

namespace astrai {
namespace {

[[noreturn]] void throw_unavailable(const std::string& op) {
  throw KernelUnavailableError(op + ": this build has no CUDA kernels (" ASTRAI_CUDA_REASON
                                    "). Rebuild with ASTRAI_WITH_CUDA=ON or select ATTN_BACKEND.TORCH_NATIVE.");
}

}  // namespace

KernelInstances compiled_instances() { return {}; }

std::vector<std::string> cuda_archs() { return {}; }

int prefill_q_tile_rows(int, int, int, DType, int) { return kDefaultQTileRows; }

void attn_paged_decode(const PagedDecodeCall& call, void*) {
  check_attn_paged_decode(call);
  throw_unavailable("attn_paged_decode");
}

void attn_paged_prefill(const PagedPrefillTensors& tensors, const PagedPrefillOptions& options, void*) {
  check_attn_paged_prefill(tensors, options);
  throw_unavailable("attn_paged_prefill");
}

void rotary_emb(const TensorView& x, const TensorView& freqs, const TensorView& out, void*) {
  check_rotary_emb(x, freqs, out);
  throw_unavailable("rotary_emb");
}

void store_kv(const TensorView& k, const TensorView& v, const TensorView& k_cache, const TensorView& v_cache,
              const TensorView& out_cache_loc, void*) {
  check_store_kv(k, v, k_cache, v_cache, out_cache_loc);
  throw_unavailable("store_kv");
}

}  // namespace astrai
