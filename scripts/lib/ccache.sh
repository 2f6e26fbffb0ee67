# bring_ccache FOLDER: makes CMake compile C++ through a compiler cache in FOLDER, where there is one, and says how.
# The builds of one run share most of their C++ files, and no CUDA ones. Sourced by .ci/run.

bring_ccache() {
  if ! command -v ccache >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q ccache >/dev/null ||
      { apt-get update -q >/dev/null && apt-get install -y -q ccache >/dev/null; } || true
  fi
  if ! command -v ccache >/dev/null; then
    echo "ccache: none here; each build compiles everything"
    return
  fi
  # Sources count relative to the build folder, so that an unpacked sdist finds what the checkout compiled.
  export CCACHE_DIR=$1 CCACHE_BASEDIR=$PWD/cpp
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
  echo "ccache: $(command -v ccache)"
}
