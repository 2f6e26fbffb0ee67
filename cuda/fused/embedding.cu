// embedding: checks, then one launch. Contract: <astrai/fused_ops.h>.
#include "fused/embedding.cuh"

#include "common/instances.cuh"

namespace astrai {
namespace {

constexpr int64_t kManyVectors = 1 << 19;  // from here on several a thread still fill every multiprocessor

template <int kVecLen, int kVecs>
void launch_embedding(const EmbeddingArgs& args, cudaStream_t stream) {
  constexpr int kVecsABlock = kEmbeddingThreads * kVecs;
  const int64_t n_vecs = args.n_rows * (args.row_len / kVecLen);
  const auto n_blocks = static_cast<unsigned>((n_vecs + kVecsABlock - 1) / kVecsABlock);
  launch_overlapped<embedding_kernel<kVecLen, kVecs>>("embedding", n_blocks, kEmbeddingThreads, 0, stream, args);
}

}  // namespace

void embedding(const TensorView& ids, const TensorView& table, const TensorView& out, void* stream) {
  const EmbeddingArgs args = check_embedding(ids, table, out);
  check_on_one_gpu("embedding", {{"ids", &ids}, {"table", &table}, {"out", &out}});
  if (out.numel() == 0) return;
  const DeviceGuard guard(out.device_idx, "embedding");
  const auto on = static_cast<cudaStream_t>(stream);
  if (!args.is_vectorizable) {
    launch_embedding<1, 1>(args, on);
  } else if (args.n_rows * args.row_len / 8 < kManyVectors) {
    launch_embedding<8, 1>(args, on);
  } else {
    launch_embedding<8, 4>(args, on);
  }
}

}  // namespace astrai
