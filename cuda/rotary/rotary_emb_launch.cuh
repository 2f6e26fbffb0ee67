// The launcher of one rotary_emb instance, included by the generated translation units alone.
#pragma once

#include "rotary/rotary_emb.cuh"

namespace astrai {

constexpr int64_t kManyRotaryVectors = 1 << 19;  // from here on several heads a group still fill every multiprocessor

template <typename T, int kHeadDim, int kPairs, int kHeads>
void launch_rotary_emb_heads(const RotaryEmbArgs& args, cudaStream_t stream) {
  constexpr int64_t kHeadsABlock = kRotaryThreads / (kHeadDim / (2 * kPairs)) * kHeads;
  const int64_t n_all_heads = args.n_batch * args.n_seq * args.n_heads;
  const auto n_blocks = static_cast<unsigned>((n_all_heads + kHeadsABlock - 1) / kHeadsABlock);
  launch_overlapped<rotary_emb_kernel<T, kHeadDim, kPairs, kHeads>>("rotary_emb", n_blocks, kRotaryThreads, 0, stream,
                                                                    args);
}

template <typename T, int kHeadDim>
void launch_rotary_emb(const RotaryEmbArgs& args, cudaStream_t stream) {
  if (!args.is_vectorizable) {
    launch_rotary_emb_heads<T, kHeadDim, 1, 1>(args, stream);
  } else if (args.n_batch * args.n_seq * args.n_heads * (kHeadDim / 8) < kManyRotaryVectors) {
    launch_rotary_emb_heads<T, kHeadDim, 4, 1>(args, stream);
  } else {
    launch_rotary_emb_heads<T, kHeadDim, 4, 4>(args, stream);
  }
}

}  // namespace astrai
