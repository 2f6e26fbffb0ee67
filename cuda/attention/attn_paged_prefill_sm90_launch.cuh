// The launcher of one attn_paged_prefill_sm90 instance, included by the generated translation units alone.
#pragma once

#include "attention/attn_paged_prefill_sm90.cuh"
#include "common/launch.cuh"

namespace astrai {

template <typename T, int kHeadDim>
void launch_attn_paged_prefill_sm90(const PagedPrefillArgs& args, cudaStream_t stream) {
  using Shape = PrefillSm90Shape<kHeadDim>;
  constexpr auto kernel = attn_paged_prefill_sm90_kernel<T, kHeadDim>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes),
             "attn_paged_prefill");
  const int block_tokens = Shape::kRows / args.heads_per_tile;
  const int n_parts = (args.q_tile_rows + block_tokens - 1) / block_tokens;
  const dim3 grid(static_cast<unsigned>(args.n_tiles * n_parts),
                  static_cast<unsigned>(args.n_heads / args.heads_per_tile));
  kernel<<<grid, Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
  check_cuda(cudaGetLastError(), "attn_paged_prefill");
}

}  // namespace astrai
