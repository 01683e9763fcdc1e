#!/usr/bin/env bash
# PyTorch training over slow links with recon, DistributedDataParallel and torchft; see pytorch.py --help. Needs root and
# a release build (tools/build.sh release). All of it takes up to an hour on 2 cores that do nothing else.
set -euo pipefail
tools=$(dirname "$0")/..
case " $* " in
  *" --help "* | *" -h "*) ;;
  *)
    "$tools/setup.sh" --tests >&2
    python3 "$tools/torch_environment.py" --bench "$tools/../build/python"
    ;;
esac
exec python3 "$(dirname "$0")/pytorch.py" "$@"
