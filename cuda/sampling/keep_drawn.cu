// keep_drawn: the ids that were drawn go where the next step reads them, and into the lists of penalties. One small thread
// block a row. Contract: <astrai/sampling_ops.h>.
#include "astrai/sampling_ops.h"
#include "common/instances.cuh"
#include "common/pdl.cuh"

namespace astrai {
namespace {

constexpr int kKeepThreads = 128;

__device__ __forceinline__ bool has_penalties(const LogitEdits& edits, int list) {
  const float* penalties = edits.penalties + 3 * list;
  return penalties[0] != 1.0f || penalties[1] != 0.0f || penalties[2] != 0.0f;
}

// All threads of the block count one token more in a list.
__device__ __forceinline__ void count_token(const LogitEdits& edits, int list, int token_id) {
  __shared__ int found;  // entry of the token, len where there is none
  const int begin = list * edits.capacity, len = min(edits.lens[list], edits.capacity);
  if (threadIdx.x == 0) found = len;
  __syncthreads();
  for (int entry = static_cast<int>(threadIdx.x); entry < len; entry += kKeepThreads) {
    if (edits.ids[begin + entry] == token_id) found = entry;  // ids differ, so that one thread writes
  }
  __syncthreads();
  if (threadIdx.x != 0 || found == edits.capacity) return;
  const int at = begin + found;
  if (found < len) {
    edits.counts[at] = fmaxf(edits.counts[at], 0.0f) + 1.0f;
    return;
  }
  edits.ids[at] = token_id;
  edits.bias[at] = 0.0f;
  edits.counts[at] = 1.0f;
  edits.lens[list] = len + 1;
}

__global__ void __launch_bounds__(kKeepThreads) keep_drawn_kernel(const __grid_constant__ KeepDrawnArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  wait_for_previous_kernel();
  const int token_id = args.token_ids[row], place = args.rows[row];
  if (threadIdx.x == 0 && place >= 0 && place < args.n_places) args.last_ids[place] = token_id;
  if (args.edits.rows == nullptr || args.is_faulty[row] != 0) return;
  const int list = args.edits.rows[row];
  if (list < 0 || list >= args.edits.n_lists || !has_penalties(args.edits, list)) return;
  count_token(args.edits, list, token_id);
}

}  // namespace

void keep_drawn(const TensorView& token_ids, const TensorView& is_faulty, const TensorView& rows,
                const TensorView& last_ids, const std::optional<LogitEditTensors>& edits, void* stream) {
  const KeepDrawnArgs args = check_keep_drawn(token_ids, is_faulty, rows, last_ids, edits);
  check_on_one_gpu("keep_drawn", {{"token_ids", &token_ids},
                                  {"is_faulty", &is_faulty},
                                  {"rows", &rows},
                                  {"last_ids", &last_ids}});
  if (edits) {
    check_on_one_gpu("keep_drawn", {{"token_ids", &token_ids},
                                    {"edit_rows", &edits->rows},
                                    {"edit_lens", &edits->lens},
                                    {"edit_ids", &edits->ids},
                                    {"edit_bias", &edits->bias},
                                    {"edit_counts", &edits->counts},
                                    {"penalties", &edits->penalties}});
  }
  if (args.batch == 0) return;
  const DeviceGuard guard(token_ids.device_idx, "keep_drawn");
  launch_overlapped<keep_drawn_kernel>("keep_drawn", args.batch, kKeepThreads, 0, static_cast<cudaStream_t>(stream), args);
}

}  // namespace astrai
