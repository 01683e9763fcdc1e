#!/usr/bin/env bash
# Installs what is missing, builds, and trains on real data while processes are killed. Options go to
# tools/demo.py: see tools/demo.sh --help.
set -euo pipefail
cd "$(dirname "$0")/.."
# Help needs nothing.
for argument in "$@"; do
  case $argument in -h | --help) command -v python3 >/dev/null && exec python3 tools/demo.py --help ;; esac
done
# Standard output is the demo's: set-up and build talk on standard error.
tools/setup.sh >&2
tools/build.sh release recon-server recon-worker reconctl >&2
exec python3 tools/demo.py "$@"
