#!/usr/bin/env bash
# How policies compare; see policies.py. Needs root, and a release build.
exec python3 "$(dirname "$0")/policies.py" "$@"
