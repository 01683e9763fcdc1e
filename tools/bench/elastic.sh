#!/usr/bin/env bash
# What leaving, coming back and a server's death cost in accuracy; see elastic.py. Needs a release build.
exec python3 "$(dirname "$0")/elastic.py" "$@"
