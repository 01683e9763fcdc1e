#!/bin/sh
# Runs the GPU tests and the GPU bench of this bundle. The last line is one JSON object: {"tests": "passed" | "failed" |
# "skipped", "bench": {...} | null}. Ends with 1 if a test fails.
here=$(cd "$(dirname "$0")" && pwd)
cd "$here" || exit 1
tests=passed
output=$(bin/worker_test "[gpu]" -s 2>&1) || tests=failed
echo "$output" | grep -E "SKIP|FAILED|passed|failed|assertions"
if [ "$tests" = passed ] && echo "$output" | grep -q SKIP; then tests=skipped; fi
if [ "$tests" = passed ] && command -v compute-sanitizer >/dev/null 2>&1; then
  for tool in memcheck racecheck synccheck; do
    echo "kernels under compute-sanitizer, $tool:"
    checked=$(compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 1 lib/ld-linux-x86-64.so.2 \
      --library-path lib programs/worker_test "[gpu]" 2>&1) || tests=failed
    echo "$checked" | tail -n 3
  done
fi
bench=null
if [ "$tests" != skipped ]; then
  bench=$(bin/recon-bench codecs --cuda 0 --json) || bench=null
  echo "$bench" | tr ',' '\n' | tr -d '{}"' | grep -E "ms|GBps|_of_|_vs_" | sed 's/:/  /g'
fi
printf '{"tests": "%s", "bench": %s}\n' "$tests" "$bench"
[ "$tests" != failed ]
