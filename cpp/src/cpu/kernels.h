// What the CPU kernels take and how one instruction set's kernels are found. The structs hold raw pointers and sizes
// that the functions in cpu_linear.cpp and its neighbours have checked; kernels check nothing.
#pragma once

#include <cstdint>

#include "astrai/cpu_isa.h"

namespace astrai {

struct LinearTask {
  const void* x;       // [m][x_stride] in the layout that the weight's kernel reads (XLayout)
  int64_t x_stride;    // elements from one row of x to the next
  const void* weight;  // [n][k] float or bfloat16
  const void* bias;    // [n] or null
  void* out;           // [m][n]
  int64_t m, n, k;
  bool is_bias_bf16;
  bool is_out_bf16;
};

constexpr int64_t kLinearBandRows = 12;  // a thread's share of weight rows is best a multiple of this

enum class XLayout {
  kFloat32,         // float32 in order
  kFloat32EvenOdd,  // float32, each step's even places before its odd places
  kBFloat16,        // bfloat16 in order
};

// One way to multiply weight rows of one dtype with x.
struct LinearKernel {
  int64_t k_step;    // rows of x are padded with zeros to a multiple of this
  XLayout x_layout;  // what run() reads
  // Rows of x [m][k], float32 or bfloat16, into that layout at packed [m][stride]; stride is k rounded up to k_step.
  void (*pack_x)(const void* x, bool is_x_bf16, int64_t m, int64_t k, int64_t stride, void* packed);
  // Columns n_begin..n_end of out.
  void (*run)(const LinearTask& task, int64_t n_begin, int64_t n_end);
};

struct PagedDecodeTask {
  const void* q;                   // [batch] rows of [n_heads][head_dim]
  const void* k_cache;             // [n_slots] rows of [n_kv_heads][head_dim]
  const void* v_cache;
  const int32_t* req_to_token;     // [n_rows] rows of slots
  const int32_t* req_pool_indices; // [batch]
  int64_t q_stride, k_stride, v_stride, table_stride;  // elements from row to row
  int64_t group;                   // query heads of one KV head
  int64_t head_dim;
  float sm_scale;
  float soft_cap;  // 0: none
};

// The positions begin..end of one request as one KV head sees them; end - begin in 1..kCpuKvSpan.
struct KvSpan {
  int64_t request, kv_head, begin, end;
};

// What a span contributes to each query head of its group: head_dim sums of exp(score - max) * v, then max, then the
// sum of exp(score - max).
constexpr int64_t partial_size(int64_t head_dim) { return head_dim + 2; }

struct RmsNormTask {
  const void* x;       // [rows][n]
  const void* weight;  // [n]
  void* residual;      // [rows][n] or null
  void* out;           // [rows][n]
  int64_t n;
  float eps;
};

struct GatedActTask {
  const void* gate_up;  // [rows][2n]
  void* out;            // [rows][n]
  int64_t n;
};

// Kernels over one element type.
struct TypedKernels {
  void (*attend_span)(const PagedDecodeTask& task, const KvSpan& span, float* partials);  // [group][partial_size]
  void (*rms_norm)(const RmsNormTask& task, int64_t row_begin, int64_t row_end);
  void (*silu_mul)(const GatedActTask& task, int64_t row_begin, int64_t row_end);
  void (*gelu_mul)(const GatedActTask& task, int64_t row_begin, int64_t row_end);
};

struct CpuKernels {
  LinearKernel linear_float32;    // float32 weights, float32 x
  LinearKernel linear_bf16;       // bfloat16 weights, any x
  LinearKernel linear_bf16_pair;  // bfloat16 weights, bfloat16 x
  TypedKernels float32;
  TypedKernels bf16;
};

// Throws KernelUnavailableError when the build has none for the set; whether the machine can run them is for
// resolve_cpu_isa() to say.
const CpuKernels& cpu_kernels(CpuIsa isa);

extern const CpuKernels kPortableKernels;
#if defined(__x86_64__)
#define ASTRAI_X86_KERNELS 1
extern const CpuKernels kAvx2Kernels;
extern const CpuKernels kAvx512Kernels;
extern const CpuKernels kAvx512Bf16Kernels;
#endif

}  // namespace astrai
