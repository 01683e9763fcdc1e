#!/usr/bin/env bash
# Makes a folder that runs on another x86-64 Linux with nothing but the NVIDIA driver: worker, server, reconctl,
# benches, GPU tests and every library they need, the C library included. `run.sh` in it runs the GPU tests and the
# GPU bench and prints a table and, as its last line, JSON.
#
#   tools/gpu_bundle.sh [FOLDER]      default: build/gpu_bundle; FOLDER.tar.xz is made beside it
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/gpu_bundle}
tools/build.sh release
if ! cmake --build build/release --target recon_cuda_bundle; then
  echo "gpu_bundle: no CUDA module; is a CUDA toolkit installed?" >&2
  exit 1
fi
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/programs"

programs=(recon-server recon-worker reconctl recon-bench worker_test)
for program in "${programs[@]}"; do
  strip -o "$folder/programs/$program" "build/release/bin/$program"
done
# The loader is the running program to the kernel, so the CUDA module lies beside it.
strip -o "$folder/lib/librecon_cuda.so" build/release/bundle/librecon_cuda.so
ldd "${programs[@]/#/$folder/programs/}" "$folder/lib/librecon_cuda.so" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
  sort -u | while read -r library; do cp -L "$library" "$folder/lib/"; done
# What the driver's libraries ask for; parts of the same C library.
libc=$(ldd "$folder/programs/recon-worker" | awk '$1 == "libc.so.6" { print $3 }')
for name in ld-linux-x86-64.so.2 libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6; do
  cp -L "$(dirname "$libc")/$name" "$folder/lib/"
done
for program in "${programs[@]}"; do
  cat >"$folder/bin/$program" <<'LAUNCHER'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
exec "$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
  "$here/programs/$(basename "$0")" "$@"
LAUNCHER
  chmod +x "$folder/bin/$program"
done
cp tools/gpu_bundle_run.sh "$folder/run.sh"
tar -C "$(dirname "$folder")" -cJf "$folder.tar.xz" "$(basename "$folder")"
bytes=$(stat -c %s "$folder.tar.xz")
echo "gpu_bundle: $folder.tar.xz, $((bytes >> 20)) MiB"
if [ "$bytes" -gt $((60 << 20)) ]; then
  echo "gpu_bundle: more than 60 MiB" >&2
  exit 1
fi
