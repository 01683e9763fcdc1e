#!/usr/bin/env bash
# PyTorch training over slow links with recon and with DistributedDataParallel; see pytorch.py --help. Needs root and a
# release build (tools/build.sh release). All of it takes about 40 minutes on 2 cores that do nothing else.
set -euo pipefail
case " $* " in
  *" --help "* | *" -h "*) ;;
  *) "$(dirname "$0")/../setup.sh" --tests >&2 ;;
esac
exec python3 "$(dirname "$0")/pytorch.py" "$@"
