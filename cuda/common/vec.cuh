// Half-precision elements in registers: conversion to float32 and 16-byte groups.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace astrai {

__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

// Rounds to nearest even, once.
template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

// kSize elements that move by one load or store when the address is a multiple of their bytes.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vec {
  T elements[kSize];
};

template <typename T>
constexpr int kElementsPer16Bytes = 16 / static_cast<int>(sizeof(T));

}  // namespace astrai
