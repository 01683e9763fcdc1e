#!/usr/bin/env bash
# Installs what recon needs to build, test and run on Debian 12. Installs only what is missing; safe to run
# again. Works as root and, for anybody else, through sudo.
set -euo pipefail

packages=(
  # Building
  build-essential cmake ninja-build ccache pkg-config clang clang-format clang-tidy libclang-rt-14-dev python3
  # Libraries
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev librocksdb-dev libzstd-dev
  libxxhash-dev libhwy-dev libopenblas-pthread-dev zlib1g-dev libcli11-dev libspdlog-dev libfmt-dev
  nlohmann-json3-dev prometheus-cpp-dev libcivetweb-dev catch2
  # The demo's data; certificates and a full disk for the tests
  dataset-fashion-mnist openssl mount util-linux procps
  # Network namespaces for measurements (tools/bench)
  iproute2 ethtool
)

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: everything is installed"
  exit 0
fi

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
echo "setup: done"
