#!/usr/bin/env bash
# Step time of synchronous training over 1, 2 and 4 servers; see scale_out.py --help. Needs root and a release build
# (tools/build.sh release). Installs PyTorch, whose gloo it compares with, if that is missing and not switched off.
set -euo pipefail
case " $* " in
  *" --no-gloo "* | *" --help "* | *" -h "*) ;;
  *) "$(dirname "$0")/../setup.sh" --bench >&2 ;;
esac
exec python3 "$(dirname "$0")/scale_out.py" "$@"
