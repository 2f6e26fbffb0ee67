// The launch of a grouped product for one element type, over the tile sizes there are.
#pragma once

#include "moe/moe_product.cuh"

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

template <typename T, bool kIsGated>
void launch_moe_product(const char* op, const MoeProductArgs& args, cudaStream_t stream) {
  if (args.tile_rows == 16) {
    launch_moe_tiles<T, 16, kIsGated>(op, args, stream);
  } else if (args.tile_rows == 64) {
    launch_moe_tiles<T, 64, kIsGated>(op, args, stream);
  } else {
    launch_moe_tiles<T, 128, kIsGated>(op, args, stream);
  }
}

}  // namespace astrai
