#!/usr/bin/env bash
# Collectives beside gloo's, over links of 1 Gbit/s and on loopback; see collectives.py --help. Needs root and a release
# build (tools/build.sh release).
set -euo pipefail
case " $* " in
  *" --help "* | *" -h "*) ;;
  *) "$(dirname "$0")/../setup.sh" --tests >&2 ;;
esac
exec python3 "$(dirname "$0")/collectives.py" "$@"
