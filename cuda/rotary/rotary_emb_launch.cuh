// The launcher of one rotary_emb instance, included by the generated translation units alone.
#pragma once

#include "rotary/rotary_emb.cuh"

namespace astrai {

constexpr int64_t kManyRotaryVectors = 1 << 19;  // from here on runs of several heads still fill every multiprocessor

template <typename T, int kHeadDim, int kPairs, int kHeads>
void launch_rotary_emb_runs(const RotaryEmbArgs& args, cudaStream_t stream) {
  constexpr int kThreadsAHead = kHeadDim / (2 * kPairs);
  constexpr int kRunsABlock = kRotaryThreads / kThreadsAHead;
  const HeadRuns runs = head_runs(args.n_heads, kHeads);
  const int64_t n_runs = args.n_batch * args.n_seq * runs.n_runs;
  const auto n_blocks = static_cast<unsigned>((n_runs + kRunsABlock - 1) / kRunsABlock);
  launch_overlapped<rotary_emb_kernel<T, kHeadDim, kPairs, kHeads>>("rotary_emb", n_blocks, dim3(kThreadsAHead, kRunsABlock),
                                                                    0, stream, args, runs);
}

template <typename T, int kHeadDim>
void launch_rotary_emb(const RotaryEmbArgs& args, cudaStream_t stream) {
  if (!args.is_vectorizable) {
    launch_rotary_emb_runs<T, kHeadDim, 1, 1>(args, stream);
  } else if (args.n_batch * args.n_seq * args.n_heads * (kHeadDim / 8) < kManyRotaryVectors) {
    launch_rotary_emb_runs<T, kHeadDim, 4, 1>(args, stream);
  } else {
    launch_rotary_emb_runs<T, kHeadDim, 4, 2>(args, stream);
  }
}

}  // namespace astrai
