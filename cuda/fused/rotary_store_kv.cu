// rotary_store_kv: checks, then one launch. Contract: <astrai/fused_ops.h>.
#include "fused/rotary_store_kv.cuh"

#include "common/carveout.cuh"
#include "common/instances.cuh"

namespace astrai {
namespace {

// Heads from which runs of several still fill every multiprocessor.
constexpr int64_t kManyHeads = 32768;

template <typename T, bool kHasNorm, int kHeads>
void launch_runs(const RotaryStoreKvArgs& args, cudaStream_t stream) {
  unsigned n_lanes = 1;
  while (n_lanes * 8 < static_cast<unsigned>(args.head_dim)) n_lanes *= 2;
  const RotaryStoreRuns runs{head_runs(args.n_heads, kHeads), head_runs(args.n_kv_heads, kHeads)};
  const int64_t n_runs = args.n_tokens * (runs.q.n_runs + 2 * runs.kv.n_runs);
  const dim3 block(n_lanes, kRotaryStoreThreads / n_lanes);
  const auto n_blocks = static_cast<unsigned>((n_runs + block.y - 1) / block.y);
  prefer_shared_memory<rotary_store_kv_kernel<T, kHasNorm, kHeads>>("rotary_store_kv");  // attention is next
  launch_overlapped<rotary_store_kv_kernel<T, kHasNorm, kHeads>>("rotary_store_kv", n_blocks, block, 0, stream, args, runs);
}

template <typename T, bool kHasNorm>
void launch(const RotaryStoreKvArgs& args, cudaStream_t stream) {
  if (args.n_tokens * (args.n_heads + 2 * args.n_kv_heads) >= kManyHeads) {
    launch_runs<T, kHasNorm, 4>(args, stream);
  } else {
    launch_runs<T, kHasNorm, 1>(args, stream);
  }
}

}  // namespace

void rotary_store_kv(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& freqs,
                     const TensorView& k_cache, const TensorView& v_cache, const TensorView& out_cache_loc,
                     const TensorView& q_out, const std::optional<TensorView>& positions,
                     const std::optional<TensorView>& q_norm, const std::optional<TensorView>& k_norm, float eps,
                     void* stream) {
  const RotaryStoreKvArgs args = check_rotary_store_kv(q, k, v, freqs, k_cache, v_cache, out_cache_loc, q_out, positions,
                                                       q_norm, k_norm, eps);
  const char* op = "rotary_store_kv";
  check_on_one_gpu(op, {{"q", &q},
                        {"k", &k},
                        {"v", &v},
                        {"freqs", &freqs},
                        {"k_cache", &k_cache},
                        {"v_cache", &v_cache},
                        {"out_cache_loc", &out_cache_loc},
                        {"q_out", &q_out}});
  if (positions) check_on_one_gpu(op, {{"q", &q}, {"positions", &*positions}});
  if (q_norm) check_on_one_gpu(op, {{"q", &q}, {"q_norm", &*q_norm}, {"k_norm", &*k_norm}});
  if (q.numel() + k.numel() == 0) return;
  const DeviceGuard guard(q.device_idx, op);
  const auto on = static_cast<cudaStream_t>(stream);
  if (q.dtype == DType::kBFloat16) {
    q_norm ? launch<__nv_bfloat16, true>(args, on) : launch<__nv_bfloat16, false>(args, on);
  } else {
    q_norm ? launch<__half, true>(args, on) : launch<__half, false>(args, on);
  }
}

}  // namespace astrai
