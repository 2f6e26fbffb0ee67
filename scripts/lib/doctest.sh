# bring_doctest: makes sure that CMake finds doctest, and says how. Sourced by scripts/test and .ci/run.

bring_doctest() {
  local probe
  probe=$(mktemp -d)
  if (cd "$probe" && cmake --find-package -DNAME=doctest -DCOMPILER_ID=GNU -DLANGUAGE=CXX -DMODE=EXIST) >/dev/null 2>&1; then
    echo "doctest: found on this machine"
  elif command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "doctest: apt-get install doctest-dev"
    apt-get install -y -q doctest-dev || { apt-get update -q && apt-get install -y -q doctest-dev; }
  else
    echo "doctest: no package here and no right to install one; CMake will fetch its source"
  fi
  rm -rf "$probe"
}
