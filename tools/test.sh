#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test: optimized, under AddressSanitizer and
# UndefinedBehaviorSanitizer (with fault points), the concurrent ones under ThreadSanitizer, and the fuzzers for
# a short time. First clang checks that what a mutex guards is touched under it, and clang-tidy what has changed
# since main. tools/test.sh check|release|dev|tsan|fuzz runs one of the parts.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
[ $# -gt 0 ] || parts=(check release dev tsan fuzz)
for part in "${parts[@]}"; do
  case "$part" in
    check | release | dev | tsan | fuzz) ;;
    -h | --help) sed -n '2,5s/^# //p' tools/test.sh && exit 0 ;;
    *)
      echo "test: no part $part; there are check, release, dev, tsan and fuzz" >&2
      exit 2
      ;;
  esac
done
tools/setup.sh --tests

# What clang-tidy says of the lines that have changed since main. A file takes it 5 to 25 s of CPU time; files that it
# does not come to within RECON_LINT_SECONDS are looked at with the next change.
lint_changes() {
  local base lint status=0
  if ! base=$(git merge-base HEAD origin/main 2>/dev/null); then
    echo "lint: there is no origin/main to compare with"
    return 0
  fi
  lint=$(mktemp)
  timeout "${RECON_LINT_SECONDS:-120}" clang-tidy-diff-14.py -p1 -path build/check -j "$(nproc)" -quiet \
    < <(git diff -U0 --diff-filter=d "$base" -- 'common/*.cc' 'server/*.cc' 'worker/*.cc' ':!worker/python' ':!common/ucx' \
          ':!worker/cuda') >"$lint" 2>&1 || status=$?
  if [ "$status" -eq 124 ]; then
    echo "lint: not all files within the time"
    status=0
  fi
  if grep -E "(error|warning): " "$lint" || [ "$status" -ne 0 ]; then
    [ -s "$lint" ] && tail -n 5 "$lint" >&2
    echo "lint: clang-tidy failed ($status), see .clang-tidy" >&2
    return 1
  fi
  rm -f "$lint"
}

run_tests() {
  local status=0
  rm -f "build/$1/Testing/Temporary/LastTestsFailed.log"
  ctest --preset "$1" "${@:2}" || status=$?
  [ "$status" -eq 0 ] || tools/failed_tests.py "build/$1"
  return "$status"
}

run_fuzzers() {
  printf '%s\n' build/fuzz/bin/fuzz_* | xargs -P "$(nproc)" -I{} bash -c 'run_fuzzer {} || exit 255'
}

run_fuzzer() {
  local name corpus
  name=$(basename "$1")
  corpus=$(mktemp -d)
  cp "tests/fuzz/corpus/$name/"* "$corpus/" 2>/dev/null || true
  if ! "$1" -max_total_time="${RECON_FUZZ_SECONDS:-15}" -rss_limit_mb=2048 -print_final_stats=1 "$corpus" \
      >"$corpus.log" 2>&1; then
    tail -n 40 "$corpus.log"
    echo "fuzz: $name failed" >&2
    return 1
  fi
  echo "fuzz: $name: $(grep -o 'number_of_executed_units: [0-9]*' "$corpus.log")"
  rm -rf "$corpus" "$corpus.log"
}
export -f run_fuzzer

for part in "${parts[@]}"; do
  started=$SECONDS
  case "$part" in
    check)
      tools/build.sh check recon-server recon-worker reconctl
      lint_changes
      ;;
    release | dev)
      tools/build.sh "$part"
      run_tests "$part" -j "$(nproc)"
      ;;
    tsan)
      tools/build.sh tsan cluster_test concurrent_test trace_test worker_comm_test worker_training_test
      run_tests tsan -L concurrent
      ;;
    fuzz)
      tools/build.sh fuzz
      run_fuzzers
      ;;
  esac
  echo "test: $part took $((SECONDS - started)) s"
done
echo "test: all parts passed: ${parts[*]}"
