// The launcher of one attn_paged_decode instance, included by the generated translation units alone.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "attention/attn_paged_decode.cuh"
#include "attention/attn_paged_decode_splits.cuh"
#include "common/carveout.cuh"
#include "common/launch.cuh"
#include "common/pdl.cuh"

namespace astrai {
namespace paged_decode {

constexpr const char* kOp = "attn_paged_decode";

// How one kernel runs on one device, looked up once.
struct Fit {
  int n_stages;  // 0: not looked up
  int n_blocks;  // resident on the whole device
};

template <typename T, int kHeadDim>
constexpr int ring_bytes(int n_stages) {
  return Shape<kHeadDim>::kWarps * n_stages * Ring<T, kHeadDim>::kStageBytes;
}

// As many thread blocks on a multiprocessor as leave each two stages, and then as many stages as they leave room for.
template <typename T, int kHeadDim, int kHeadTiles, bool kStacked>
Fit find_fit(int device_idx) {
  constexpr int kSystemBytes = 1024;  // of each thread block
  const auto function = kernel<T, kHeadDim, kHeadTiles, kStacked>;
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, function), kOp);
  int n_multiprocessors = 0, per_block = 0, in_all = 0;
  check_cuda(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device_idx), kOp);
  check_cuda(cudaDeviceGetAttribute(&per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_idx), kOp);
  check_cuda(cudaDeviceGetAttribute(&in_all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device_idx), kOp);
  int n_stages = 0;
  for (int n_blocks = kMinBlocks<kHeadDim, kHeadTiles>; n_blocks > 0 && n_stages < 2; --n_blocks) {
    const int room = std::min(per_block, in_all / n_blocks - kSystemBytes) - static_cast<int>(attributes.sharedSizeBytes);
    n_stages = std::min(kMaxStages, room / ring_bytes<T, kHeadDim>(1));
  }
  if (n_stages < 1) {
    throw KernelUnavailableError(std::string(kOp) + ": head_dim " + std::to_string(kHeadDim) + " needs " +
                                 std::to_string(ring_bytes<T, kHeadDim>(1)) +
                                 " bytes of shared memory; a thread block of this GPU has " + std::to_string(per_block) +
                                 ". Select ATTN_BACKEND.TORCH_NATIVE.");
  }
  const int bytes = ring_bytes<T, kHeadDim>(n_stages);
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), kOp);
  int per_multiprocessor = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, function, Shape<kHeadDim>::kThreads,
                                                           static_cast<size_t>(bytes)),
             kOp);
  return {n_stages, per_multiprocessor * n_multiprocessors};
}

template <typename T, int kHeadDim, int kHeadTiles, bool kStacked>
void launch(const PagedDecodeArgs& args, int device_idx, cudaStream_t stream) {
  constexpr int kMaxDevices = 64;
  static std::array<std::atomic<Fit>, kMaxDevices> fits{};  // every thread finds the same
  std::atomic<Fit>& known = fits[static_cast<size_t>(device_idx % kMaxDevices)];
  Fit fit = known.load(std::memory_order_relaxed);
  if (fit.n_stages == 0) {
    fit = find_fit<T, kHeadDim, kHeadTiles, kStacked>(device_idx);
    known.store(fit, std::memory_order_relaxed);
  }
  constexpr int kRows = WarpMerge<T, kHeadDim, kHeadTiles>::kRows;
  const int n_head_tiles = args.n_kv_heads * ((args.group + kRows - 1) / kRows);
  const int64_t max_units = static_cast<int64_t>(args.max_splits) * n_head_tiles;
  const auto n_blocks = static_cast<unsigned>(std::min<int64_t>(max_units, fit.n_blocks));
  const auto bytes = static_cast<size_t>(ring_bytes<T, kHeadDim>(fit.n_stages));
  constexpr int kManyPairs = 2048;  // fill a device with one warp for each
  constexpr int kBlockPairs = 512;  // of those, the most that have a thread block, too
  const int n_pairs = args.batch * args.n_heads;
  const int n_block_pairs = n_pairs < kManyPairs ? n_pairs : kBlockPairs;
  const int n_spread_blocks = !kStacked && kCanSpread<kHeadDim> && n_block_pairs == n_pairs ? static_cast<int>(n_blocks) : 0;
  launch_overlapped<kernel<T, kHeadDim, kHeadTiles, kStacked>>(kOp, dim3(n_blocks), dim3(Shape<kHeadDim>::kThreads), bytes,
                                                               stream, args, n_head_tiles, fit.n_stages, n_spread_blocks);
  // With a place for each request alone in the workspace none has two splits.
  if (args.max_splits == args.batch) return;
  const int n_warp_blocks = n_block_pairs < n_pairs ? (n_pairs + kMergeWarps - 1) / kMergeWarps : 0;
  prefer_shared_memory<merge_kernel<T, kHeadDim>>(kOp);
  launch_overlapped<merge_kernel<T, kHeadDim>>(kOp, dim3(static_cast<unsigned>(n_block_pairs + n_warp_blocks)),
                                               dim3(kMergeWarps * 32), 0, stream, args, n_head_tiles, n_spread_blocks,
                                               n_block_pairs);
}

}  // namespace paged_decode

template <typename T, int kHeadDim>
void launch_attn_paged_decode(const PagedDecodeArgs& args, int device_idx, cudaStream_t stream) {
  constexpr int kMaxHeadTiles = decode_stack_rows(kHeadDim) / 8;
  if (args.stack_len == 1 && (args.group <= 8 || kMaxHeadTiles == 1)) {
    paged_decode::launch<T, kHeadDim, 1, false>(args, device_idx, stream);
  } else {
    paged_decode::launch<T, kHeadDim, kMaxHeadTiles, true>(args, device_idx, stream);
  }
}

}  // namespace astrai
