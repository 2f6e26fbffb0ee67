# bring_chromium: makes sure that the page's tests find a Chromium, and says how. Sourced by .ci/run.

bring_chromium() {
  local name
  for name in chromium chromium-browser google-chrome-stable google-chrome; do
    if command -v "$name" >/dev/null; then
      echo "chromium: $(command -v "$name")"
      return
    fi
  done
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "chromium: apt-get install chromium"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends chromium >/dev/null ||
      { apt-get update -q && apt-get install -y -q --no-install-recommends chromium >/dev/null; }
  else
    echo "chromium: none here and no right to install one; put a chromium on PATH"
    return 1
  fi
}
