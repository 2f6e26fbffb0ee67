#!/usr/bin/env bash
# The GPU operations and the engine on a machine with a GPU, nvcc, torch, pybind11, scikit-build-core, safetensors and
# tokenizers: builds the package for that GPU, runs the tests marked gpu of operations, sampler, decoder and engine, measures
# the operations, and writes a .json and a .md of each benchmark.
#   scripts/gpu_check.sh FOLDER COMMIT
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: scripts/gpu_check.sh FOLDER COMMIT}
commit=${2:?usage: scripts/gpu_check.sh FOLDER COMMIT}
python=${PYTHON:-python3}
build=$PWD/build/gpu_check
mkdir -p "$folder" "$build"

echo "== build"
rm -rf "$build/site"
ASTRAI_WITH_CUDA=ON "$python" -m pip install . -v --no-build-isolation --no-deps --no-index --target "$build/site" \
  --config-settings=build-dir="$build/cmake" > "$build/install.log" 2>&1 || { tail -n 60 "$build/install.log"; exit 1; }
grep -m 1 'astrai: CUDA kernels' "$build/install.log"
"$python" scripts/compile_times "$build/cmake" --above 3
export PYTHONPATH="$build/site"

echo "== tests"
"$python" -m pytest -q -p no:cacheprovider -m "gpu and not model" tests/python/ops \
  tests/python/sampling/test_device_sampler.py tests/python/models/test_decoder_gpu.py tests/python/models/test_experts_gpu.py \
  tests/python/engine/test_engine_gpu.py

echo "== measurements"
for benchmark in elementwise sampling eager bench_moe; do
  "$python" "benchmarks/kernels/$benchmark.py" --out "$folder" --commit "$commit"
done
