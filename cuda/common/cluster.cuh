// Thread block clusters (compute capability 9.0; CUDA C++ Programming Guide, section of that name), reduced to what a kernel
// needs that runs as one block or as a cluster of several. With kIsCluster false all of this is one block's own business.
#pragma once

#include <array>

#include "common/pdl.cuh"

namespace astrai {

template <bool kIsCluster>
__device__ __forceinline__ int cluster_rank() {
  unsigned rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}

template <bool kIsCluster>
__device__ __forceinline__ int cluster_size() {
  unsigned size = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
#endif
  return static_cast<int>(size);
}

// A barrier of all threads of the cluster; what they wrote before it, each other's shared memory included, is visible
// after it. A block must not end while another may touch its shared memory.
template <bool kIsCluster>
__device__ __forceinline__ void sync_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

// A barrier of all threads of the cluster in two halves. It orders no memory but reads whose values have been used and what
// other instructions order.
__device__ __forceinline__ void arrive_in_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// The same variable of shared memory in the block of that rank.
template <bool kIsCluster, typename T>
__device__ __forceinline__ T* in_block(T* shared, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) {
    T* mapped;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(shared), "r"(rank));
    return mapped;
  }
#endif
  return shared;
}

// launch_overlapped() in clusters of n_blocks_a_cluster thread blocks, on a device of compute capability 9.0.
template <auto kKernel, typename... Args>
void launch_clusters(const char* op, int n_blocks_a_cluster, dim3 grid, dim3 block, size_t shared_bytes,
                     cudaStream_t stream, const Args&... args) {
  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(n_blocks_a_cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  check_cuda(cudaLaunchKernelEx(&config, kKernel, args...), op);
}

}  // namespace astrai
