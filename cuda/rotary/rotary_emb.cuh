// rotary_emb kernel: one thread block per token, threads stride over its (head, group of pairs). A thread reads a group
// before it writes it and nobody else touches it, so x and out may be the same memory.
#pragma once

#include "astrai/ops.h"
#include "common/vec.cuh"

namespace astrai {

constexpr int kRotaryMaxThreads = 256;

// kPairs pairs at a time: 4 (16 bytes of x, 32 bytes of the table) when all rows are aligned, else 1.
template <typename T, int kHeadDim, int kPairs>
__global__ void __launch_bounds__(kRotaryMaxThreads) rotary_emb_kernel(const RotaryEmbArgs args) {
  // Without alignment a vector of two elements is two loads: rows may start on any element.
  constexpr int kLoad = kPairs == 1 ? 1 : 2 * kPairs;
  constexpr int kFreqsLoad = kPairs == 1 ? 1 : 4;
  constexpr int kGroups = kHeadDim / (2 * kPairs);  // of one head
  using Group = Vec<T, kLoad>;
  using FreqsGroup = Vec<float, kFreqsLoad>;

  const int64_t batch = blockIdx.x / args.n_seq;
  const int64_t pos = blockIdx.x % args.n_seq;
  const T* x = static_cast<const T*>(args.x) + batch * args.x_strides[0] + pos * args.x_strides[1];
  T* out = static_cast<T*>(args.out) + batch * args.out_strides[0] + pos * args.out_strides[1];
  const float* freqs = args.freqs + batch * args.freqs_strides[0] + pos * args.freqs_strides[1];

  for (int item = threadIdx.x; item < args.n_heads * kGroups; item += blockDim.x) {
    const int head = item / kGroups;
    const int first = item % kGroups * 2 * kPairs;  // element within the head, and float within the table row
    T values[2 * kPairs];
    float table[2 * kPairs];  // cos, sin of each pair
    const T* from = x + head * args.x_strides[2] + first;
#pragma unroll
    for (int i = 0; i < 2 * kPairs; i += kLoad) {
      *reinterpret_cast<Group*>(values + i) = *reinterpret_cast<const Group*>(from + i);
    }
#pragma unroll
    for (int i = 0; i < 2 * kPairs; i += kFreqsLoad) {
      *reinterpret_cast<FreqsGroup*>(table + i) = *reinterpret_cast<const FreqsGroup*>(freqs + first + i);
    }
#pragma unroll
    for (int i = 0; i < 2 * kPairs; i += 2) {
      const float even = to_float(values[i]), odd = to_float(values[i + 1]);
      const float cosine = table[i], sine = table[i + 1];
      values[i] = from_float<T>(even * cosine - odd * sine);
      values[i + 1] = from_float<T>(even * sine + odd * cosine);
    }
    T* to = out + head * args.out_strides[2] + first;
#pragma unroll
    for (int i = 0; i < 2 * kPairs; i += kLoad) {
      *reinterpret_cast<Group*>(to + i) = *reinterpret_cast<const Group*>(values + i);
    }
  }
}

// Launches on stream for a device that is current; defined once for each instance.
template <typename T, int kHeadDim>
void launch_rotary_emb(const RotaryEmbArgs& args, cudaStream_t stream);

}  // namespace astrai
