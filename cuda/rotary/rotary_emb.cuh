// rotary_emb kernel. The heads of all tokens are counted in one row, token by token; a group of threads holds a head, one
// set of pairs each. A thread reads its pairs before it writes them and nobody else touches them, so x and out may be the
// same memory.
#pragma once

#include "astrai/ops.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"

namespace astrai {

constexpr int kRotaryThreads = 256;

// kPairs pairs a thread: 4 (16 bytes of x, 32 bytes of the table) when all rows are aligned, else 1.
// kHeads heads a group of threads: several loads are then in flight at once, and few heads still fill the device.
template <typename T, int kHeadDim, int kPairs, int kHeads>
__global__ void __launch_bounds__(kRotaryThreads) rotary_emb_kernel(const RotaryEmbArgs args) {
  // Without alignment a vector of two elements is two loads: rows may start on any element.
  constexpr int kLoad = kPairs == 1 ? 1 : 2 * kPairs;
  constexpr int kFreqsLoad = kPairs == 1 ? 1 : 4;
  constexpr int kThreadsAHead = kHeadDim / (2 * kPairs);
  constexpr int kGroups = kRotaryThreads / kThreadsAHead;
  using Group = Vec<T, kLoad>;
  using FreqsGroup = Vec<float, kFreqsLoad>;

  const int first = threadIdx.x % kThreadsAHead * 2 * kPairs;  // element within the head, and float within the table row
  const unsigned group = threadIdx.x / kThreadsAHead;
  const auto n_all_heads = static_cast<unsigned>(args.n_batch * args.n_seq * args.n_heads);
  const unsigned first_head = blockIdx.x * (kGroups * kHeads) + group;
  const bool is_rotated = first < args.rotary_dim;
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (group >= kGroups) return;  // threads that are left over where a head's threads do not divide the block

  T values[kHeads][2 * kPairs];
  int64_t batches[kHeads], tokens[kHeads];
  int heads[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const unsigned place = first_head + i * kGroups;
    if (place >= n_all_heads) continue;
    const unsigned token = place / static_cast<unsigned>(args.n_heads);
    heads[i] = static_cast<int>(place - token * static_cast<unsigned>(args.n_heads));
    batches[i] = args.n_batch == 1 ? 0 : token / static_cast<unsigned>(args.n_seq);
    tokens[i] = token - batches[i] * args.n_seq;
    const T* from = static_cast<const T*>(args.x) + batches[i] * args.x_strides[0] + tokens[i] * args.x_strides[1] +
                    heads[i] * args.x_strides[2] + first;
#pragma unroll
    for (int e = 0; e < 2 * kPairs; e += kLoad) {
      *reinterpret_cast<Group*>(values[i] + e) = *reinterpret_cast<const Group*>(from + e);
    }
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (first_head + i * kGroups >= n_all_heads) continue;
    if (is_rotated) {
      float table[2 * kPairs];  // cos, sin of each pair
      const float* freqs = args.freqs + batches[i] * args.freqs_strides[0] + tokens[i] * args.freqs_strides[1] + first;
#pragma unroll
      for (int e = 0; e < 2 * kPairs; e += kFreqsLoad) {
        *reinterpret_cast<FreqsGroup*>(table + e) = *reinterpret_cast<const FreqsGroup*>(freqs + e);
      }
#pragma unroll
      for (int e = 0; e < 2 * kPairs; e += 2) {
        const float even = to_float(values[i][e]), odd = to_float(values[i][e + 1]);
        values[i][e] = from_float<T>(even * table[e] - odd * table[e + 1]);
        values[i][e + 1] = from_float<T>(even * table[e + 1] + odd * table[e]);
      }
    }
    T* to = static_cast<T*>(args.out) + batches[i] * args.out_strides[0] + tokens[i] * args.out_strides[1] +
            heads[i] * args.out_strides[2] + first;
#pragma unroll
    for (int e = 0; e < 2 * kPairs; e += kLoad) {
      *reinterpret_cast<Group*>(to + e) = *reinterpret_cast<const Group*>(values[i] + e);
    }
  }
}

// Launches on stream for a device that is current; defined once for each instance.
template <typename T, int kHeadDim>
void launch_rotary_emb(const RotaryEmbArgs& args, cudaStream_t stream);

}  // namespace astrai
