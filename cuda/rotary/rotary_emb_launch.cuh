// The launcher of one rotary_emb instance, included by the generated translation units alone.
#pragma once

#include <algorithm>

#include "common/launch.cuh"
#include "rotary/rotary_emb.cuh"

namespace astrai {

template <typename T, int kHeadDim, int kPairs>
void launch_rotary_emb_pairs(const RotaryEmbArgs& args, cudaStream_t stream) {
  const int n_items = args.n_heads * (kHeadDim / (2 * kPairs));
  const int n_threads = std::min(kRotaryMaxThreads, (n_items + 31) / 32 * 32);
  const auto n_tokens = static_cast<unsigned>(args.n_batch * args.n_seq);
  rotary_emb_kernel<T, kHeadDim, kPairs><<<n_tokens, n_threads, 0, stream>>>(args);
  check_cuda(cudaGetLastError(), "rotary_emb");
}

template <typename T, int kHeadDim>
void launch_rotary_emb(const RotaryEmbArgs& args, cudaStream_t stream) {
  if (args.is_vectorizable) {
    launch_rotary_emb_pairs<T, kHeadDim, 4>(args, stream);
  } else {
    launch_rotary_emb_pairs<T, kHeadDim, 1>(args, stream);
  }
}

}  // namespace astrai
