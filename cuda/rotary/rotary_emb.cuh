// rotary_emb kernel. A group of threads holds one run of a token's heads, the same pairs of each a thread. A thread reads its
// pairs before it writes them and nobody else touches them, so x and out may be the same memory.
#pragma once

#include "astrai/ops.h"
#include "common/pdl.cuh"
#include "rotary/rotate.cuh"

namespace astrai {

constexpr int kRotaryThreads = 256;

// kPairs pairs a thread: 4 (16 bytes of x, 32 bytes of the table) when all rows are aligned, else 1.
// Up to kHeads heads a run: more loads in flight and fewer of the table, but few heads must still fill the device.
template <typename T, int kHeadDim, int kPairs, int kHeads>
__global__ void __launch_bounds__(kRotaryThreads) rotary_emb_kernel(const RotaryEmbArgs args, const HeadRuns runs) {
  // Without alignment a vector of two elements is two loads: rows may start on any element.
  constexpr int kLoad = kPairs == 1 ? 1 : 2 * kPairs;
  constexpr int kFreqsLoad = kPairs == 1 ? 1 : 4;
  using Group = Vec<T, kLoad>;
  using FreqsGroup = Vec<float, kFreqsLoad>;

  const int first = threadIdx.x * 2 * kPairs;  // element within the head, and float within the table row
  const unsigned run = blockIdx.x * blockDim.y + threadIdx.y;  // of all tokens
  const unsigned token_of_all = run / static_cast<unsigned>(runs.n_runs);
  const int first_head = static_cast<int>(run - token_of_all * static_cast<unsigned>(runs.n_runs)) * runs.n_heads;
  const int n_heads = min(runs.n_heads, args.n_heads - first_head);
  const int64_t batch = args.n_batch == 1 ? 0 : token_of_all / static_cast<unsigned>(args.n_seq);
  const int64_t token = token_of_all - batch * args.n_seq;
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (batch >= args.n_batch || token >= args.n_seq) return;

  const T* from = static_cast<const T*>(args.x) + batch * args.x_strides[0] + token * args.x_strides[1] +
                  first_head * args.x_strides[2] + first;
  alignas(16) T values[kHeads][2 * kPairs];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i >= n_heads) continue;
#pragma unroll
    for (int e = 0; e < 2 * kPairs; e += kLoad) {
      *reinterpret_cast<Group*>(values[i] + e) = *reinterpret_cast<const Group*>(from + i * args.x_strides[2] + e);
    }
  }
  const bool is_rotated = first < args.rotary_dim;
  alignas(16) float table[2 * kPairs] = {};  // cos, sin of each pair
  if (is_rotated) {
    const float* freqs = args.freqs + batch * args.freqs_strides[0] + token * args.freqs_strides[1] + first;
#pragma unroll
    for (int e = 0; e < 2 * kPairs; e += kFreqsLoad) {
      *reinterpret_cast<FreqsGroup*>(table + e) = *reinterpret_cast<const FreqsGroup*>(freqs + e);
    }
  }
  T* to = static_cast<T*>(args.out) + batch * args.out_strides[0] + token * args.out_strides[1] +
          first_head * args.out_strides[2] + first;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i >= n_heads) continue;
    if (is_rotated) rotate_pairs<kPairs>(values[i], table);
#pragma unroll
    for (int e = 0; e < 2 * kPairs; e += kLoad) {
      *reinterpret_cast<Group*>(to + i * args.out_strides[2] + e) = *reinterpret_cast<const Group*>(values[i] + e);
    }
  }
}

// Launches on stream for a device that is current; defined once for each instance.
template <typename T, int kHeadDim>
void launch_rotary_emb(const RotaryEmbArgs& args, cudaStream_t stream);

}  // namespace astrai
