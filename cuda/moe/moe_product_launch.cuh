// The launch of a grouped product for one element type, over the tile sizes there are.
#pragma once

#include <algorithm>

#include "moe/moe_product.cuh"
#include "moe/moe_product_sm90.cuh"

namespace astrai {

template <typename T, int kRows, bool kIsGated>
void launch_moe_tiles(const char* op, const MoeProductArgs& args, cudaStream_t stream) {
  using Shape = MoeProductShape<kRows>;
  constexpr auto kKernel = moe_product_kernel<T, kRows, kIsGated>;
  constexpr int kOutColumns = kIsGated ? Shape::kColumns / 2 : Shape::kColumns;
  check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes), op);
  const dim3 grid(static_cast<unsigned>((args.n_out + kOutColumns - 1) / kOutColumns),
                  static_cast<unsigned>(args.n_tiles));
  launch_overlapped<kKernel>(op, grid, Shape::kThreads, Shape::kSharedBytes, stream, args);
}

// Has the current device, and this build for it, the kernel with wgmma? Else *n_multiprocessors stays.
inline bool has_moe_sm90(const char* op, int* n_multiprocessors) {
#ifdef ASTRAI_HAS_SM90A
  int device_idx = 0, major = 0, minor = 0;
  check_cuda(cudaGetDevice(&device_idx), op);
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_idx), op);
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_idx), op);
  check_cuda(cudaDeviceGetAttribute(n_multiprocessors, cudaDevAttrMultiProcessorCount, device_idx), op);
  return major == 9 && minor == 0;
#else
  static_cast<void>(op), static_cast<void>(n_multiprocessors);
  return false;
#endif
}

template <typename T, bool kIsGated>
void launch_moe_sm90(const char* op, const MoeProductArgs& args, int n_multiprocessors, cudaStream_t stream) {
  using Shape = MoeSm90Shape;
  constexpr auto kKernel = moe_product_sm90_kernel<T, kIsGated>;
  constexpr int kOutColumns = kIsGated ? Shape::kColumns / 2 : Shape::kColumns;
  check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes), op);
  const int n_items = (args.n_out + kOutColumns - 1) / kOutColumns * args.n_tiles;
  launch_overlapped<kKernel>(op, static_cast<unsigned>(std::min(n_items, n_multiprocessors)), Shape::kThreads,
                             Shape::kSharedBytes, stream, args);
}

template <typename T, bool kIsGated>
void launch_moe_product(const char* op, const MoeProductArgs& args, cudaStream_t stream) {
  // Of 64 rows, gate_up is bound by reading: several blocks on a multiprocessor do that better than one that has it for
  // itself; down is not.
  const bool suits_sm90 = args.tile_rows == 128 || (args.tile_rows == 64 && !kIsGated);
  int n_multiprocessors = 0;
  if (suits_sm90 && has_moe_sm90(op, &n_multiprocessors)) {
    launch_moe_sm90<T, kIsGated>(op, args, n_multiprocessors, stream);
  } else if (args.tile_rows == 16) {
    launch_moe_tiles<T, 16, kIsGated>(op, args, stream);
  } else if (args.tile_rows == 64) {
    launch_moe_tiles<T, 64, kIsGated>(op, args, stream);
  } else {
    launch_moe_tiles<T, 128, kIsGated>(op, args, stream);
  }
}

}  // namespace astrai
