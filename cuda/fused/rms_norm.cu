// rms_norm and add_rms_norm: checks, then the kernel that fits the row. Contract: <astrai/fused_ops.h>.
#include "fused/rms_norm.cuh"

#include <algorithm>

#include "common/instances.cuh"

namespace astrai {
namespace {

constexpr int kSmallBlock = 128;  // threads of a block that holds several rows

template <typename T, int kVecs, bool kAdd>
void launch_in_registers(const char* op, const RmsNormArgs& args, int n_lanes, cudaStream_t stream) {
  const int n_rows_a_block = n_lanes > kWarpSize ? 1 : kSmallBlock / n_lanes;
  const auto n_blocks = static_cast<unsigned>((args.n_rows + n_rows_a_block - 1) / n_rows_a_block);
  launch_overlapped<rms_norm_kernel<T, kVecs, kAdd>>(op, n_blocks, dim3(n_lanes, n_rows_a_block), 0, stream, args);
}

int round_up_to_warps(int n_threads) { return (n_threads + kWarpSize - 1) / kWarpSize * kWarpSize; }

// Rows from which fewer threads a row, each with several vectors, still fill every multiprocessor.
constexpr int64_t kManyRows = 2048;

template <typename T, bool kAdd>
void launch_rms_norm(const char* op, const RmsNormArgs& args, cudaStream_t stream) {
  const int n_vecs = args.row_len / 8;
  const auto lanes_for = [&](int n_vecs_a_thread) {
    return round_up_to_warps((n_vecs + n_vecs_a_thread - 1) / n_vecs_a_thread);
  };
  if (!args.is_vectorizable || n_vecs > 4 * kNormMaxThreads) {
    const int n_threads = std::min(round_up_to_warps(args.row_len), 512);
    launch_overlapped<rms_norm_loop_kernel<T, kAdd>>(op, static_cast<unsigned>(args.n_rows), n_threads, 0, stream, args);
  } else if (n_vecs <= kWarpSize) {
    // A short row, such as a head, takes the lanes that rotary_store_kv gives it: both then sum in the same order.
    int n_lanes = 1;
    while (n_lanes < n_vecs) n_lanes *= 2;
    launch_in_registers<T, 1, kAdd>(op, args, n_lanes, stream);
  } else if (n_vecs <= (kAdd ? kNormMaxThreads : 4 * kWarpSize) && (kAdd || args.n_rows < kManyRows)) {
    launch_in_registers<T, 1, kAdd>(op, args, lanes_for(1), stream);
  } else if (n_vecs <= 2 * kNormMaxThreads && args.n_rows < kManyRows) {
    launch_in_registers<T, 2, kAdd>(op, args, lanes_for(2), stream);
  } else {
    launch_in_registers<T, 4, kAdd>(op, args, lanes_for(4), stream);
  }
}

template <bool kAdd>
void launch(const char* op, DType dtype, const RmsNormArgs& args, int device_idx, void* stream) {
  if (args.n_rows == 0 || args.row_len == 0) return;
  const DeviceGuard guard(device_idx, op);
  const auto on = static_cast<cudaStream_t>(stream);
  if (dtype == DType::kBFloat16) {
    launch_rms_norm<__nv_bfloat16, kAdd>(op, args, on);
  } else {
    launch_rms_norm<__half, kAdd>(op, args, on);
  }
}

}  // namespace

void rms_norm(const TensorView& x, const TensorView& weight, const TensorView& out, float eps, void* stream) {
  const RmsNormArgs args = check_rms_norm(x, weight, out, eps);
  check_on_one_gpu("rms_norm", {{"x", &x}, {"weight", &weight}, {"out", &out}});
  launch<false>("rms_norm", x.dtype, args, x.device_idx, stream);
}

void add_rms_norm(const TensorView& x, const TensorView& residual, const TensorView& weight, const TensorView& out,
                  float eps, void* stream) {
  const RmsNormArgs args = check_add_rms_norm(x, residual, weight, out, eps);
  check_on_one_gpu("add_rms_norm", {{"x", &x}, {"residual", &residual}, {"weight", &weight}, {"out", &out}});
  launch<true>("add_rms_norm", x.dtype, args, x.device_idx, stream);
}

}  // namespace astrai
