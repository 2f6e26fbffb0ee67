// The launches of sample() for one dtype of logits.
#pragma once

#include "sampling/sample_bound.cuh"
#include "sampling/sample_row.cuh"
#include "sampling/sample_wide.cuh"
#include "sampling/scan.cuh"

namespace astrai {

// Few rows share the multiprocessors by clusters.
template <typename T>
void launch_sample_bound(const SampleArgs& args, cudaStream_t stream) {
  constexpr int kRowsOfBlocks = 128;  // with fewer blocks than this multiprocessors are left over
  int n_blocks = kMaxBoundBlocks;
  while (n_blocks > 1 && args.batch * n_blocks > kRowsOfBlocks) n_blocks /= 2;
  const bool has_clusters = has_wait_instruction<sample_bound_kernel<true, T>>("sample");
  if (n_blocks == 1 || !has_clusters) {
    launch_overlapped<sample_bound_kernel<false, T>>("sample", args.batch, kRowThreads, 0, stream, args);
  } else {
    launch_clusters<sample_bound_kernel<true, T>>("sample", n_blocks, args.batch * n_blocks, kRowThreads, 0, stream, args);
  }
}

template <typename T>
void launch_sample(const SampleArgs& args, cudaStream_t stream) {
  const dim3 chunks(static_cast<unsigned>(n_chunks_of(args.vocab_size)), args.batch);
  launch_overlapped<sample_scan_kernel<T>>("sample", chunks, kScanThreads, 0, stream, args);
  launch_overlapped<sample_row_kernel<T>>("sample", args.batch, kRowThreads, 0, stream, args);
  if (!args.has_wide_rows) return;
  launch_sample_bound<T>(args, stream);
  const dim3 wide_blocks(static_cast<unsigned>(wide_blocks_of(args.batch, static_cast<int>(chunks.x))), args.batch);
  launch_overlapped<sample_wide_kernel<T>>("sample", wide_blocks, kScanThreads, 0, stream, args);
}

extern template void launch_sample<float>(const SampleArgs&, cudaStream_t);
extern template void launch_sample<__half>(const SampleArgs&, cudaStream_t);
extern template void launch_sample<__nv_bfloat16>(const SampleArgs&, cudaStream_t);

}  // namespace astrai
