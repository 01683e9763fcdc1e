#!/usr/bin/env bash
# What staleness costs, and what corrections of it save; see staleness.py. Needs a release build.
exec python3 "$(dirname "$0")/staleness.py" "$@"
