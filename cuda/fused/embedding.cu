// embedding: checks, then one launch. Contract: <astrai/fused_ops.h>.
#include "fused/embedding.cuh"

#include "common/instances.cuh"

namespace astrai {
namespace {

template <int kVecLen>
void launch_embedding(const EmbeddingArgs& args, cudaStream_t stream) {
  const int64_t n_vecs = args.n_rows * (args.row_len / kVecLen);
  const auto n_blocks = static_cast<unsigned>((n_vecs + kEmbeddingThreads - 1) / kEmbeddingThreads);
  launch_overlapped<embedding_kernel<kVecLen>>("embedding", n_blocks, kEmbeddingThreads, 0, stream, args);
}

}  // namespace

void embedding(const TensorView& ids, const TensorView& table, const TensorView& out, void* stream) {
  const EmbeddingArgs args = check_embedding(ids, table, out);
  check_on_one_gpu("embedding", {{"ids", &ids}, {"table", &table}, {"out", &out}});
  if (out.numel() == 0) return;
  const DeviceGuard guard(out.device_idx, "embedding");
  if (args.is_vectorizable) {
    launch_embedding<8>(args, static_cast<cudaStream_t>(stream));
  } else {
    launch_embedding<1>(args, static_cast<cudaStream_t>(stream));
  }
}

}  // namespace astrai
