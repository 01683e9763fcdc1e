#!/usr/bin/env bash
# Step time of synchronous training over 1, 2 and 4 servers; see scale_out.py --help. Needs root, a release build
# (tools/build.sh release) and, for the comparison with gloo, `tools/setup.sh --bench`.
exec python3 "$(dirname "$0")/scale_out.py" "$@"
