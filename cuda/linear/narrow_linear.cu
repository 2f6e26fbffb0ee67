// narrow_linear: checks, the tiling, then one launch. Contract: <astrai/narrow_linear.h>.
#include "linear/narrow_linear.cuh"

#include <algorithm>

#include "astrai/error.h"
#include "common/carveout.cuh"
#include "common/instances.cuh"

namespace astrai {
namespace {

constexpr const char* kOp = "narrow_linear";
constexpr int kWholeBytes = 227 << 10;                 // of a block that has a multiprocessor for itself
constexpr int kHalfBytes = kWholeBytes / 2 - 1024;     // of one of two
constexpr int kMaxStages = 12;
constexpr int kFewPanels = 16, kFewTokens = 96;  // of a part that is over before the next kernel's start is hidden otherwise

int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

// Thread blocks of clusters of n_parts that the current device runs at once, each on a multiprocessor of its own. Larger
// clusters do not find all of them: those of four 120 of 132 (cudaOccupancyMaxActiveClusters on an H200).
int n_blocks_at_once(int n_parts) {
  int device_idx = 0, n_multiprocessors = 0;
  check_cuda(cudaGetDevice(&device_idx), kOp);
  check_cuda(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device_idx), kOp);
  return n_parts > 2 ? n_multiprocessors * 10 / 11 : n_multiprocessors;
}

// As many tiles as find a multiprocessor each, or two on one, so that all of them read at the same rate and end together.
int choose_tile_rows(const NarrowLinearArgs& args, int n_at_once) {
  for (const int n_blocks : {n_at_once, 2 * n_at_once}) {
    const int n_tiles = std::max(n_blocks / args.n_parts, 1);
    const int tile_rows = round_up((args.n_products + n_tiles - 1) / n_tiles, args.is_gated ? 16 : 8);
    if (tile_rows <= kNarrowMaxTileRows) return tile_rows;
  }
  return kNarrowMaxTileRows;
}

int fitting_stages(const NarrowTiling& tiling, int tokens, int most, int limit) {
  NarrowTiling tried = tiling;
  for (tried.n_stages = most; tried.n_stages > 0; --tried.n_stages) {
    if (NarrowMemory::size(tried, tokens) <= limit) break;
  }
  return tried.n_stages;
}

// A block takes half of a multiprocessor's memory where two have to share it, where half is enough, and where its part is
// short: the next kernel's blocks may then come while this one's end (benchmarks/results/narrow_linear.md).
NarrowTiling choose_tiling(const NarrowLinearArgs& args, int tokens, int n_row_tiles) {
  const int n_at_once = n_blocks_at_once(args.n_parts);
  NarrowTiling tiling{choose_tile_rows(args, n_at_once), args.n_parts, 0};
  const int n_columns = args.is_gated ? tiling.tile_rows / 2 : tiling.tile_rows;
  const int64_t n_blocks = static_cast<int64_t>((args.n_out + n_columns - 1) / n_columns) * args.n_parts * n_row_tiles;
  const int n_panels = (args.row_len + kNarrowInner - 1) / kNarrowInner;
  const int n_steps = (n_panels + args.n_parts - 1) / args.n_parts, most = std::min(n_steps, kMaxStages);
  const bool is_short = n_steps <= kFewPanels && tokens <= kFewTokens;
  tiling.n_stages = fitting_stages(tiling, tokens, most, kHalfBytes);
  if (tiling.n_stages == 0 || (n_blocks <= n_at_once && !is_short && tiling.n_stages < most)) {
    tiling.n_stages = fitting_stages(tiling, tokens, most, kWholeBytes);
  }
  return tiling;
}

template <typename T, int kTokens, int kGroups>
void launch(const NarrowLinearArgs& args, const NarrowTiling& tiling, int n_row_tiles, cudaStream_t stream) {
  constexpr auto kKernel = narrow_linear_kernel<T, kTokens, kGroups>;
  prefer_shared_memory<kKernel>(kOp);
  check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeBytes), kOp);
  const int n_panel_rows = args.is_gated ? tiling.tile_rows / 2 : tiling.tile_rows;
  const int n_tiles = (args.n_out + n_panel_rows - 1) / n_panel_rows;
  NarrowMaps maps{};
  maps.weight = panel_map<T>(kOp, args.weight, args.n_products, args.row_len, args.weight_stride, n_panel_rows);
  maps.x = panel_map<T>(kOp, args.x, args.n_rows, args.row_len, args.x_stride, kTokens);
  const dim3 grid(static_cast<unsigned>(n_tiles * tiling.n_parts), static_cast<unsigned>(n_row_tiles));
  const auto shared_bytes = static_cast<size_t>(NarrowMemory::size(tiling, kTokens));
  launch_clusters<kKernel>(kOp, tiling.n_parts, grid, kNarrowThreads<kGroups>, shared_bytes, stream, args, tiling, maps);
}

template <typename T, int kTokens>
void launch_tokens(const NarrowLinearArgs& args, cudaStream_t stream) {
  const int n_row_tiles = (args.n_rows + kTokens - 1) / kTokens;
  const NarrowTiling tiling = choose_tiling(args, kTokens, n_row_tiles);
  tiling.tile_rows > 64 ? launch<T, kTokens, 2>(args, tiling, n_row_tiles, stream)
                        : launch<T, kTokens, 1>(args, tiling, n_row_tiles, stream);
}

// Rows of x in as few tiles as possible, all of about one height.
template <typename T>
void launch_for(const NarrowLinearArgs& args, cudaStream_t stream) {
  const int n_row_tiles = (args.n_rows + 127) / 128, tokens = (args.n_rows + n_row_tiles - 1) / n_row_tiles;
  if (tokens <= 32) {
    launch_tokens<T, 32>(args, stream);
  } else if (tokens <= 64) {
    launch_tokens<T, 64>(args, stream);
  } else if (tokens <= 96) {
    launch_tokens<T, 96>(args, stream);
  } else {
    launch_tokens<T, 128>(args, stream);
  }
}

bool has_wgmma(int device_idx) {
#ifdef ASTRAI_HAS_SM90A
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_idx), kOp);
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_idx), kOp);
  return major == 9 && minor == 0;
#else
  static_cast<void>(device_idx);
  return false;
#endif
}

}  // namespace

void narrow_linear(const NarrowLinearTensors& tensors, const std::optional<TensorView>& bias, SkinnyOutput output,
                   void* stream) {
  const NarrowLinearArgs args = check_narrow_linear(tensors, bias, output);
  const TensorView& weight = tensors.weight;
  check_on_one_gpu(kOp, {{"x", &tensors.x}, {"weight", &weight}, {"out", &tensors.out}});
  if (bias) check_on_one_gpu(kOp, {{"x", &tensors.x}, {"bias", &*bias}});
  if (!has_wgmma(weight.device_idx)) {
    throw KernelUnavailableError("narrow_linear: needs a GPU of compute capability 9.0 and a build for 90a");
  }
  if (tensors.out.numel() == 0) return;
  const DeviceGuard guard(weight.device_idx, kOp);
  const auto on = static_cast<cudaStream_t>(stream);
  weight.dtype == DType::kBFloat16 ? launch_for<__nv_bfloat16>(args, on) : launch_for<__half>(args, on);
}

}  // namespace astrai
