#!/usr/bin/env bash
# Prints the environment with which cibuildwheel builds $ASTRAI_VARIANT, one NAME=VALUE a line; .github/workflows/release.yml
# reads it. IMAGE names a manylinux image with a CUDA toolkit, which NEEDS_IMAGE=yes asks for; without one: ASTRAI_SKIP=yes.
set -euo pipefail

if [ "${NEEDS_IMAGE:-no}" = yes ] && [ -z "${IMAGE:-}" ]; then
  echo "ASTRAI_SKIP=yes"
  echo "::notice::no image with a toolkit is set for $ASTRAI_VARIANT; it is left out" >&2
elif [ "${NEEDS_IMAGE:-no}" = yes ]; then
  echo "ASTRAI_WITH_CUDA=ON"
  echo "CUDACXX=/usr/local/cuda/bin/nvcc"
  echo "CIBW_MANYLINUX_X86_64_IMAGE=$IMAGE"
elif [ "$ASTRAI_VARIANT" = cu130 ] || { [ "$ASTRAI_VARIANT" = pypi ] && [ "$(uname -m)" = x86_64 ]; }; then
  echo "ASTRAI_WITH_CUDA=ON"
  echo "CUDACXX=/opt/cuda/nvidia/cu13/bin/nvcc"
  echo "CIBW_BEFORE_ALL=. scripts/lib/cuda_toolkit.sh && PATH=/opt/python/cp312-cp312/bin:\$PATH bring_cuda_toolkit /opt/cuda 13.0"
else
  echo "ASTRAI_WITH_CUDA=OFF"
fi
