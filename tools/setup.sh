#!/usr/bin/env bash
# Installs what recon needs to build, test and run on Debian 12. Installs only what is missing; safe to run
# again. Works as root and, for anybody else, through sudo. With --tests: what only tests need, too, among it PyTorch
# (RECON_PYTHON=/path/to/python names one that has it); with --bench: what measurements compare with.
set -euo pipefail
case ${1:-} in
  "" | --tests | --bench) ;;
  -h | --help) sed -n '2,4s/^# //p' "$0" && exit 0 ;;
  *) echo "setup: no option $1; there are --tests and --bench" >&2 && exit 2 ;;
esac

packages=(
  # Building
  build-essential cmake ninja-build ccache pkg-config clang clang-format clang-tidy libclang-rt-14-dev
  # The Python package (pip install .), and packages of PyPI for the tests, in an environment of their own
  # (torch_environment.py)
  python3 python3-dev python3-venv ca-certificates
  # Libraries
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev librocksdb-dev libzstd-dev
  libxxhash-dev libucx-dev libhwy-dev libopenblas-pthread-dev zlib1g-dev libzip-dev libcli11-dev libspdlog-dev libfmt-dev
  libcurl4-openssl-dev libssl-dev libpugixml-dev nlohmann-json3-dev prometheus-cpp-dev libmicrohttpd-dev libgnutls28-dev libjs-dygraphs libcivetweb-dev catch2
  # The demo's data; certificates and a full disk for the tests
  dataset-fashion-mnist openssl mount util-linux procps
  # Network namespaces for measurements (tools/bench)
  iproute2 ethtool
)

# For tests only: OpenStack Swift, whose S3 API is a real server for s3:// stores; a browser without a screen (100 MB) for the
# dashboard; and Slurm, of which tests start a cluster of their own.
if [ "${1:-}" = --tests ]; then
  packages+=(python3-swift chromium-headless-shell slurm-wlm munge)
fi

# For measurements only.
if [ "${1:-}" = --bench ]; then
  packages+=(python3-torch python3-numpy python3-matplotlib)
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: these packages are missing and need root to install: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ "${1:-}" = --tests ]; then
  python3 "$(dirname "$0")/torch_environment.py" "$(dirname "$0")/../build/python"
fi
echo "setup: everything is installed"
