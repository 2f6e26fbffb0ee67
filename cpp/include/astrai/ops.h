// The GPU operations. Each one checks its tensors, launches on the caller's stream and returns: it allocates nothing,
// never synchronises and can be captured into a CUDA graph. Bad tensors throw std::invalid_argument; an operation that
// this build has no kernel for throws KernelUnavailableError. Thread safe. A TensorView is read before the call returns; the
// memory behind it is the caller's and must stay as it is until the stream has passed the call. `stream` is a cudaStream_t,
// null for the default one.
// The definitions are in astrai::cuda; a build without CUDA has definitions that check and then throw.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "astrai/tensor_view.h"

namespace astrai {

// ---- what was built ----
using KernelInstances = std::map<std::string, std::vector<std::pair<std::string, int>>>;
// Kernel name -> the (dtype, head_dim) pairs compiled for it; head_dim 0 stands for every head_dim. Empty without CUDA.
KernelInstances compiled_instances();
// The architectures of the machine code, such as {"80", "90a"}; empty without CUDA.
std::vector<std::string> cuda_archs();

// Query rows of one tile of the prefill kernel that would serve these sizes, by which the caller cuts its q tiles.
constexpr int kDefaultQTileRows = 64;  // where there is no such kernel
int prefill_q_tile_rows(int n_heads, int n_kv_heads, int head_dim, DType dtype, int device_idx);

// ---- rotary_emb ----
// Rotates neighbouring pairs: out[2i] = x[2i] cos - x[2i+1] sin, out[2i+1] = x[2i] sin + x[2i+1] cos, in float32, rounded
// once (Su et al., RoFormer, 2021, eq. 34).
// x:     [T, H, D] or [B, S, H, D] bfloat16/float16, last dimension contiguous, other strides free
// freqs: float32 cos, sin of each pair: [T, R/2, 2], or for a 4-dimensional x [B*S, R/2, 2] or [B, S, R/2, 2]; the last
//        two dimensions contiguous. R is D, or less: elements from R on are copied as they are
// out:   like x; may be x itself, must not overlap it otherwise
// stream: a cudaStream_t of x's device
void rotary_emb(const TensorView& x, const TensorView& freqs, const TensorView& out, void* stream);

// ---- store_kv ----
// Copies row t of k and v into slot out_cache_loc[t] of the caches; a negative slot is skipped.
// k, v:             [T, H_kv, D] bfloat16/float16, the last two dimensions contiguous
// k_cache, v_cache: [n_slots, H_kv, D] the same dtype, the last two dimensions contiguous
// out_cache_loc:    [T] int32, each < n_slots (a larger one traps on the device) and, where not negative, different
void store_kv(const TensorView& k, const TensorView& v, const TensorView& k_cache, const TensorView& v_cache,
              const TensorView& out_cache_loc, void* stream);

// ---- checked arguments, which the launchers work from ----
// From here on not an interface: between astrai::core and astrai::cuda, it may change with any version.
struct RotaryEmbArgs {
  const void* x;             // [n_batch, n_seq, n_heads, head_dim]
  const float* freqs;        // [n_batch, n_seq, rotary_dim / 2, 2]
  void* out;                 // like x
  int64_t n_batch, n_seq;    // a 3-dimensional x is one batch entry
  int n_heads, head_dim, rotary_dim;
  int64_t x_strides[3];      // in elements: batch, token, head
  int64_t out_strides[3];
  int64_t freqs_strides[2];  // in elements: batch, token
  bool is_vectorizable;      // every row of x, freqs and out starts on 16 bytes
};
// Checks all but the device.
RotaryEmbArgs check_rotary_emb(const TensorView& x, const TensorView& freqs, const TensorView& out);

struct StoreKvArgs {
  const uint16_t *k, *v;         // [n_tokens, row_len] elements of 2 bytes
  uint16_t *k_cache, *v_cache;   // [n_slots, row_len]
  const int32_t* out_cache_loc;  // [n_tokens]
  int64_t n_tokens, n_slots;
  int row_len;                                 // n_kv_heads * head_dim
  int64_t k_stride, v_stride;                  // elements from token to token
  int64_t k_cache_stride, v_cache_stride;      // elements from slot to slot
  bool is_vectorizable;                        // every row starts on 16 bytes
};
// Checks all but the device.
StoreKvArgs check_store_kv(const TensorView& k, const TensorView& v, const TensorView& k_cache,
                           const TensorView& v_cache, const TensorView& out_cache_loc);

}  // namespace astrai
