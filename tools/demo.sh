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
targets=(recon-server recon-worker reconctl)
case " $* " in
  *" --scenario pytorch "* | *" --scenario=pytorch "*)
    # PyTorch, from PyPI where this machine has none, and the Python package.
    tools/setup.sh --tests >&2
    targets+=(recon_core) ;;
  *) tools/setup.sh >&2 ;;
esac
tools/build.sh release "${targets[@]}" >&2
exec python3 tools/demo.py "$@"
