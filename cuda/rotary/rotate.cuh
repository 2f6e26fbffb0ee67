// What rotary_emb and rotary_store_kv share, so that both give the same bits: the rotation of a vector of pairs, and how the
// heads of a token are cut into runs. A run's threads load the token's angles once for all of its heads.
#pragma once

#include "common/vec.cuh"

namespace astrai {

// values: n pairs (x0, x1), ...; table: cos, sin of each. In float32, rounded once.
template <int kPairs, typename T>
__device__ __forceinline__ void rotate_pairs(T* values, const float* table) {
#pragma unroll
  for (int e = 0; e < 2 * kPairs; e += 2) {
    const float even = to_float(values[e]), odd = to_float(values[e + 1]);
    values[e] = from_float<T>(even * table[e] - odd * table[e + 1]);
    values[e + 1] = from_float<T>(even * table[e + 1] + odd * table[e]);
  }
}

// The heads of a token in runs of nearly equal length.
struct HeadRuns {
  int n_runs;
  int n_heads;  // of every run but perhaps the last
};

inline HeadRuns head_runs(int n_heads, int max_heads_a_run) {
  const int n_runs = (n_heads + max_heads_a_run - 1) / max_heads_a_run;
  return {n_runs, n_runs == 0 ? 0 : (n_heads + n_runs - 1) / n_runs};
}

}  // namespace astrai
