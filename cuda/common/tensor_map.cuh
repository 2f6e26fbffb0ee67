// Hopper's copy engine (sm_90a): a panel of common/wgmma.cuh out of a row-major matrix, by a map of it that is made on the
// host; and stores to another block of the cluster that its barrier counts. CUDA C++ Programming Guide, "Tensor Memory Access".
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "astrai/error.h"
#include "common/launch.cuh"

namespace astrai {

// The driver's cuTensorMapEncodeTiled, found by way of the runtime: nothing links against the driver.
inline auto tensor_map_encoder(const char* op) {
  static const auto encoder = [op] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result), op);
#else
    check_cuda(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result), op);
#endif
    if (result != cudaDriverEntryPointSuccess) throw Error(std::string(op) + ": the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return encoder;
}

// Map of rows [n_rows, row_len] that lie stride elements apart, for panels of panel_rows <= 256 rows and 64 elements. Rows
// and elements beyond the matrix are zeros. Elements of two bytes; rows start on 16 bytes.
template <typename T>
CUtensorMap panel_map(const char* op, const void* rows, int64_t n_rows, int row_len, int64_t stride, int panel_rows) {
  constexpr bool kIsBFloat16 = std::is_same_v<T, __nv_bfloat16>;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(row_len), static_cast<cuuint64_t>(n_rows)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(stride) * sizeof(T)};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(panel_rows)}, steps[2] = {1, 1};
  CUtensorMap map{};
  const CUresult status = tensor_map_encoder(op)(
      &map, kIsBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<void*>(rows),
      sizes, row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) throw Error(std::string(op) + ": cuTensorMapEncodeTiled failed: " + std::to_string(status));
  return map;
}

// Arrives, and the phase is over no sooner than n_bytes have been copied in it.
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t n_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n_bytes) : "memory");
}

// Brings a map nearer that is soon needed.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Starts copying the panel from row and element on to shared memory; barrier gets its bytes. Called by one thread.
__device__ __forceinline__ void copy_panel(uint32_t to, const CUtensorMap& map, int element, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(element), "r"(row), "r"(barrier)
      : "memory");
}

// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, int block) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}

// Starts storing four floats to another block of the cluster, on 16 bytes; its barrier gets their bytes.
__device__ __forceinline__ void send_float4(uint32_t to_there, float a, float b, float c, float d, uint32_t barrier_there) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to_there),
               "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier_there)
               : "memory");
}

}  // namespace astrai
