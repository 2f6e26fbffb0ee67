#!/usr/bin/env bash
# Whether a commit message begins with `AREA: what changes` in at most 72 columns; .pre-commit-config.yaml runs it.
set -euo pipefail

areas="core|cuda|bindings|kvcache|text|structured|extension|models|sampling|engine|server|cli|deploy|build|tests|docs|benchmarks"
subject=$(head -n 1 "$1")
case $subject in
  "Merge "* | "Revert "* | "fixup! "* | "squash! "*) exit 0 ;;
esac
if ! [[ $subject =~ ^($areas):\ .+ ]]; then
  echo "commit subject: '$subject' does not begin with an area: ${areas//|/, }"
  exit 1
fi
if [ ${#subject} -gt 72 ]; then
  echo "commit subject: ${#subject} columns; at most 72"
  exit 1
fi
