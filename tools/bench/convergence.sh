#!/usr/bin/env bash
# What compression costs in accuracy; see convergence.py --help. Needs a release build (tools/build.sh release).
exec python3 "$(dirname "$0")/convergence.py" "$@"
