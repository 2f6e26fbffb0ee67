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
constexpr int kMaxStages = 12, kMinStages = 2;
constexpr int kFewPanels = 16;  // of a part that is over before the next kernel's start is hidden otherwise
constexpr int kFewTokens = 32;  // of a tile of x, where blocks of large clusters still share a multiprocessor well
constexpr int kMaxGroups = 3;   // warpgroups of a block
constexpr int kMostTokens = 128, kTokensUnit = 32;  // of a tile of x

int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

// Thread blocks of clusters of n_parts that the current device runs at once, each on a multiprocessor of its own. Larger
// clusters do not find all of them: those of four 120 of 132 (cudaOccupancyMaxActiveClusters on an H200).
int n_blocks_at_once(int n_parts) {
  int device_idx = 0, n_multiprocessors = 0;
  check_cuda(cudaGetDevice(&device_idx), kOp);
  check_cuda(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device_idx), kOp);
  return n_parts > 2 ? n_multiprocessors * 10 / 11 : n_multiprocessors;
}

// How the work is cut: rows of the weight a block, and tiles of rows of x.
struct NarrowCut {
  int tile_rows, n_row_tiles;
};

int n_blocks_of(const NarrowLinearArgs& args, const NarrowCut& cut) {
  const int n_columns = args.is_gated ? cut.tile_rows / 2 : cut.tile_rows;
  return (args.n_out + n_columns - 1) / n_columns * args.n_parts * cut.n_row_tiles;
}

int n_steps_of(const NarrowLinearArgs& args) {
  const int n_panels = (args.row_len + kNarrowInner - 1) / kNarrowInner;
  return (n_panels + args.n_parts - 1) / args.n_parts;
}

// Short parts: whole warpgroups, of which one reads and multiplies while another starts or ends. Two blocks of one warpgroup
// share a multiprocessor well, but not those of large clusters. Larger blocks take one each, with one tile of x more where
// that finds one too.
NarrowCut cut_short_parts(const NarrowLinearArgs& args, int n_at_once, int n_row_tiles) {
  const int n_most = args.n_parts > 2 ? n_at_once : 2 * n_at_once;
  if (NarrowCut cut{64, n_row_tiles}; n_blocks_of(args, cut) <= n_most) return cut;
  for (int n_groups = 2; n_groups <= kMaxGroups; ++n_groups) {
    const int n_fitting = n_at_once / n_blocks_of(args, {n_groups * 64, 1});
    if (n_fitting >= n_row_tiles) return {n_groups * 64, std::min(n_fitting, n_row_tiles + 1)};
  }
  return {128, n_row_tiles};
}

// As many tiles as find a multiprocessor each, or two on one, so that all of them read at the same rate and end together.
NarrowCut cut_long_parts(const NarrowLinearArgs& args, int n_at_once, int n_row_tiles) {
  for (const int n_blocks : {n_at_once, 2 * n_at_once}) {
    const int n_tiles = std::max(n_blocks / args.n_parts, 1);
    const int tile_rows = round_up((args.n_products + n_tiles - 1) / n_tiles, args.is_gated ? 16 : 8);
    if (tile_rows <= 128) return {tile_rows, n_row_tiles};
  }
  return {128, n_row_tiles};
}

template <int kTokens, int kParts>
int fitting_stages(int tile_rows, int most, int limit) {
  NarrowTiling tried{tile_rows, most};
  while (tried.n_stages >= kMinStages && NarrowMemory<kTokens, kParts>::size(tried) > limit) --tried.n_stages;
  return tried.n_stages >= kMinStages ? tried.n_stages : 0;
}

// A block takes half of a multiprocessor's memory where two have to share it, where half is enough, and where its part is
// short: the next kernel's blocks may then come while this one's end (benchmarks/results/narrow_linear.md).
template <int kTokens, int kParts>
NarrowTiling choose_tiling(const NarrowLinearArgs& args, const NarrowCut& cut, int n_at_once) {
  const int n_steps = n_steps_of(args), most = std::clamp(n_steps, kMinStages, kMaxStages);
  const bool is_short = n_steps <= kFewPanels && cut.tile_rows <= 64 && (kParts <= 2 || kTokens <= kFewTokens);
  int n_stages = fitting_stages<kTokens, kParts>(cut.tile_rows, most, kHalfBytes);
  if (n_stages == 0 || (n_blocks_of(args, cut) <= n_at_once && !is_short && n_stages < most)) {
    n_stages = fitting_stages<kTokens, kParts>(cut.tile_rows, most, kWholeBytes);
  }
  return {cut.tile_rows, n_stages};
}

template <typename T, int kTokens, int kParts>
void launch(const NarrowLinearArgs& args, const NarrowCut& cut, int n_at_once, cudaStream_t stream) {
  constexpr auto kKernel = narrow_linear_kernel<T, kTokens, kParts>;
  prefer_shared_memory<kKernel>(kOp);
  check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeBytes), kOp);
  const NarrowTiling tiling = choose_tiling<kTokens, kParts>(args, cut, n_at_once);
  const int n_panel_rows = args.is_gated ? tiling.tile_rows / 2 : tiling.tile_rows;
  NarrowMaps maps{};
  maps.weight = panel_map<T>(kOp, args.weight, args.n_products, args.row_len, args.weight_stride, n_panel_rows);
  maps.x = panel_map<T>(kOp, args.x, args.n_rows, args.row_len, args.x_stride, kTokens / kParts);
  const dim3 grid(static_cast<unsigned>(n_blocks_of(args, {tiling.tile_rows, 1})), static_cast<unsigned>(cut.n_row_tiles));
  const auto shared_bytes = static_cast<size_t>(NarrowMemory<kTokens, kParts>::size(tiling));
  launch_clusters<kKernel>(kOp, kParts, grid, tiling.n_groups() * 128 + kWarpSize, shared_bytes, stream, args, tiling, maps);
}

template <typename T, int kTokens>
void launch_tokens(const NarrowLinearArgs& args, const NarrowCut& cut, int n_at_once, cudaStream_t stream) {
  switch (args.n_parts) {
    case 1: return launch<T, kTokens, 1>(args, cut, n_at_once, stream);
    case 2: return launch<T, kTokens, 2>(args, cut, n_at_once, stream);
    default: return launch<T, kTokens, 4>(args, cut, n_at_once, stream);
  }
}

// Rows of x in as few tiles as possible, or one more, all of about one height.
template <typename T>
void launch_for(const NarrowLinearArgs& args, cudaStream_t stream) {
  const int n_at_once = n_blocks_at_once(args.n_parts), n_row_tiles = (args.n_rows + kMostTokens - 1) / kMostTokens;
  const auto cut_parts = n_steps_of(args) <= kFewPanels ? cut_short_parts : cut_long_parts;
  NarrowCut cut = cut_parts(args, n_at_once, n_row_tiles);
  const int tokens = round_up((args.n_rows + cut.n_row_tiles - 1) / cut.n_row_tiles, kTokensUnit);
  cut.n_row_tiles = (args.n_rows + tokens - 1) / tokens;
  switch (tokens) {
    case 32: return launch_tokens<T, 32>(args, cut, n_at_once, stream);
    case 64: return launch_tokens<T, 64>(args, cut, n_at_once, stream);
    case 96: return launch_tokens<T, 96>(args, cut, n_at_once, stream);
    default: return launch_tokens<T, kMostTokens>(args, cut, n_at_once, stream);
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
