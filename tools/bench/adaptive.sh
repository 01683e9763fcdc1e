#!/usr/bin/env bash
# Whether --codec auto chooses well; see adaptive.py --help. Needs root and a release build (tools/build.sh release).
exec python3 "$(dirname "$0")/adaptive.py" "$@"
