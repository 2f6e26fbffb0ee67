// The Hopper instructions of the attention kernels (sm_90a): products of a warpgroup (128 threads), barriers in shared
// memory, named barriers and the redistribution of registers. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// Tiles in shared memory are panels of 64 elements: [rows x 128 bytes], starting on 1024 bytes, the 16-byte chunk index of
// a row exclusive-or'ed with row % 8 (the 128-byte swizzle).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace astrai {

// Descriptor of a swizzled tile. Rows are the product's N or M (inner dimension along the panel), or with panel_bytes its
// inner dimension (N along the panels, which lie panel_bytes apart: the transposed form).
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t panel_bytes = 16) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kRowGroup = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kRowGroup | (uint64_t{panel_bytes >> 4} << 16) | (address >> 4);
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending of the newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Waits for all groups, whose results are d: nothing that reads d comes before.
template <int kSize>
__device__ __forceinline__ void wgmma_wait_for(float (&d)[kSize]) {
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d[64 x N] = a[64 x 16] b[16 x N], or += when accumulates, with N two times the registers of d. b lies in shared memory, a
// there too (ss) or in registers a[0..3] (rs). The inner dimension is contiguous in b, or with kTransposed N is.
template <typename T, int kSize>
struct Wgmma;

#define ASTRAI_WGMMA_PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define ASTRAI_WGMMA_PLACES_24 ASTRAI_WGMMA_PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define ASTRAI_WGMMA_PLACES_32 ASTRAI_WGMMA_PLACES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define ASTRAI_WGMMA_PLACES_40 ASTRAI_WGMMA_PLACES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ASTRAI_WGMMA_PLACES_48 ASTRAI_WGMMA_PLACES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ASTRAI_WGMMA_PLACES_64 \
  ASTRAI_WGMMA_PLACES_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ASTRAI_WGMMA_PLACES_128 \
  ASTRAI_WGMMA_PLACES_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ASTRAI_WGMMA_D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ASTRAI_WGMMA_D16(i) ASTRAI_WGMMA_D8(i), ASTRAI_WGMMA_D8(i + 8)
#define ASTRAI_WGMMA_D32(i) ASTRAI_WGMMA_D16(i), ASTRAI_WGMMA_D16(i + 16)
#define ASTRAI_WGMMA_REGISTERS_16 ASTRAI_WGMMA_D16(0)
#define ASTRAI_WGMMA_REGISTERS_24 ASTRAI_WGMMA_D16(0), ASTRAI_WGMMA_D8(16)
#define ASTRAI_WGMMA_REGISTERS_32 ASTRAI_WGMMA_D32(0)
#define ASTRAI_WGMMA_REGISTERS_40 ASTRAI_WGMMA_D32(0), ASTRAI_WGMMA_D8(32)
#define ASTRAI_WGMMA_REGISTERS_48 ASTRAI_WGMMA_D32(0), ASTRAI_WGMMA_D16(32)
#define ASTRAI_WGMMA_REGISTERS_64 ASTRAI_WGMMA_D32(0), ASTRAI_WGMMA_D32(32)
#define ASTRAI_WGMMA_REGISTERS_128 ASTRAI_WGMMA_REGISTERS_64, ASTRAI_WGMMA_D32(64), ASTRAI_WGMMA_D32(96)

// p0 and on: the places behind the registers of d.
#define ASTRAI_WGMMA(T, type, size, n, p0, p1, p2, p3, p4, p5, p6) \
  template <> \
  struct Wgmma<T, size> { \
    static __device__ __forceinline__ void ss(float (&d)[size], uint64_t a, uint64_t b, int accumulates) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
                   "." type " {" ASTRAI_WGMMA_PLACES_##size "}, %" #p0 ", %" #p1 ", p, 1, 1, 0, 0;\n}\n" \
                   : ASTRAI_WGMMA_REGISTERS_##size \
                   : "l"(a), "l"(b), "r"(accumulates)); \
    } \
    template <bool kTransposed> \
    static __device__ __forceinline__ void rs(float (&d)[size], const uint32_t* a, uint64_t b, int accumulates) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
                   "." type " {" ASTRAI_WGMMA_PLACES_##size "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 \
                   ", p, 1, 1, %" #p6 ";\n}\n" \
                   : ASTRAI_WGMMA_REGISTERS_##size \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulates), "n"(int{kTransposed})); \
    } \
  };
#define ASTRAI_WGMMA_SIZES(T, type) \
  ASTRAI_WGMMA(T, type, 16, 32, 16, 17, 18, 19, 20, 21, 22) \
  ASTRAI_WGMMA(T, type, 24, 48, 24, 25, 26, 27, 28, 29, 30) \
  ASTRAI_WGMMA(T, type, 32, 64, 32, 33, 34, 35, 36, 37, 38) \
  ASTRAI_WGMMA(T, type, 40, 80, 40, 41, 42, 43, 44, 45, 46) \
  ASTRAI_WGMMA(T, type, 48, 96, 48, 49, 50, 51, 52, 53, 54) \
  ASTRAI_WGMMA(T, type, 64, 128, 64, 65, 66, 67, 68, 69, 70) \
  ASTRAI_WGMMA(T, type, 128, 256, 128, 129, 130, 131, 132, 133, 134)
ASTRAI_WGMMA_SIZES(__nv_bfloat16, "bf16")
ASTRAI_WGMMA_SIZES(__half, "f16")
#undef ASTRAI_WGMMA_SIZES
#undef ASTRAI_WGMMA
#undef ASTRAI_WGMMA_REGISTERS_128
#undef ASTRAI_WGMMA_REGISTERS_64
#undef ASTRAI_WGMMA_REGISTERS_48
#undef ASTRAI_WGMMA_REGISTERS_40
#undef ASTRAI_WGMMA_REGISTERS_32
#undef ASTRAI_WGMMA_REGISTERS_24
#undef ASTRAI_WGMMA_REGISTERS_16
#undef ASTRAI_WGMMA_D32
#undef ASTRAI_WGMMA_D16
#undef ASTRAI_WGMMA_D8
#undef ASTRAI_WGMMA_PLACES_128
#undef ASTRAI_WGMMA_PLACES_64
#undef ASTRAI_WGMMA_PLACES_48
#undef ASTRAI_WGMMA_PLACES_40
#undef ASTRAI_WGMMA_PLACES_32
#undef ASTRAI_WGMMA_PLACES_24
#undef ASTRAI_WGMMA_PLACES_16

// ---- mbarriers: phases are counted from 0; wait(parity) returns once the phase of that parity is over ----
__device__ __forceinline__ void barrier_init(uint32_t barrier, int n_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_arrivals) : "memory");
}
// Makes inits visible; a __syncthreads() must follow.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives once all cp.async of this thread so far have landed.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra.uni DONE;\n"
      "bra.uni WAIT;\nDONE:\n}\n" ::"r"(barrier), "r"(parity)
      : "memory");
}
// Orders what other threads wrote to shared memory by cp.async, as seen through a barrier, before this thread's wgmma.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void store_shared(uint32_t to, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

__device__ __forceinline__ void load_shared_float4(float (&values)[4], uint32_t from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "r"(from)
               : "memory");
}

// Stores two 8x8 matrices of 2-byte elements transposed; lane l gives the address of row l % 8 of matrix l / 8 (l < 16).
__device__ __forceinline__ void store_transposed_8x8x2(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
               : "memory");
}

// ---- named barriers ----
__device__ __forceinline__ void named_sync(int id, int n_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int n_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

// Gives registers of this warpgroup back, or takes more: every warp of it calls this once.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace astrai
