# bring_cuda_toolkit FOLDER VERSION: installs CUDA's compiler, such as 13.0, from NVIDIA's Python packages into FOLDER and sets
# CUDACXX. Packages hold the whole compiler from CUDA 13 on. Sourced by the workflows; needs a python3 with pip.

bring_cuda_toolkit() {
  python3 -m pip install -q --target "$1" "cuda-toolkit[nvcc,cudart,crt,nvvm,cccl]==$2.*"
  export CUDACXX=$1/nvidia/cu${2%%.*}/bin/nvcc
  ln -sfn lib "$1/nvidia/cu${2%%.*}/lib64"  # where nvcc looks for the run time
  "$CUDACXX" --version | tail -n 2
}
