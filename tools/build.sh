#!/usr/bin/env bash
# Configures and builds one preset: tools/build.sh PRESET [TARGET...]. Prints the log only when it fails.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
targets=()
[ $# -gt 0 ] && targets=(--target "$@")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "build: $preset"
start=$SECONDS
if ! { cmake --preset "$preset" && cmake --build --preset "$preset" "${targets[@]}"; } >"$log" 2>&1; then
  grep -E 'error|FAILED|warning:' "$log" | head -n 50 | cut -c 1-500 || true
  tail -n 15 "$log" | cut -c 1-500
  echo "build: $preset failed" >&2
  exit 1
fi
echo "build: $preset done in $((SECONDS - start)) s"
