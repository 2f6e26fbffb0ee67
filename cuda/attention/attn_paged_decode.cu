// attn_paged_decode: checks, then the instance of (dtype, head_dim). Contract: <astrai/attn_paged_decode.h>.
#include "attention/attn_paged_decode.cuh"

#include "astrai_instances.inc"
#include "common/instances.cuh"
#include "common/launch.cuh"

namespace astrai {
namespace {

using Launcher = void (*)(const PagedDecodeArgs&, int, cudaStream_t);

Launcher find_instance(DType dtype, int head_dim) {
#define ASTRAI_FIND(kernel, dtype_name, T, kHeadDim) \
  if (dtype == kDTypeOf<T> && head_dim == kHeadDim) return &launch_attn_paged_decode<T, kHeadDim>;
  ASTRAI_ATTN_PAGED_DECODE_INSTANCES(ASTRAI_FIND)
#undef ASTRAI_FIND
  throw_no_instance("attn_paged_decode", dtype, head_dim);
}

}  // namespace

void attn_paged_decode(const PagedDecodeCall& call, void* stream) {
  const PagedDecodeArgs args = check_attn_paged_decode(call);
  const Launcher launch = find_instance(call.q.dtype, args.head_dim);
  check_on_one_gpu("attn_paged_decode", {{"q", &call.q},
                                         {"k_cache", &call.k_cache},
                                         {"v_cache", &call.v_cache},
                                         {"req_to_token", &call.req_to_token},
                                         {"req_pool_indices", &call.req_pool_indices},
                                         {"kv_indptr", &call.kv_indptr},
                                         {"split_indptr", &call.split_indptr},
                                         {"o_part", &call.o_part},
                                         {"ml_part", &call.ml_part},
                                         {"out", &call.out},
                                         {"new_k", call.new_k ? &*call.new_k : &call.q},
                                         {"new_v", call.new_v ? &*call.new_v : &call.q},
                                         {"lse", call.lse ? &*call.lse : &call.q}});
  if (args.batch == 0) return;
  const DeviceGuard guard(call.q.device_idx, "attn_paged_decode");
  launch(args, call.q.device_idx, static_cast<cudaStream_t>(stream));
}

}  // namespace astrai
